"""Gives a job's tensors memory that PyTorch can resize, where they have other, as all that torch.load() gives."""

import array
import contextlib
import ctypes
import gc
import inspect
import mmap
import sys

import torch

from .._torch.hooks import replace
from .._torch.step import is_wrapper, storage_of
from .meter import BYTES_MIN
from .saving import storages_in

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CHECKPOINT = 0.1  # what torch.load() gives is one if it has this part of the budget
_NAMED = 3  # tensors that a message names
# Objects, beside arrays of numpy, whose memory a tensor may share.
_BUFFERS = (bytearray, memoryview, mmap.mmap, array.array, ctypes.Array)


def make_resizable(storages, device):
    """Moves storages of the CPU (None: no storage) to such memory, with all tensors of them. Memory stays that other
    processes share, and that arrays or buffers of the script have. Takes a part of a second where there is any."""
    if device.is_accelerator:
        return  # what was copied there can be resized
    fixed = {}  # address of the storage object -> (storage, tensors)
    for storage in storages:
        if (storage is not None and storage.nbytes() >= BYTES_MIN and storage.device == device.where
                and not device.can_resize(storage) and not storage.is_shared()):
            fixed[storage._cdata] = (storage, [])
    if not fixed:
        return
    numpy = sys.modules.get("numpy")
    arrays = []
    for each in _objects():
        kind = type(each)
        if is_wrapper(kind):
            continue  # what it wraps is another of these objects
        if issubclass(kind, torch.Tensor):
            storage = None
            with contextlib.suppress(ValueError, RuntimeError):  # parameters of lazy modules have none
                each._fix_weakref()  # Python's object may be one that PyTorch alone had
                storage = storage_of(each)
            if storage is not None and storage._cdata in fixed:
                fixed[storage._cdata][1].append(each)
        elif numpy is not None and issubclass(kind, numpy.ndarray):
            arrays.append(_range_of(each))
        elif numpy is not None and issubclass(kind, _BUFFERS):
            with contextlib.suppress(ValueError, BufferError, TypeError):  # an empty one, or one that was closed
                arrays.append(_range_of(numpy.frombuffer(each, numpy.uint8)))
    while fixed:
        _, (storage, users) = fixed.popitem()  # each is gone before the next one has two
        begin = storage.data_ptr()
        end = begin + storage.nbytes()
        if all(map(_is_plain, users)) and not any(low < end and begin < high for low, high in arrays):
            _move(storage, users, device)


def watch_loads(stack, demand, guard):
    """What torch.load() gives may leave, too, until `stack` ends: checkpoints, to find whose tensors takes a part of a
    second, but no batches. A file that is mapped stays one."""
    def load(original, *args, **kwargs):
        result = original(*args, **kwargs)
        with guard, contextlib.suppress(Exception):  # it may hold what cannot be pickled again
            if kwargs.get("overall_storage") is None and demand.is_ours(()):
                storages = storages_in(result)
                if sum(storage.nbytes() for storage in storages) >= _CHECKPOINT * demand.limit():
                    # Given away one by one, so that none is there twice for long.
                    make_resizable((storages.pop() for _ in range(len(storages))), demand.device)
        return result

    # torch.load() looks these up when it is called: also one that was imported by name before.
    for name in ("_load", "_legacy_load"):
        replace(stack, torch.serialization, name, load)


def said_staying(staying):
    """What to tell a person of storages (name -> storage) whose memory PyTorch cannot free."""
    most = sorted(staying, key=lambda name: -staying[name].nbytes())[:_NAMED]
    named = [f"{name} ({_size(staying[name].nbytes())}, {_cause(staying[name])})" for name in most]
    if len(staying) > len(most):
        named.append(f"and {len(staying) - len(most)} more")
    total = sum(storage.nbytes() for storage in staying.values())
    tensors = "1 tensor stays" if len(staying) == 1 else f"{len(staying)} tensors stay"
    return f"{tensors} on the device, {_size(total)}, since PyTorch cannot free the memory: {', '.join(named)}"


def _size(size):
    return f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{size / 2**10:.0f} KiB"


def _cause(storage):
    if storage.device.type == "cpu" and storage.is_shared():
        return "in shared memory or a mapped file"
    return "in memory of numpy, a buffer or another library"


def _objects():
    """All objects that Python's garbage collector knows, and that those or running functions refer to: each once."""
    known = gc.get_objects()
    frames = list(sys._current_frames().values())
    for frame in frames:  # grows
        values = frame.f_locals
        known.extend(values.values())
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
            values.clear()  # a copy, which would keep what the function deletes
        if frame.f_back is not None:
            frames.append(frame.f_back)
    return {id(each): each for each in (*gc.get_referents(*known), *known)}.values()


def _range_of(numbers):
    """[begin, end) of the memory that an array has; with strides both ways."""
    low = high = numbers.__array_interface__["data"][0]
    for count, stride in zip(numbers.shape, numbers.strides):
        reach = max(count - 1, 0) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + numbers.itemsize


def _is_plain(tensor):
    return type(tensor) in _PLAIN and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _move(storage, tensors, device):
    own = device.new_storage(storage.nbytes())
    ctypes.memmove(own.data_ptr(), storage.data_ptr(), storage.nbytes())
    for tensor in tensors:
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(own, tensor.storage_offset(), tensor.size(),
                                                              tensor.stride())
