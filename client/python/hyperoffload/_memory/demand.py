"""Keeps a job's tensors within a limit of bytes without a plan.

Before a call, what it takes and is away is fetched, and as much as it returns has to fit: storages that
were not used for the longest time leave for the pool. Steps are recorded this way, and whatever a plan
does not know runs this way: evaluation, steps of another shape, values that outlive their step.
"""

import collections
import math
import os
import threading

import torch

from .._pool import library
from .._torch.collectives import communicates, is_point_to_point, wait_for, works_in
from .._torch.script import where
from .._torch.step import (bytes_of, list_length, new_bytes_of, split, storage_of, storages_taken, takes_storage, tensors_in,
                           tensors_of, written_in)
from .beyond import Beyond, is_small_part
from .foreign import Foreign
from .meter import Loose, Meter, gone_of, may_leave_by_size


class Demand:
    """The runtime of a job, and the storages that may leave the device outside a plan.

    limit() gives the bytes that tensors may hold at a time; without a pool it is infinite. One thread:
    the one that calls the job's operators. device: devices.Device, the storages'. copies: of each value
    in the pool.
    """

    def __init__(self, pool, device, meter, limit, copies=1):
        self.device, self.meter, self.limit = device, meter, limit
        self.find = {}  # number in the runtime -> function that returns the storage; None: it is gone
        self.placed = set()  # numbers of which the runtime knows the address
        self.reserved = frozenset()  # numbers that the plan moves while a step runs
        self.moving, self._moving_bytes = frozenset(), 0  # see sent()
        self.refuses = False  # storages that a plan does not know may leave for it
        self.short, self.pending = {}, 0  # number -> bytes that it was refused; those that the next call returns
        self.paused, self.beyond = 0, Beyond()
        self.fixed = Meter(device.counted)  # what never leaves
        # What existed before the run may leave if calls write or read it. Recorders look themselves at what is read.
        self.adopts_written = self.adopts_read = True
        self.ended = []  # weak references of storages that a plan is through with, and the script not
        self.away = set()  # addresses of storage objects that left, and that no plan brings in the step that runs
        self._away_for = self.reserved  # the numbers of the plan for which `away` was made
        self._loose = collections.OrderedDict()  # address of the storage object -> Loose; oldest first
        self._declared = set()  # numbers that no plan has
        self._free = {}  # bytes -> of them, those whose storages are gone
        self._call, self._foreign = 0, Foreign(device)
        self._returned = {}  # (function, bytes of what it takes) -> bytes it returned, if "meta" tensors say less
        self.works = []  # other threads do them on tensors that may leave, but not before they end
        self.marks = None  # None, or a list for a pair of device.mark()s around each call, without its transfers
        self._resize = device.resize
        self._process, self._thread = os.getpid(), threading.get_ident()
        self.runtime = None if pool is None else library.Runtime(pool, self._take, self._drop, copies, device)

    # The library's callbacks, inside its calls on this thread. They must not raise.

    def _take(self, held, size):
        storage = self.find[held]()
        more = size - storage.nbytes()
        if held in self.reserved and (self.meter.bytes + more + self.pending > self.limit() if self.refuses
                                      else self.lacks(more + self.pending) > 0):
            self.short[held] = more
            return None
        self.short.pop(held, None)
        try:
            if more != 0:
                self._resize(storage, size)
        except RuntimeError:
            return None
        self.meter.see(storage)
        self.placed.add(held)
        return storage.data_ptr()

    def _drop(self, held):
        self.placed.discard(held)
        storage = self.find[held]()
        if storage is None:
            return  # PyTorch has freed it
        loose = self._loose.get(storage._cdata)
        if loose is not None and loose.stays:
            return  # another thread may use it
        try:
            self._resize(storage, 0)
        except RuntimeError:
            return  # numpy() has taken its memory meanwhile: it keeps its place
        self.meter.left(storage)

    # Storages that may leave.

    def add(self, storage):
        """A storage may leave from now on. Returns its entry, or None where it is too small."""
        self.meter.see(storage)
        loose = self._loose.get(storage._cdata)
        if loose is None and may_leave_by_size(storage.nbytes()):
            loose = self._loose[storage._cdata] = Loose(storage)
        return loose

    def rename(self, storage, held):
        """A storage gets the number that a plan has for it, with its value. Returns whether another plan had it."""
        loose = self.add(storage)
        if loose.held == held:
            return False
        self._bring([loose])
        displaces = loose.held is not None and loose.held not in self._declared
        if displaces:  # else the library would take the memory away that it knows under that number
            self.runtime.forget(loose.held)
            self.placed.discard(loose.held)
            self.find[loose.held] = lambda: None
        self._give_back(loose)
        loose.held = held
        self.adopt(held, storage)
        return displaces

    def share(self, storage, held, size):
        """A storage has a plan's number until unshare(), and may be away."""
        loose = self._loose[storage._cdata] = Loose(storage, held)
        loose.bytes = size
        loose.used = self._call

    def unshare(self, address):
        """Its number is another storage's from now on."""
        loose = self._loose.get(address)
        if loose is not None:
            self._bring([loose])
            loose.held = None

    def can_leave(self, storage):
        """Whether PyTorch can free the storage's memory and allocate it again."""
        loose = self._loose.get(storage._cdata)
        if loose is None or loose.stays:
            return False
        if loose.held is not None:
            return True
        return self.device.can_resize(storage)

    def stay(self, storage):
        """A storage stays on the device from now on."""
        loose = self._loose.get(storage._cdata)
        if loose is not None:
            self._bring([loose])
            loose.stays = True

    def lend(self, storages):
        """Others may use and change what storages hold from now on, and no operator says so. Returns how many bytes
        stay that did not before."""
        lent = [(storage, self.add(storage)) for storage in storages
                if storage is not None and storage.device == self.device.where]
        lent = [(storage, loose) for storage, loose in lent if loose is not None]
        new = sum(loose.bytes for _, loose in lent if not loose.stays)
        self._bring([loose for _, loose in lent])
        for storage, loose in lent:
            loose.stays = True
            self.meter.lend(storage)
            if loose.held is not None and storage.nbytes() > 0:
                self.adopt(loose.held, storage)
        return new

    def knows(self, storage):
        return storage._cdata in self._loose

    def is_ours(self, storages):
        """Whether the run's thread calls. Not so in processes that were forked, where nothing moves. Raises
        RuntimeError where another thread is about to use storages that may leave meanwhile, or to move them."""
        if os.getpid() != self._process:
            return False
        if self.device.is_accelerator or threading.get_ident() == self._thread:
            return True  # backward() of an accelerator has a thread of its own, and waits
        used = [self._loose[storage._cdata] for storage in storages if storage is not None and self.knows(storage)]
        if self.paused or all(loose.stays and loose.storage().is_shared() for loose in used):
            return False
        raise RuntimeError(f"another thread than the run's uses a tensor of the run at {where()}: give it an array that the "
                           "run's thread has made by .numpy().copy(), or wait for the thread within run.paused()")

    def hand_over(self, function, tensors, result, moves=False):
        """Another thread works on what an operator took. moves: a plan moves some of it."""
        used = self._entries(tensors)
        if is_point_to_point(function):
            for loose in used:
                loose.stays = True
        elif moves or not all(loose.stays for loose in used):
            self.works += works_in(function, result)

    def settle(self):
        """Waits for the works of other threads."""
        while self.works:
            wait_for(self.works.pop())

    def adopt(self, held, storage):
        """The latest value is on the device: what the home holds is out of date."""
        self.runtime.adopt(held, storage.data_ptr())
        self.placed.add(held)

    def forget_free(self):
        """Gives the homes of storages that are gone back to the pool."""
        self._sweep()
        for held in [held for numbers in self._free.values() for held in numbers]:
            self.runtime.undeclare(held)
            self._declared.discard(held)
        self._free.clear()

    def _give_back(self, loose):
        if loose.held in self._declared:
            del self.find[loose.held]
            self.placed.discard(loose.held)
            self._free.setdefault(loose.bytes, []).append(loose.held)
        loose.held = None

    def _sweep(self):
        self.meter.sweep()
        for address in gone_of(self._loose):
            self._give_back(self._loose.pop(address))
            self.away.discard(address)

    # Bytes.

    def room(self, need):
        """Makes room for `need` bytes, as far as storages may leave that this call does not use.

        Returns whether more could leave, should more be needed."""
        if self.paused or self.meter.bytes + need <= self.limit():
            return True
        for reference in self.ended:
            if not reference.expired():
                self.add(torch.UntypedStorage._new_with_weak_ptr(reference.cdata))
        self.ended.clear()
        self._sweep()
        for address, loose in list(self._loose.items()):
            if loose.used == self._call or loose.stays or loose.held in self.reserved:
                continue
            if self.meter.bytes + need <= self.limit():
                return True
            self._evict(address, loose)
        return False

    def lacks(self, need):
        """By how much `need` more bytes exceed the limit; 0: not at all, or by a small part of it."""
        over = self.meter.bytes + need - self.limit()
        if over > 0 and self.reserved:  # what others have of the plan's, which was to leave, may be beyond it
            over -= sum(loose.bytes for loose in self._loose.values() if loose.stays and loose.held in self.reserved)
        return 0 if is_small_part(over, self.limit()) else over

    def room_between_calls(self, need):
        """As room(), where what the last call used may leave, too."""
        self._call += 1
        return self.room(need)

    def _evict(self, address, loose):
        storage = loose.storage()
        if storage is None or storage.nbytes() == 0:
            return
        self.settle()
        if loose.held is None:
            free = self._free.get(loose.bytes)
            loose.held = free.pop() if free else self.runtime.declare(loose.bytes)
            self._declared.add(loose.held)
            self.find[loose.held] = loose.storage
        if loose.held not in self.placed:
            self.adopt(loose.held, storage)
        self.runtime.evict(loose.held)
        if storage.nbytes() > 0:  # numpy's, or shared: it stays
            loose.stays = True
            self.adopt(loose.held, storage)
        else:
            self.away.add(address)

    def step_begins(self):
        """A plan begins a step, in which it does not bring what other plans have moved away. Their transfers end."""
        self.moving = frozenset()
        if self.away or self._away_for is not self.reserved:
            self._away_for = self.reserved
            self.away = {address for address, loose in self._loose.items()
                         if loose.held is not None and loose.held not in self.reserved and self._is_away(loose)}

    def sent(self, moving, most_bytes):
        """A step of a plan has ended, which may have these (numbers) on their way to its next one: so many bytes at most."""
        self.moving, self._moving_bytes = moving, most_bytes

    def arrive(self):
        """Waits for what a plan has on its way to its next step. The script may still hold what that step takes the place
        of, as gradients: it leaves."""
        moving, self.moving = self.moving, frozenset()
        if moving:
            self.reserved, reserved = moving, self.reserved
            there = [storage for storage in (self.find[held]() for held in moving) if storage is not None]
            try:
                self.room(self._moving_bytes - sum(storage.nbytes() for storage in there))
            finally:
                self.reserved = reserved
        for held in moving:
            self.runtime.state(held)

    def bring(self, tensors, function=None, args=(), kwargs=None):
        """Brings what a call takes, and makes room for what it returns. Returns how many bytes it expects that to be."""
        new = 0
        if function is not None:
            new = new_bytes_of(function, tensors, args, kwargs, self.device.where)
            if self._returned:
                new = max(new, self._returned.get((function, sum(map(bytes_of, tensors))), 0))
        self._bring(self._entries(tensors), new + self.meter.unseen_bytes(storages_taken(function, tensors, args)))
        return new

    def bring_all_but(self, storages):
        """Brings what the script has made, for a process that is about to be forked: all except for these, and those
        that plans move. If that is more than the limit, it is exceeded."""
        others = {storage._cdata for storage in storages}
        self._bring([loose for address, loose in self._loose.items()
                     if loose.held in self._declared and address not in others])

    def _bring(self, used, new=0):
        self._call += 1
        for loose in used:
            loose.used = self._call
            self._loose.move_to_end(loose.reference.cdata)
        if any(loose.held in self.moving for loose in used):  # it has memory, but its value may yet come
            self.arrive()
        away = {loose for loose in used if self._is_away(loose)}
        self.room(new + sum(loose.bytes for loose in away))
        for loose in away:
            self.runtime.fetch(loose.held)
            self.away.discard(loose.reference.cdata)

    def _entries(self, tensors):
        storages = [storage for storage in map(storage_of, tensors) if storage is not None]
        return [self._loose[storage._cdata] for storage in storages if storage._cdata in self._loose]

    def claim(self, tensors):
        """What a call is about to take does not leave for it. Returns the bytes that have yet to come."""
        self._call += 1
        claimed = set(self._entries(tensors))
        for loose in claimed:
            loose.used = self._call
        return sum(loose.bytes for loose in claimed if self._is_away(loose))

    @staticmethod
    def _is_away(loose):
        if loose.held is None or loose.stays:
            return False  # without bytes, the script has freed it, as FSDP does
        storage = loose.storage()
        return storage is not None and storage.nbytes() == 0

    # Calls.

    def run(self, function, tensors, args, kwargs):
        """A call that no plan knows. A call on lists runs index by index."""
        if self.works and not communicates(function):
            self.settle()
        count = list_length(function, args, kwargs)
        if count == 1:
            return self._one(function, tensors, args, kwargs)
        results = []
        for own, named in split(args, kwargs, count):
            result = self._one(function, tensors_of(own, named), own, named)
            if result is not None:
                results.extend(result)
        return results or None

    def _one(self, function, tensors, args, kwargs):
        expected = self.bring(tensors, function, args, kwargs)
        if takes_storage(function):  # else it would give it new memory
            self._bring([self._loose[args[1]._cdata]] if args[1]._cdata in self._loose else [])
        if self.marks is None:
            result = function(*args, **kwargs)
        else:
            begin = self.device.mark()
            result = function(*args, **kwargs)
            self.marks.append((begin, self.device.mark()))
        self.ran(function, tensors, args, kwargs, result, expected)
        return result

    def ran(self, function, tensors, args, kwargs, result, expected=math.inf):
        """Takes note of what a call has written and returned, and where that is more than was expected, of how much."""
        used, new, taken = set(), 0, tensors
        if function.__name__.startswith("set_."):  # a copy, or what a file had: it may leave
            tensors = tensors[1:]
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None and storage._cdata not in used:
                used.add(storage._cdata)
                self.meter.see(storage)
                loose = self._loose.get(storage._cdata)
                if (loose.stays if loose is not None else not self._adopt_foreign(
                        storage, tensor, function, args, kwargs, result)) and not self.reserved:
                    self.fixed.see(storage)
        if communicates(function):
            self.hand_over(function, tensors, result)
        self.wrote(function, args, kwargs)
        for tensor, _ in tensors_in(result):
            storage = storage_of(tensor)
            if storage is None or storage._cdata in used:
                continue
            used.add(storage._cdata)
            if tensor.device == self.device.where:
                new += storage.nbytes()
            if tensor.device != self.device.where or self.add(storage) is None:
                self.fixed.see(storage)
        if new > expected and tensors is taken:  # as the workspace of mkldnn_rnn_layer
            self._returned[function, sum(map(bytes_of, taken))] = new
        if self.meter.bytes > self.limit():
            self.meter.sweep()
            if new <= expected < math.inf and self.lacks(0) > 0 and not self.paused:  # all else has left before
                self.beyond.note(function, self.meter.bytes)
            self.room(0)

    def _adopt_foreign(self, storage, tensor, function, args, kwargs, result):
        """A storage that existed before the run comes to a call. Returns whether it may leave from now on."""
        if (not self.adopts_written or self.reserved or not may_leave_by_size(storage.nbytes())
                or not self._foreign.may_leave(storage, tensor, function, args, kwargs, result, self.adopts_read)):
            return False
        self.add(storage).used = self._call
        if self.adopts_read:  # in a recorded step it may be a batch, which the plan does not move
            self.fixed.forget(storage)
        return True

    def wrote(self, function, args, kwargs):
        """What homes hold of a call's results in place is out of date."""
        for tensor in written_in(function, args, kwargs):
            storage = storage_of(tensor)
            loose = self._loose.get(storage._cdata) if storage is not None else None
            if loose is None or storage.nbytes() == 0:
                continue
            if storage.nbytes() != loose.bytes:  # resize_(), or a result of another size
                self._give_back(loose)
                loose.bytes = storage.nbytes()
            if loose.held is not None:
                self.adopt(loose.held, storage)

    # All of them.

    def pause(self):
        """Brings everything to the device; the limit does not hold until resume()."""
        self.paused += 1
        try:
            for loose in list(self._loose.values()):
                self._bring([loose])
        except BaseException:
            self.paused -= 1
            raise

    def rescued(self, error):
        """After a loss: brings what there is, and makes the bytes of all else 255, which is NaN in floating point:
        tensors without memory would end the process when the script uses them. Returns the error, which says so."""
        self.paused += 1
        lost, answers = 0, True
        for loose in list(self._loose.values()):
            if not self._is_away(loose):
                continue
            try:
                if answers:
                    self._bring([loose])
                    continue
            except library.Error as why:
                answers = why.name != "deadline"  # else each would take as long
            storage = loose.storage()
            try:
                self._resize(storage, loose.bytes)
                storage.fill_(255)
                lost += 1
            except RuntimeError:
                continue  # the device has no room for it
        if lost > 0:
            error.args = (f"{error}. {lost} values are NaN now (integers -1): load a checkpoint before you go on",)
        return error

    def leave_out(self, storage):
        """A storage leaves, and nothing brings it back."""
        loose = self._loose.get(storage._cdata)
        if loose is not None:
            self._evict(storage._cdata, loose)
            del self._loose[storage._cdata]

    def hold(self, storages):
        """Brings what storages hold, for readers; nothing leaves until release()."""
        self._bring([self._loose[storage._cdata] for storage in storages if storage._cdata in self._loose])
        self.paused += 1

    def release(self):
        self.paused -= 1

    def is_paused(self):
        return self.paused > 0

    def resume(self):
        """Takes the bytes on the device for the latest values: the job may have changed them."""
        for loose in list(self._loose.values()):
            storage = loose.storage()
            if storage is not None and loose.held is not None and storage.nbytes() > 0:
                self.adopt(loose.held, storage)
        self.paused -= 1

    def close(self):
        """Ends the runtime; what is away is lost. pause() before."""
        self.works.clear()  # they go on, and nothing moves any more
        self._process = None  # what came from the run's functions calls PyTorch's own from now on
        self.runtime.close()
