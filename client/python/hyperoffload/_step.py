"""What a recorded step consists of: alias sets, calls, and the ops that they are in the graph."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_IS_2X = hasattr(torch.Tensor, "untyped_storage")


def storage_of(tensor):
    """Returns the untyped storage of a tensor, or None if it has no memory (sparse, meta, fake)."""
    try:
        return tensor.untyped_storage() if _IS_2X else tensor._storage()
    except (NotImplementedError, RuntimeError):
        return None


def tensors_in(value, place=None):
    """Yields (tensor, its index in its list) for an argument or result; None if it is not in a list."""
    if isinstance(value, torch.Tensor):
        yield value, place
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from tensors_in(each, number)


def tensors_of(args, kwargs):
    """All tensors that a call takes, in the order of its arguments."""
    out = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            out.append(value)
        elif isinstance(value, (list, tuple)):
            out += [tensor for tensor, _ in tensors_in(value)]
    return out


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


class Storage:
    """An alias set. `begins_before`: it existed before the step; else a call of the step created it."""

    def __init__(self, number, size, name, begins_before):
        self.number = number
        self.bytes = size
        self.name = name
        self.begins_before = begins_before
        self.kind = "ACTIVATION"
        self.persistent = False
        self.resized = False  # a call gives it other memory
        self.written = False


class Operand:
    """A tensor that a call takes: its storage, and how the call uses it."""

    def __init__(self, storage, place, size, written, whole):
        self.storage = storage
        self.place = place  # index in its list; None: not in a list
        self.bytes = size
        self.written = written
        self.whole = whole  # the call writes the whole storage


class Op:
    def __init__(self, name, phase):
        self.name = name
        self.is_view = False  # moves no bytes, but its operand has to be there
        self.place = None  # in the graph that was made last; None: it is not in it
        self.share = 1.0  # fraction of the call's time
        self.fixed = False
        self.phase = phase
        self.reads = []
        self.writes = []
        self.recomputable = False
        self.duration_ns = 0
        self.events = None  # CUDA events, until the step ends


class Call:
    """A call below autograd, and the ops that it is in the graph: one for each part of its lists."""

    def __init__(self, function, inputs):
        self.function = function
        self.grad = torch.is_grad_enabled()
        self.inputs = inputs  # numbers of the storages of all tensors that it takes; None: no storage
        self.parts = []  # (op or None, numbers of the storages of the tensors that the part returns)


class Step:
    """The ops and storages of one step."""

    def __init__(self, device):
        self.device = device
        self.calls = []
        self.ops = []
        self.storages = []
        self._known = {}  # address of the storage object -> Storage
        self._references = []  # while they exist, no other storage gets the same address

    def find(self, tensor, name, begins_before):
        """Returns the alias set of a tensor, or None if it is on another device or has 0 bytes."""
        if tensor.device.type != self.device.type:
            return None
        memory = storage_of(tensor)
        if memory is None or memory.nbytes() == 0:
            return None
        known = self._known.get(memory._cdata)
        if known is None:
            known = Storage(len(self.storages), memory.nbytes(), name, begins_before)
            self._references.append(StorageWeakRef(memory))
            self._known[memory._cdata] = known
            self.storages.append(known)
        known.bytes = max(known.bytes, memory.nbytes())  # resize_() keeps the storage
        return known

    def number(self, tensor):
        """Returns the number of a tensor's alias set; None if the step does not know it."""
        memory = storage_of(tensor)
        known = self._known.get(memory._cdata) if memory is not None else None
        return None if known is None else known.number

    def mark(self, tensor, kind, name, persistent):
        storage = self.find(tensor, name, True)
        if storage is not None:
            storage.kind, storage.name, storage.persistent = kind, name, persistent

    def present(self):
        """Returns number -> untyped storage, of the alias sets that exist now and before the step."""
        return {known.number: torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
                for reference, known in zip(self._references, self.storages)
                if known.begins_before and not reference.expired()}

    def release(self):
        """Drops the references: addresses are invalid from now on."""
        self._known.clear()
        self._references.clear()
