"""Storages outside model and optimizer that existed before a run."""

from torch.multiprocessing.reductions import StorageWeakRef

from .._torch.collectives import communicates
from .._torch.step import is_view, own_bytes_taken, storage_of, written_in

_SEEN_MAX = 1000  # weak references beyond which those of storages that are gone are dropped


class Foreign:
    """Finds by the calls that take them which of them may leave, as averages of weights. Threads may use a data set, of
    which calls take little. device: devices.Device, the storages'."""

    def __init__(self, device):
        self._device = device
        self._seen = {}  # address -> weak reference, of those that were used once

    def may_leave(self, storage, tensor, function, args, kwargs, result, if_read=True):
        """A call has taken a tensor of a storage. Returns whether the storage may leave: the call writes most of it, or,
        if_read, has taken it the second time."""
        if (storage.device != self._device.where or is_view(function) or communicates(function)
                or not self._device.can_resize(storage)
                or 2 * own_bytes_taken(function, tensor, result) < storage.nbytes()):
            return False
        address = storage._cdata
        written = {getattr(storage_of(each), "_cdata", None) for each in written_in(function, args, kwargs)}
        if address in written or not if_read:
            return address in written
        if len(self._seen) > _SEEN_MAX:
            self._seen = {each: seen for each, seen in self._seen.items() if not seen.expired()}
        seen = self._seen.pop(address, None)
        if seen is not None and not seen.expired():
            return True
        self._seen[address] = StorageWeakRef(storage)
        return False
