"""Counts the bytes of tensor storages that a job holds at a time."""

from torch.multiprocessing.reductions import StorageWeakRef


class Meter:
    """Sees storages when a call takes or returns them, and knows when they are gone by weak references.

    `bytes` is an upper bound between sweeps: a storage that is gone counts until the next one. A sweep
    happens when the bound exceeds the peak, so `peak` is exact.
    """

    def __init__(self):
        self._known = {}  # address of the storage object -> [weak reference, bytes]
        self.bytes = 0
        self.peak = 0

    def see(self, storage):
        """Counts a storage, or takes note of its present size."""
        size = storage.nbytes()
        known = self._known.get(storage._cdata)
        if known is not None:
            if known[1] == size:
                return
            # The reference keeps the address from being reused, so it is the same storage.
            self.bytes += size - known[1]
            known[1] = size
        else:
            self._known[storage._cdata] = [StorageWeakRef(storage), size]
            self.bytes += size
        if self.bytes > self.peak:
            self.sweep()
            self.peak = max(self.peak, self.bytes)

    def sweep(self):
        """Forgets storages that are gone."""
        for address in [a for a, (reference, _) in self._known.items() if reference.expired()]:
            self.bytes -= self._known.pop(address)[1]

    def restart(self):
        """Forgets the peak."""
        self.sweep()
        self.peak = self.bytes
