"""The weights of an executable as the one image that DRAM has of them."""

import numpy as np

from frustum.backend.file.executable import Executable, weights_range


def weights_address(executable: Executable) -> int:
    """Where the image begins in DRAM."""
    return weights_range(executable.program)[0]


def weights_image(executable: Executable) -> np.ndarray:
    """The DRAM from the first weight to the end of the last: mapped copy-on-write if this came from a file."""
    start, stop = weights_range(executable.program)
    if len(executable.weights) == 1 and len(executable.weights[0][1]) == stop - start:
        return executable.weights[0][1]
    image = np.zeros(stop - start, np.uint8)
    for address, data in executable.weights:
        image[address - start : address - start + len(data)] = data
    return image
