"""Checks the certificate of a plan, `python -m frustum.check_plan ONNX TARGET FILE`: see
`frustum.runtime.model.check_plan`."""

import sys

from frustum.runtime.model.check_plan import check, main

__all__ = ["check", "main"]

if __name__ == "__main__":
    sys.exit(main())
