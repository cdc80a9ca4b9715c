"""How a script's calls come to the package: a dispatch mode, and functions that are replaced."""

import functools
import os
import types

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """Brings each call below autograd to `call(function, args, kwargs)`."""

    def __init__(self, call=None):
        super().__init__()
        self.call = call
        self._process = os.getpid()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # A composite operator has no schema; its parts come here too. A DataLoader's worker that was
        # forked has this mode, but neither recorder nor plan.
        if not hasattr(function, "_schema") or os.getpid() != self._process:
            return function(*args, **(kwargs or {}))
        if function is torch.ops.aten.detach.default and isinstance(args[0], (int, float)):
            # Hooks of saved tensors: PyTorch 1.13 hands over a number where a tensor holds one.
            return torch.tensor(args[0], dtype=torch.float64)
        return self.call(function, args, kwargs or {})


def replace(stack, owner, attribute, around):
    """Calls `around(original, ...)` in place of a function, until `stack` ends."""
    original = getattr(owner, attribute)
    had_own = attribute in vars(owner)

    # A wrapper keeps the function's attributes, and a method stays one: schedulers look at both.
    @functools.wraps(original)
    def function(*args, **kwargs):
        return around(original, *args, **kwargs)

    @functools.wraps(original)
    def method(_, *args, **kwargs):
        return around(original, *args, **kwargs)

    def restore():
        if had_own:
            setattr(owner, attribute, original)
        else:
            delattr(owner, attribute)

    is_method = isinstance(owner, torch.optim.Optimizer)
    setattr(owner, attribute, types.MethodType(method, owner) if is_method else function)
    stack.callback(restore)
