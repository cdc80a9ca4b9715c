"""Calls that hand tensors to other threads, which send, receive or sum them.

Until the script or DistributedDataParallel has waited for such work, its tensors are on the device.
"""

import contextlib
import functools

import torch

from .hooks import replace
from .step import namespace_of

# Operators that communicate with other processes: never moved, never run twice.
_NAMESPACES = {"c10d", "_c10d_functional", "c10d_functional", "nccl"}
# These return the tensors that they fill later, and wait_tensor() waits for one.
_FUNCTIONAL = {"_c10d_functional", "c10d_functional"}
# For these the other side may wait for something that this process does later.
_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_p2p")
# Methods of process groups that are not operators in PyTorch 1.13: no dispatch mode sees them.
_HIDDEN = ("_allgather_base", "_reduce_scatter_base", "allgather_coalesced", "allreduce_coalesced",
           "alltoall_base", "recv_anysource")


@functools.lru_cache(maxsize=None)
def communicates(function):
    """Whether an operator hands its tensors to another thread."""
    return namespace_of(function) in _NAMESPACES


def is_point_to_point(function):
    return function.__name__.startswith(_POINT_TO_POINT)


def works_in(function, result):
    """What such an operator returns to wait for."""
    if function.__name__.startswith("wait_tensor"):
        return []
    kind = torch.Tensor if namespace_of(function) in _FUNCTIONAL else torch.ScriptObject
    return [each for each in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(each, kind)]


def wait_for(work):
    """Waits until other threads are through with the tensors of a work. If it failed, the script's own wait
    raises that; for a functional collective this one does, since PyTorch tells only the first."""
    if isinstance(work, torch.Tensor):
        disabled = torch._C._DisableTorchDispatch()  # as long as it exists: the script does not call this
        try:
            torch.ops._c10d_functional.wait_tensor(work)
        finally:
            del disabled  # also where an error keeps this frame
        return
    with contextlib.suppress(RuntimeError):
        work._get_method("wait")()


def watch_hidden(stack, around):
    """Calls `around(original, group, ...)` for collectives that no dispatch mode sees, until `stack` ends."""
    group = getattr(torch.distributed, "ProcessGroup", None)  # None: this PyTorch was built without
    for name in _HIDDEN if group is not None and not hasattr(torch.ops.c10d, "alltoall_base_") else ():
        replace(stack, group, name, around)
