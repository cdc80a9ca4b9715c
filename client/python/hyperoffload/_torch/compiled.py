"""Finds compiled parts of a script, whose operators do not come here one by one, and refuses them.

A compiled region fuses operators and keeps values by itself; a CUDA graph uses the addresses that it was
captured with. To record these would give a plan of other operators than the ones that run.
"""

import sys

import torch

from .hooks import replace
from .script import where

_JIT = ("torch.jit", "use the module or function that was compiled, or set PYTORCH_JIT=0")
_COMPILE = ("torch.compile", "use the module or function that was compiled, or set TORCHDYNAMO_DISABLE=1")
_GRAPH = ("a CUDA graph", "run the step without it")


def _how(module):
    """(what has compiled a module, what to do), or None."""
    if isinstance(module, torch.jit.ScriptModule):
        return _JIT
    if (type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
            or hasattr(module.forward, "_torchdynamo_orig_callable")):
        return _COMPILE
    return None


def check_eager(model):
    """Raises ValueError where a part of a model is compiled."""
    for name, module in model.named_modules():
        how = _how(module)
        if how is not None:
            raise ValueError(f"{name or 'the model'} is compiled by {how[0]}: its operators do not come to "
                             f"HyperOffload one by one; {how[1]}")


def _targets():
    """(class or module, name of its function, what it is and what to do), as far as this PyTorch has them."""
    yield torch._C.ScriptFunction, "__call__", _JIT
    yield torch.jit.ScriptModule, "__call__", _JIT
    yield torch.cuda.CUDAGraph, "capture_begin", _GRAPH
    yield torch.cuda.CUDAGraph, "replay", _GRAPH
    if hasattr(torch, "compile"):
        yield torch, "compile", _COMPILE
        frames = sys.modules.get("torch._dynamo.eval_frame")  # else nothing has been compiled
        if hasattr(frames, "OptimizedModule"):
            yield frames.OptimizedModule, "__call__", _COMPILE
        for name in ("_maybe_set_eval_frame", "set_eval_frame"):  # from PyTorch 2.5 on, and before
            if hasattr(frames, name):
                yield frames, name, _COMPILE
                break


def refuse_compiled(stack, allowed):
    """Calls of compiled parts raise RuntimeError until `stack` ends, except where allowed() holds."""
    for owner, attribute, how in _targets():
        def refuse(original, *args, attribute=attribute, how=how, **kwargs):
            is_compiled_function = attribute.endswith("set_eval_frame")
            # Each call of such a function sets its compiler first; parts that are not to be compiled set none.
            if allowed() or (is_compiled_function and args[0] in (None, False)):
                return original(*args, **kwargs)
            name = "a function" if is_compiled_function else _name_of(args[0]) if args else attribute
            raise RuntimeError(f"{name} at {where()} is compiled by {how[0]}: its operators do not come to "
                               f"HyperOffload one by one; {how[1]}, or call it within run.paused()")

        replace(stack, owner, attribute, refuse)


def _name_of(compiled):
    return getattr(compiled, "name", None) or type(compiled).__name__
