"""`DoesNotFit` under the name that the back end uses; it lives with the dialects because passes raise it too."""

from frustum.dialects.target.fit import DoesNotFit

__all__ = ["DoesNotFit"]
