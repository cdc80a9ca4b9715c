"""KV blocks that jobs share: blocks.h over ctypes, and requests that wait.

Keys are texts or bytes of any length: what goes to the library is their digest.
"""

import bisect
import contextlib
import ctypes
import hashlib
import os
import pathlib
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import library
from .library import U32_MAX, number_of, text_of

GET, PUT, EXISTS, REMOVE = range(4)
OK, NOT_FOUND, ALREADY_EXISTS, EXHAUSTED = 0, 2, 3, 7


class _Options(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("tenant", ctypes.c_char_p),
                ("secret", ctypes.c_char_p), ("model", ctypes.c_char_p),
                ("dtype", ctypes.c_char_p), ("layout", ctypes.c_char_p),
                ("rank", ctypes.c_uint32), ("salt", ctypes.c_char_p),
                ("block_bytes", ctypes.POINTER(ctypes.c_uint64)), ("block_bytes_count", ctypes.c_size_t),
                ("deadline_ms", ctypes.c_uint32)]


class _Block(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("key_bytes", ctypes.c_size_t),
                ("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("cost", ctypes.c_uint32)]


class _Done(ctypes.Structure):
    _fields_ = [("ticket", ctypes.c_uint64), ("index", ctypes.c_uint32), ("status", ctypes.c_int)]


def digest(key):
    """What the library knows a key by."""
    if isinstance(key, str):
        key = key.encode()
    elif not isinstance(key, (bytes, bytearray, memoryview)):
        raise TypeError(f"a key is a {type(key).__name__}; give a text or bytes")
    return hashlib.blake2b(key, digest_size=32).digest()


class Blocks:
    """A tenant's blocks of KV cache, which its other jobs find by key (docs/blocks.md).

        with hyperoffload.Blocks(pool, tenant="chat", model="llama-3-8b", dtype="bf16") as blocks:
            blocks.register(address, size)               # memory of blocks to come
            blocks.put([(key, address, 65536)])          # True for each block that is stored
            found, pin = blocks.match(chain)             # how many leading keys are stored
            blocks.get([(key, address, 65536)])          # True for each block whose bytes are there
            blocks.unpin(pin)

    Keys are texts or bytes of any length. An item of get() and put() is (key, address, bytes): memory of the host, which
    stays where it is until the outcome. A get writes it, a put only reads it. register() registers it for all requests;
    else each request does so for itself, and copies what overlaps memory of another one that has not ended.

    submit(), poll() and take() do the same without waiting: when the descriptor `event_fd` is readable, poll() returns
    the tickets that have ended. Outcomes are OK, NOT_FOUND (a miss, whatever its cause), EXHAUSTED (a put found no
    room), and others, as numbers that status_name() names.

    A node does not evict what is being written. So puts that find no room are put once more when all others of their
    request have ended.

    `tenant`, `secret`, `model`, `dtype`, `layout`, `rank`, `salt`, `deadline_ms`: as in blocks.h. `secret_file` holds
    the secret, for configurations that others see or that are logged. `block_bytes`: 1 to 16 sizes, others are refused;
    none: any. `name`: of the job, for people. `make_room`: is called before puts are put once more, to end pins; it must
    not raise.

    Any thread may call anything. close() ends requests that are under way after a while; from then on calls raise
    RuntimeError, those that wait, too. take() gives what has ended before. Raises Error, ValueError and TypeError.
    """

    __module__ = "hyperoffload"
    GET, PUT, EXISTS, REMOVE = GET, PUT, EXISTS, REMOVE
    OK, NOT_FOUND, EXHAUSTED = OK, NOT_FOUND, EXHAUSTED

    def __init__(self, pool: str, *, tenant: str = "default", secret: str = "", model: str = "", dtype: str = "",
                 layout: str = "", rank: int = 0, salt: str = "", deadline_ms: int = 0, name: str = "blocks",
                 secret_file: str | os.PathLike[str] = "", block_bytes: Sequence[int] = (),
                 make_room: Callable[[], Any] | None = None) -> None:
        if secret_file:
            if secret:
                raise ValueError("give secret or secret_file, not both")
            secret = pathlib.Path(secret_file).read_text(encoding="utf-8").strip()
        texts = [text_of(*each) for each in (("tenant", tenant), ("secret", secret), ("model", model), ("dtype", dtype),
                                             ("layout", layout))]
        sizes = [number_of("block_bytes", size) for size in block_bytes]
        options = _Options(ctypes.sizeof(_Options), *texts, number_of("rank", rank, U32_MAX), text_of("salt", salt),
                           (ctypes.c_uint64 * len(sizes))(*sizes) if sizes else None, len(sizes),
                           number_of("deadline_ms", deadline_ms, U32_MAX))
        self._lib = library.library()
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._is_closing, self._closed = False, threading.Event()
        self._pool = library.Pool(pool, name)
        self._handle = ctypes.c_void_p()
        self._open = {}    # outcomes by ticket, None where there is none yet
        self._left = {}    # items without an outcome by ticket
        self._memory = {}  # (begin, end) of registered memory by ticket, for one request
        self._held = {}    # [requests, copy of the bytes or None] by (begin, end)
        self._copied = {}  # (its own memory, the copy's, bytes) by ticket and item of a get
        self._puts = {}    # items by ticket of a put that was not tried again
        self._again = {}   # (ticket, its items) by the library's ticket of the second try
        self._make_room = make_room
        self._begins, self._ends = [], []  # what register() was given, sorted
        try:
            library._check(self._lib.ho_blocks_open(
                self._pool.handle, ctypes.byref(options), ctypes.byref(self._handle)))
        except BaseException:
            self._pool.close()
            raise
        self.event_fd = self._lib.ho_blocks_event_fd(self._handle)

    @contextlib.contextmanager
    def _locked(self):
        # A fork has no threads of the library, so nothing would answer, and none that would open the lock.
        if os.getpid() != self._process:
            raise RuntimeError("the blocks are of another process, which has forked: open some here")
        with self._lock:
            yield

    def _check_open(self, begins=False):
        if self._handle is None or (begins and self._is_closing):
            raise RuntimeError("the blocks are closed")

    def register(self, address: int, size: int) -> None:
        """Registers memory of `size` bytes for all requests to come, until close()."""
        with self._locked():
            self._check_open()
            library._check(self._lib.ho_register(self._pool.handle, address, size))
            at = bisect.bisect(self._begins, address)
            self._begins.insert(at, address)
            self._ends.insert(at, address + size)

    def submit(self, op: int, items: Sequence[Any], cost: int = 1) -> int:
        """Starts GET or PUT of (key, address, bytes), or EXISTS or REMOVE of keys; 65536 at most. Returns the ticket,
        whose outcomes take() gives. `cost`: of making the blocks of a put again, relative to others; those with a higher
        cost are evicted later. Raises Error "busy" where 65536 are submitted and have not ended."""
        cost = number_of("cost", cost, U32_MAX)
        array = (_Block * len(items))()
        spans = {}  # items by memory that is not registered
        for at, item in enumerate(items):
            key, address, size = item if op in (GET, PUT) else (item, None, 0)
            if address is not None and size <= 0:
                raise ValueError(f"the memory of {key!r} has {size} bytes")
            array[at] = _Block(digest(key), 32, address, size, cost)
            if address is not None and not self._registered(address, size):
                spans.setdefault((address, address + size), []).append(at)
        ticket = ctypes.c_uint64()
        held, copied = [], {}
        with self._locked():
            self._check_open(begins=True)
            try:
                for span, those in spans.items():
                    held.append(self._hold(span))
                    for at in those:
                        array[at].data = held[-1][0]
                        if op == GET and held[-1] != span:
                            copied[at] = span[0], held[-1][0], span[1] - span[0]
                library._check(self._lib.ho_blocks_submit(self._handle, op, array, len(items),
                                                          ctypes.byref(ticket)))
            except BaseException:
                self._let_go(held)
                raise
            self._open[ticket.value] = [None] * len(items)
            self._left[ticket.value] = len(items)
            self._memory[ticket.value] = held
            if copied:
                self._copied[ticket.value] = copied
            if op == PUT:
                self._puts[ticket.value] = array
        return ticket.value

    def _registered(self, address, size):
        at = bisect.bisect(self._begins, address) - 1
        return at >= 0 and address + size <= self._ends[at]

    def _hold(self, span):
        """Registers memory for a request. Returns where it is: what overlaps another request's is copied."""
        if span in self._held:
            self._held[span][0] += 1
            return span
        copy = None
        status = self._lib.ho_register(self._pool.handle, span[0], span[1] - span[0])
        if status == ALREADY_EXISTS:
            copy = ctypes.create_string_buffer(ctypes.string_at(span[0], span[1] - span[0]), span[1] - span[0])
            span = ctypes.addressof(copy), ctypes.addressof(copy) + len(copy)
            status = self._lib.ho_register(self._pool.handle, span[0], len(copy))
        library._check(status)
        self._held[span] = [1, copy]
        return span

    def _let_go(self, held):
        for span in held:
            self._held[span][0] -= 1
            if self._held[span][0] == 0:
                self._lib.ho_unregister(self._pool.handle, span[0])
                del self._held[span]

    def poll(self) -> list[int]:
        """Takes in what is done. Does not wait. Returns the tickets that have ended."""
        done = (_Done * 256)()
        ended = []
        with self._locked():
            self._check_open()
            while True:
                count = self._lib.ho_blocks_drain(self._handle, done, len(done))
                for one in done[:count]:
                    ticket = self._settle(one)
                    if ticket is not None:
                        ended.append(ticket)
                if count < len(done):
                    return ended

    def _settle(self, one):
        """Takes in one outcome. Returns the ticket that ends with it, or None."""
        ticket, items = self._again.get(one.ticket, (one.ticket, None))
        at = one.index if items is None else items[one.index]
        self._open[ticket][at] = one.status
        if one.status == OK and (copied := self._copied.get(ticket, {}).get(at)) is not None:
            ctypes.memmove(*copied)
        self._left[ticket] -= 1
        if self._left[ticket] > 0 or self._try_again(ticket):
            return None
        self._again.pop(one.ticket, None)
        del self._left[ticket]
        self._copied.pop(ticket, None)
        self._let_go(self._memory.pop(ticket))
        return ticket

    def _try_again(self, ticket):
        """Puts once more what found no room: the others of the request are stored, and can be evicted. Returns whether
        there is something to wait for."""
        array = self._puts.pop(ticket, None)
        if array is None:
            return False
        items = [at for at, status in enumerate(self._open[ticket]) if status == EXHAUSTED]
        if not items:
            return False
        if self._make_room is not None:
            try:
                self._make_room()
            except Exception:
                return False  # the outcomes of other requests are yet to be taken in
        again = (_Block * len(items))(*(array[at] for at in items))
        second = ctypes.c_uint64()
        if self._lib.ho_blocks_submit(self._handle, PUT, again, len(again), ctypes.byref(second)) != OK:
            return False
        self._again[second.value] = ticket, items
        self._left[ticket] = len(items)
        return True

    def take(self, ticket: int) -> list[int] | None:
        """The outcomes of a ticket that has ended, by item, which ends it; None: it has not. Raises KeyError."""
        with self._locked():
            if ticket in self._left:
                return None
            if ticket not in self._open:
                raise KeyError(f"no request has the ticket {ticket}, or its outcomes were taken")
            return self._open.pop(ticket)

    def wait(self, ticket: int) -> list[int]:
        """Waits for the outcomes of a ticket, by item, which ends it. Other threads may do the same."""
        while True:
            outcomes = self.take(ticket)
            if outcomes is not None:
                return outcomes
            self.poll()
            outcomes = self.take(ticket)
            if outcomes is not None:
                return outcomes
            # Another thread may take in our outcome, so the wait is short.
            self.wait_for_news(0.005)

    def wait_for_news(self, seconds: float) -> None:
        """Returns when poll() may have something, or the time is up."""
        descriptor = self.event_fd
        if descriptor < 0:
            raise RuntimeError("the blocks are closed")
        poller = select.poll()  # unlike select(), it takes descriptors from 1024 on
        poller.register(descriptor, select.POLLIN)
        poller.poll(seconds * 1000)

    def run(self, op: int, items: Sequence[Any], cost: int = 1) -> list[bool]:
        """submit(), and waits. Returns for each item whether it went well."""
        if not items:
            return []
        return [status == OK for status in self.wait(self.submit(op, items, cost))]

    def put(self, items: Sequence[tuple[str | bytes, int, int]], cost: int = 1) -> list[bool]:
        """Stores blocks and waits. Returns for each whether it is stored, now or before. `cost`: as for submit()."""
        return self.run(PUT, items, cost)

    def get(self, items: Sequence[tuple[str | bytes, int, int]]) -> list[bool]:
        """Gets blocks and waits. Returns for each whether its memory has the bytes that were put."""
        return self.run(GET, items)

    def exists(self, keys: Sequence[str | bytes]) -> list[bool]:
        """Returns for each key whether its block is stored. Waits."""
        return self.run(EXISTS, keys)

    def remove(self, keys: Sequence[str | bytes]) -> list[bool]:
        """Removes blocks and waits. Returns for each key whether it was stored and is removed."""
        return self.run(REMOVE, keys)

    @staticmethod
    def status_name(status: int) -> str:
        """The name of an outcome, as "exhausted"."""
        return library.status_name(status)

    def match(self, keys: Sequence[str | bytes]) -> tuple[int, int]:
        """Returns how many leading keys are stored, and the pin that keeps them from being evicted, until unpin() or for
        30 s; 0: nothing is pinned. Waits for the nodes, 2 s at most."""
        array = (_Block * max(len(keys), 1))()
        for at, key in enumerate(keys):
            array[at] = _Block(digest(key), 32, None, 0, 0)
        found, pin = ctypes.c_size_t(), ctypes.c_uint64()
        with self._locked():
            self._check_open()
            library._check(self._lib.ho_blocks_match(self._handle, array, len(keys),
                                                     ctypes.byref(found), ctypes.byref(pin)))
        return found.value, pin.value

    def unpin(self, pin: int) -> None:
        """Ends a pin of match(); 0: there is none to end. Raises Error "not-found" where there is no such pin."""
        pin = number_of("pin", pin)
        with self._locked():
            self._check_open()
            if pin != 0:
                library._check(self._lib.ho_blocks_unpin(self._handle, pin))

    def __enter__(self) -> "Blocks":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self, patience_s: float = 10.0) -> None:
        """Waits for what is under way, `patience_s` seconds at most, and disconnects. In a process that was forked nothing
        happens."""
        if os.getpid() != self._process:
            return
        with self._locked():
            is_first, self._is_closing = not self._is_closing, True
        if not is_first:
            self._closed.wait(patience_s + 1)
            return
        try:
            end = time.monotonic() + patience_s
            while self._left and time.monotonic() < end:
                self.poll()
                time.sleep(0.001)
        finally:
            with self._locked():
                handle, self._handle, self.event_fd = self._handle, None, -1
                self._lib.ho_blocks_close(handle)
                self._pool.close()
            self._closed.set()
