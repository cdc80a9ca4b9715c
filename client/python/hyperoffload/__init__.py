"""HyperOffload for PyTorch: training under a device memory budget, and recording of steps."""

from ._fit import Run, fit
from ._library import Error
from .recorder import Recorder

__all__ = ["Error", "Recorder", "Run", "fit"]
