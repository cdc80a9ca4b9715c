"""How messages name a call of the script: its line, its operator, its tensors."""

import os
import sys
import threading

import torch

from .._pool.library import PACKAGE
from .step import storage_of, tensors_of

# Where code lies that is not the script's.
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_OTHERS = tuple(str(folder) + os.sep for folder in
                (PACKAGE, _TORCH, os.path.join(os.path.dirname(_TORCH), "functorch"), os.path.dirname(os.path.abspath(os.__file__))))


def say(text):
    """Tells a person something, beside what the script prints."""
    print(f"hyperoffload: {text}", file=sys.stderr, flush=True)


def where():
    """File and line of the innermost frame that is the script's. For a thread of autograd's, which has none,
    that of the main thread, which waits in backward()."""
    for frame in (sys._getframe(1), sys._current_frames().get(threading.main_thread().ident)):
        while frame is not None:
            path = frame.f_code.co_filename
            if not path.startswith(_OTHERS):
                return f"{path}:{frame.f_lineno}"
            frame = frame.f_back
    return "unknown place"


def said_call(function, args, kwargs, name_of):
    """A call of the script: its line, the operator, and tensors that it takes, as _said() has them."""
    tensors = ", ".join(_said(tensor, name_of) for tensor in tensors_of(args, kwargs)[:8])
    return f"{where()}: {function}" + (f" of {tensors}" if tensors else "")


def _said(tensor, name_of):
    """A tensor as people know it: its name, or what it is, and its shape. name_of(storage): its name in
    the model or in the recorded step, or None."""
    storage = storage_of(tensor)
    name = (name_of(storage) if storage is not None else None) or "a tensor without a name"
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{name} ({shape} {str(tensor.dtype).split('.')[-1]})"
