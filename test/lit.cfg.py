"""`lit test` runs every .mlir file with RUN lines; `-Dshell=1` runs all of them in a shell."""

import os
import sys
from pathlib import Path

root = Path(__file__).resolve().parent
sys.path.insert(0, str(root / "support"))

from lit.formats import ShTest  # noqa: E402
from lit_format import WarmTest  # noqa: E402

config.name = "Frustum"  # noqa: F821 (lit defines `config` and `lit_config`)
config.test_format = ShTest() if "shell" in lit_config.params else WarmTest()  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = str(root)  # noqa: F821
config.test_exec_root = str(root.parent / ".lit")  # noqa: F821
Path(config.test_exec_root).mkdir(exist_ok=True)  # noqa: F821
config.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # noqa: F821
