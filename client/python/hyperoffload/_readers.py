"""Methods of PyTorch that use the memory of tensors without an operator: its value is brought first."""

import contextlib

import torch

from ._collectives import watch_hidden
from ._hooks import replace
from ._step import tensors_of

# Methods of tensors that use memory without an operator; pickle: by torch.save(). numpy() keeps it.
_READERS = ("tolist", "__deepcopy__", "numpy")
_KEEPERS = ("numpy",)


class Readers:
    """Stands before such methods until `stack` ends. replay_in_step(): the Replay if a step runs under its plan,
    else None. leave_step(cause) ends the plan's part in a step."""

    def __init__(self, stack, demand, guard, replay_in_step, leave_step):
        self._demand, self._guard = demand, guard
        self._replay_in_step, self._leave_step = replay_in_step, leave_step
        for method in _READERS:
            replace(stack, torch.Tensor, method, self._with_values)
        watch_hidden(stack, self._with_lent)

    def _with_values(self, original, tensor, *args, **kwargs):
        """A method that reads a tensor's memory: its value is brought first."""
        tensors = tensors_of((tensor,), None)
        with self._guard, contextlib.ExitStack() as after:
            replay = self._replay_in_step()
            if replay is None or not replay.fill(tensors, None if original.__name__ in _KEEPERS else after):
                self._leave_step(f"{original.__name__}() of a tensor that is away")
                self._demand.bring(tensors)
            return original(tensor, *args, **kwargs)

    def _with_lent(self, original, group, *args, **kwargs):
        """A collective that the mode does not see: other threads may use its tensors until PyTorch frees them."""
        with self._guard:
            self._leave_step(f"{original.__name__}() of a process group does not come to HyperOffload")
            self._demand.lend(tensors_of(args, kwargs))
            return original(group, *args, **kwargs)
