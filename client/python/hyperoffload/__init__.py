"""HyperOffload for Python jobs: record one training step as the analyzer's graph."""

from .recorder import Recorder

__all__ = ["Recorder"]
