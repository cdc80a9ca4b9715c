"""Tensor storages of a job: the bytes that they hold at a time, and what is known of each that may leave."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .._torch.script import where

# Storages below this size stay on the device: a transfer costs more than it frees.
BYTES_MIN = 4096
# A generator takes its state from a tensor without an operator, and nothing can stand before that: what has the size of
# a state stays.
_STATE_BYTES = torch.get_rng_state().numel()


def may_leave_by_size(size):
    """Whether a storage of so many bytes may leave."""
    return size >= BYTES_MIN and size != _STATE_BYTES


def gone_of(addresses):
    """Those of the addresses of storage objects, to which weak references exist, that are gone."""
    expired = torch.UntypedStorage._expired
    return [address for address in addresses if expired(address)]


class Meter:
    """Sees storages when a call takes or returns them, and knows when they are gone by weak references.

    `bytes` is what they hold on the device, `plain_bytes` what they would hold if none was away. Both
    are upper bounds between sweeps: a storage that is gone counts until the next one. A sweep happens
    when a bound exceeds its peak, so `peak` and `plain_peak` are exact. device: an accelerator, of which
    alone storages count; None: all count.
    """

    def __init__(self, device=None):
        self._device = device
        self._lent = {}  # address of memory that others have -> weak reference of the storage
        self._known = {}  # address of the storage object -> [weak reference, bytes, plain bytes]
        self.bytes = self.peak = 0
        self.plain_bytes = self.plain_peak = 0
        self.peak_line = ""  # the script's, at the peak
        self._counts_peaks = True

    def see(self, storage):
        """Counts a storage, or takes note of its present size."""
        size = storage.nbytes()
        known = self._known.get(storage._cdata)
        if known is not None:
            if known[1] == size:
                return
            # The reference keeps the address from being reused, so it is the same storage.
            self.bytes += size - known[1]
            self.plain_bytes += size - known[2]
            known[1] = known[2] = size
        elif self._counts(storage):
            self._known[storage._cdata] = [StorageWeakRef(storage), size, size]
            self.bytes += size
            self.plain_bytes += size
        if self._counts_peaks and (self.bytes > self.peak or self.plain_bytes > self.plain_peak):
            self.sweep()
            if self.bytes > self.peak:
                self.peak, self.peak_line = self.bytes, where()
            self.plain_peak = max(self.plain_peak, self.plain_bytes)

    def unseen_bytes(self, storages):
        """Bytes of those storages that do not count yet, since no call of the run has made them. None: no storage."""
        unseen = {storage._cdata: storage for storage in storages
                  if storage is not None and storage._cdata not in self._known}
        return sum(storage.nbytes() for storage in unseen.values() if self._counts(storage))

    def _counts(self, storage):
        """Whether a storage that is new counts: one that has the memory of another one does not."""
        if self._device is not None and storage.device != self._device:
            return False
        owner = self._lent.get(storage.data_ptr()) if self._lent else None
        return owner is None or owner.expired() or owner.cdata == storage._cdata

    def lend(self, storage):
        """Others get the memory of a storage, which may come back as another one, as by DLPack."""
        self._lent[storage.data_ptr()] = StorageWeakRef(storage)

    def resized(self, storage):
        """The script has given a storage another size."""
        if storage._cdata in self._known:
            self.see(storage)

    def left(self, storage):
        """A storage is away: it holds nothing, but would."""
        known = self._known.get(storage._cdata)
        if known is not None:
            self.bytes -= known[1] - storage.nbytes()
            known[1] = storage.nbytes()

    def plain_bytes_of(self, storage):
        """Bytes of a storage, also while it is away."""
        known = self._known.get(storage._cdata)
        return storage.nbytes() if known is None else max(storage.nbytes(), known[2])

    def forget(self, storage):
        """Counts a storage no more."""
        _, size, plain = self._known.pop(storage._cdata, (None, 0, 0))
        self.bytes -= size
        self.plain_bytes -= plain

    def sweep(self):
        """Forgets storages that are gone."""
        for address in gone_of(self._known):
            _, size, plain = self._known.pop(address)
            self.bytes -= size
            self.plain_bytes -= plain

    def swept_bytes(self):
        self.sweep()
        return self.bytes

    def restart(self):
        """Forgets the peaks."""
        self.restart_plain()
        self.peak, self.peak_line = self.bytes, ""

    def keep_peaks(self):
        """The peaks stay what they are."""
        self._counts_peaks = False

    def restart_plain(self):
        """Forgets the plain peak."""
        self.sweep()
        self.plain_peak = self.plain_bytes


class Loose:
    """A storage that may leave. held: its number in the runtime, if it has one. used: the call that
    used it last. stays: PyTorch does not free its memory, or another thread may use it."""

    __slots__ = ("reference", "bytes", "held", "used", "stays")

    def __init__(self, storage, held=None):
        self.reference = StorageWeakRef(storage)
        self.bytes = storage.nbytes()
        self.held = held
        self.used = -1  # none
        self.stays = False

    def storage(self):
        """The storage, or None if PyTorch has freed it."""
        if self.reference.expired():
            return None
        return torch.UntypedStorage._new_with_weak_ptr(self.reference.cdata)
