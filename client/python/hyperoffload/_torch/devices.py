"""Where a model's tensors are: the one place that knows kinds of devices."""

import time

import torch

from .hooks import replace
from .script import where


class Device:
    """The processor, and what the other kinds have in common with it.

    where: the torch.device. counted: the one of which alone storages count; None: those of all. kind,
    ordinal, stream, library: as ho_device_memory has them; the stream is the one that is current when the
    object is made. is_accelerator: its work is queued, and backward() runs on a thread of its own.
    """

    kind, ordinal, stream, library = 0, 0, None, None
    is_accelerator = False
    # Gives a storage so many bytes; its value is lost, except for as many as it had. Raises RuntimeError.
    resize = staticmethod(torch.UntypedStorage.resize_)

    def __init__(self, place):
        self.where = place
        self.counted = place if self.is_accelerator else None

    def can_resize(self, storage):
        """Whether PyTorch can free a storage's memory and allocate it again."""
        if storage.is_shared():  # PyTorch 2 would try, and end the process
            return False
        if hasattr(storage, "resizable"):
            return storage.resizable()
        try:
            storage.resize_(storage.nbytes())  # refused where the memory is numpy's or shared
        except RuntimeError:
            return False
        return True

    def new_storage(self, size):
        """A storage of so many bytes, below all dispatch modes."""
        return torch.UntypedStorage(size)

    def synchronize(self):
        """Waits until all work that was queued has ended."""

    def mark(self):
        """An instant in the order of the device's work, for elapsed_ns()."""
        return time.perf_counter_ns()

    def elapsed_ns(self, begin, end):
        """Time between two marks, before which synchronize() was called."""
        return end - begin

    def peak_reserved_bytes(self):
        """The most that PyTorch has taken of the device at a time, also to give it out later; None: it does
        not say."""
        return None

    def keep_stream(self, stack, allowed):
        """Refuses work on other streams until `stack` ends, except where allowed() holds."""


class Cuda(Device):
    """An NVIDIA device."""

    kind = 1
    is_accelerator = True

    def __init__(self, place):
        super().__init__(place)
        self.ordinal = place.index
        self.stream = torch.cuda.current_stream(place).cuda_stream

    def can_resize(self, storage):
        # To try it would take as much memory again.
        return storage.resizable() if hasattr(storage, "resizable") else True

    def new_storage(self, size):
        return torch.UntypedStorage(size, device=self.where)

    def synchronize(self):
        torch.cuda.synchronize(self.where)

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.where))
        return event

    def elapsed_ns(self, begin, end):
        return int(begin.elapsed_time(end) * 1e6)

    def peak_reserved_bytes(self):
        return torch.cuda.max_memory_reserved(self.where)

    def keep_stream(self, stack, allowed):
        if torch.cuda.current_stream(self.where).cuda_stream != self.stream:
            raise RuntimeError("another stream is current than when the run was made: make that stream current before "
                               "fit()")

        def refuse(original, stream):
            if stream is None or stream.cuda_stream == self.stream or stream.device != self.where or allowed():
                return original(stream)
            raise RuntimeError(
                f"another stream becomes current at {where()}: a run works on the stream that was current when it "
                "was made. Make that stream current before fit(), or use it within run.paused()")

        # torch.cuda.stream() calls it, too.
        replace(stack, torch.cuda, "set_stream", refuse)


# Type of torch.device -> class.
KINDS = {"cpu": Device, "cuda": Cuda}


def device_of(model):
    """The Device of a model. Raises ValueError where its parts are on several, or on one of another kind."""
    first = None
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        place = tensor.device
        if place.type not in KINDS:
            raise ValueError(f"{name} of the model is on {place}; only the CPU and CUDA devices are supported")
        first = first or (name, place)
        if place != first[1]:
            raise ValueError(f"{first[0]} of the model is on {first[1]}, and {name} is on {place}: all of a model "
                             "has to be on one device")
    place = torch.device("cpu") if first is None else first[1]
    return KINDS[place.type](place)
