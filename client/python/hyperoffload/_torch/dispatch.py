"""Calls a dispatch mode in PyTorch 1.13 without the context manager that it has around each call."""

import torch
from torch.utils import _python_dispatch

# PyTorch 2.x, which has no such class, keeps its modes in C++.
_Stack = getattr(_python_dispatch, "_TorchDispatchStackMode", object)
if _Stack is not object:
    from torch._C import (_len_torch_dispatch_stack, _pop_torch_dispatch_stack,
                          _push_on_torch_dispatch_stack)


class _Alone(_Stack):
    """What PyTorch calls while there is a mode: it calls that mode, which is off meanwhile."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if _len_torch_dispatch_stack() > 1:
            return super().__torch_dispatch__(function, types, args, kwargs)
        mode = _pop_torch_dispatch_stack()
        try:
            return mode.__torch_dispatch__(function, types, args, kwargs)
        finally:
            _push_on_torch_dispatch_stack(mode)


def shorten():
    """A mode has been entered: if it is the only one, PyTorch calls it the short way until it is left."""
    if _Stack is not object and _len_torch_dispatch_stack() == 1:
        torch._C._set_torch_dispatch_mode(_Alone())
