"""How a script's calls come to the package: a dispatch mode, and functions that are replaced."""

import functools
import os
import threading
import types

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._pool.library import Error
from .dispatch import shorten
from .interrupts import Guard
from .script import where
from .step import is_wrapper, local_of, storage_of, tensors_of

_DETACH = torch.ops.aten.detach.default
_forks = 0  # between the process that loaded the package and this one


before_forks = []  # functions that are called before the process forks


def _forks_now():
    for function in before_forks:
        function()


def _forked():
    global _forks
    _forks += 1


os.register_at_fork(before=_forks_now, after_in_child=_forked)


def refuse_away(tensors):
    """Raises RuntimeError in a process that was forked while a value was away: it cannot come there."""
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is not None and storage.nbytes() == 0 and local_of(tensor).numel() > 0 and tensor.device.type != "meta":
            raise RuntimeError(f"a value that {where()} takes is away, which neither a process that was forked nor another "
                               "thread than the run's can bring: start it within run.paused(), or send a process the "
                               "tensor by a queue")


def _is_number(function, args):
    """Hooks of saved tensors: PyTorch 1.13 hands over a number where a tensor holds one."""
    return function is _DETACH and isinstance(args[0], (int, float))


class Mode(TorchDispatchMode):
    """Brings each call below autograd to `call(function, args, kwargs)`. explain(error, function, args,
    kwargs) adds to an Error of the library where in the script it came up. guard: holds back
    interrupts while a call runs."""

    def __init__(self, call=None, explain=None, guard=None):
        super().__init__()
        self.call = call
        self._explain = explain
        self._guard = guard or Guard()
        self._forks = _forks

    def __enter__(self):
        super().__enter__()
        shorten()
        return self

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if types and any(map(is_wrapper, types)):
            return NotImplemented  # PyTorch asks the wrapper then, and what it calls comes here
        # A composite operator has no schema; its parts come here too.
        if not hasattr(function, "_schema"):
            return function(*args, **(kwargs or {}))
        if self._forks != _forks:  # as a DataLoader's worker: it has this mode, but neither recorder nor plan
            refuse_away(tensors_of(args, kwargs))
            return function(*args, **(kwargs or {}))
        if _is_number(function, args):
            return torch.tensor(args[0], dtype=torch.float64)
        guard = self._guard
        outer, guard.inside = guard.inside, True
        try:
            return self.call(function, args, kwargs or {})
        except Error as error:
            if self._explain is not None:
                self._explain(error, function, args, kwargs or {})
            raise
        finally:
            guard.inside = outer
            if guard.pending and not outer:
                guard.deliver()


class AcceleratorMode(Mode):
    """The same for a model on an accelerator. Calls without a tensor there do not come to `call`: those that
    load data, and those on an optimizer's counts. backward() runs on a thread of its own, and what it does
    on the processor on the one that calls it: one call at a time comes."""

    def __init__(self, where, call=None, explain=None, guard=None):
        super().__init__(call, explain, guard)
        self._where = where
        self._lock = threading.RLock()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not self._concerns(args, kwargs or {}) and not _is_number(function, args):
            return function(*args, **(kwargs or {}))
        with self._lock:
            return super().__torch_dispatch__(function, types, args, kwargs)

    def _concerns(self, args, kwargs):
        for tensor in tensors_of(args, kwargs):
            if tensor.device == self._where:
                return True
        made = kwargs.get("device")
        return made is not None and made.type == self._where.type and made.index in (None, self._where.index)


def mode_of(device, call=None, explain=None, guard=None):
    """The Mode for calls of a model on a Device."""
    if device.is_accelerator:
        return AcceleratorMode(device.where, call, explain, guard)
    return Mode(call, explain, guard)


def _alone(original, *args, **kwargs):
    return original(*args, **kwargs)


def replace(stack, owner, attribute, around):
    """Calls `around(original, ...)` in place of a function, until `stack` ends. Where another wrapper has been put around
    that, as by a scheduler, both stay, and ours does no more than call the function."""
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
        nonlocal around
        around = _alone
        if vars(owner).get(attribute) is not ours:
            return
        if had_own:
            setattr(owner, attribute, original)
        else:
            delattr(owner, attribute)

    ours = types.MethodType(method, owner) if isinstance(owner, torch.optim.Optimizer) else function
    setattr(owner, attribute, ours)
    stack.callback(restore)
