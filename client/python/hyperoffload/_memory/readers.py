"""Functions of PyTorch that use the memory of tensors without an operator: their values are brought first."""

import contextlib
import multiprocessing.queues
import sys

import torch

from .._torch.collectives import watch_hidden
from .._torch.hooks import refuse_away, replace
from .._torch.script import where
from .._torch.step import storage_of, tensors_of
from .saving import storages_in

# Methods of tensors that read memory while they run. numpy() keeps it: PyTorch does not resize it then.
_READERS = ("tolist", "__deepcopy__", "numpy")
# Those that hand it out for any use: other processes and libraries have it from then on.
_LENDERS = ("storage", "untyped_storage", "__dlpack__")
# Those that do so for pickle, which then saves what it has by torch.save().
_NAMERS = ("__reduce_ex__",)
# Methods of storages that give them other memory, which processes share.
_MOVERS = ("_share_fd_cpu_", "_share_filename_cpu_")
_SAID_BYTES_MIN = 1 << 20


def _names_of(function):
    """(module, name) of all modules that have a function."""
    return [(module, name) for module in list(sys.modules.values())
            for name, value in list(getattr(module, "__dict__", {}).items()) if value is function]


class Readers:
    """Stands before such functions until `stack` ends. replay_in_step(): the Replay if a step runs under its
    plan, else None. leave_step(cause) ends the plan's part in a step. say(text) tells a person something."""

    def __init__(self, stack, demand, guard, replay_in_step, leave_step, say):
        self._demand, self._guard, self._say = demand, guard, say
        self._said = set()  # lines of the script
        self._replay_in_step, self._leave_step = replay_in_step, leave_step
        for names, around in ((_READERS, self._with_values), (_LENDERS, self._lending), (_NAMERS, self._naming)):
            for name in names:
                if hasattr(torch.Tensor, name):
                    replace(stack, torch.Tensor, name, around)
        # Scripts import it by name: from torch.utils.dlpack import to_dlpack.
        for module, name in _names_of(torch._C._to_dlpack):
            replace(stack, module, name, self._lending)
        for name in _MOVERS:
            replace(stack, torch.UntypedStorage, name, self._moving)
        replace(stack, torch.UntypedStorage, "resize_", self._resizing)
        for queue in (multiprocessing.queues.Queue, multiprocessing.queues.JoinableQueue):
            replace(stack, queue, "put", self._putting)
        watch_hidden(stack, self._with_lent)

    def _with_values(self, original, tensor, *args, **kwargs):
        """A method that reads a tensor's memory."""
        tensors = tensors_of((tensor,), None)
        if not self._demand.is_ours(map(storage_of, tensors)):
            refuse_away(tensors)
            return original(tensor, *args, **kwargs)
        with self._guard, contextlib.ExitStack() as after:
            replay, name, makes = self._replay_in_step(), original.__name__, 0
            if name == "__deepcopy__":  # which makes the copy's memory without an operator
                makes = self._demand.meter.plain_bytes_of(storage_of(tensor))
            if replay is None or not replay.fill(tensors, None if name == "numpy" else after, makes):
                self._leave_step(f"{name}() of a tensor that is away")
                self._demand.bring(tensors)
                self._demand.room(makes)
            return original(tensor, *args, **kwargs)

    def _naming(self, original, tensor, *args, **kwargs):
        with self._guard:  # _lending() lets pass what the package does itself
            return original(tensor, *args, **kwargs)

    def _lending(self, original, tensor, *args, **kwargs):
        """Others have a tensor's memory from now on, and may read and change it. In a block of paused(), and for
        torch.save(), a storage is for the time of that alone."""
        storages = [storage_of(each) for each in tensors_of((tensor,), None)]
        name = original.__name__
        own = self._guard.inside and (self._demand.device.is_accelerator or self._guard.is_of_this_thread())
        if (own or (self._demand.is_paused() and name in ("storage", "untyped_storage"))
                or not self._demand.is_ours(storages)):
            return original(tensor, *args, **kwargs)
        with self._guard:
            self._lend(storages, name)
            return original(tensor, *args, **kwargs)

    def _lend(self, storages, name):
        replay = self._replay_in_step()
        if replay is not None and any(replay.name_of(storage) for storage in storages if storage is not None):
            self._leave_step(f"{name}() of a tensor that the plan moves")
        staying, line = self._demand.lend(storages), where()
        if staying >= _SAID_BYTES_MIN and line not in self._said:
            self._said.add(line)
            self._say(f"{name}() at {line} hands out memory of {staying / 2**20:.0f} MiB, which stays on the device from now "
                      "on; within run.paused() it would not")

    def _moving(self, original, storage, *args, **kwargs):
        if not self._demand.is_ours([storage]):
            return original(storage, *args, **kwargs)
        with self._guard:
            self._lend([storage], "share_memory_")
            result = original(storage, *args, **kwargs)
            self._demand.lend([storage])  # its address is another one now
            return result

    def _resizing(self, original, storage, size):
        """The script frees memory, or takes it again, as FSDP does."""
        result = original(storage, size)
        if self._demand.is_ours(()):
            self._demand.meter.resized(storage)
            self._demand.fixed.resized(storage)
        return result

    def _putting(self, original, queue, value, *args, **kwargs):
        """A thread of the queue's is about to read what is in a value: it finds it in memory that processes
        share, where it does not move."""
        storages = []
        if self._demand.is_ours(()):
            with contextlib.suppress(Exception):  # the queue says what cannot be pickled
                storages = storages_in(value)
        for storage in storages:
            if storage.nbytes() > 0 or self._demand.knows(storage):
                storage.share_memory_()
        return original(queue, value, *args, **kwargs)

    def _with_lent(self, original, group, *args, **kwargs):
        """A collective that the mode does not see: other threads may use its tensors until PyTorch frees them."""
        with self._guard:
            self._leave_step(f"{original.__name__}() of a process group does not come to HyperOffload")
            self._demand.lend(map(storage_of, tensors_of(args, kwargs)))
            return original(group, *args, **kwargs)
