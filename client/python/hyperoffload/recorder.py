"""Where scripts find `hyperoffload.Recorder` too."""

from ._plan.recorder import Recorder

__all__ = ["Recorder"]
