"""Published objects: objects.h over ctypes. docs/objects.md says what to expect of them."""

import contextlib
import ctypes
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from . import layouts, library
from .library import U32_MAX, U64_MAX, number_of, text_of

_PY_BUFFER_WORDS = 16  # a Py_buffer has 10
# Python acts on a signal, as Ctrl-C, between calls of the library: it waits in parts of this length.
_WAIT_S = 0.2
# Buffers' formats, as torch names the types. Before one the order of its bytes may be said.
_OWN_ORDER = "@=<" if sys.byteorder == "little" else "@=>!"
_TYPES = {"?": "bool", "b": "int8", "B": "uint8", "c": "uint8", "h": "int16", "H": "uint16",
          "i": "int32", "q": "int64", "I": "uint32", "Q": "uint64", "e": "float16", "f": "float32",
          "d": "float64", "Zf": "complex64", "Zd": "complex128"}


class _Options(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("secret", ctypes.c_char_p), ("mesh", ctypes.c_char_p), ("rank", ctypes.c_uint32),
                ("run", ctypes.c_uint64), ("versions", ctypes.c_uint32), ("link_bytes_per_s", ctypes.c_uint64),
                ("chunks", ctypes.c_uint32), ("relay", ctypes.c_char_p), ("exclusive", ctypes.c_uint32)]


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("layout", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_uint64)), ("dimensions", ctypes.c_uint32),
                ("element_bytes", ctypes.c_uint32), ("data", ctypes.c_void_p),
                ("bytes", ctypes.c_uint64)]


class Tile:
    """This rank's part of a tensor that is divided over the ranks of a mesh.

    `data`: a contiguous torch tensor on the host, or an object with a buffer, which publishers may have read-only. With
    more than one dimension it has this rank's sizes; with one, it is the tile's bytes in a row. `layout`: for each
    dimension the axes that divide it, as "dp;-". `shape`: the whole tensor's, in elements."""

    __module__ = "hyperoffload"

    def __init__(self, data: Any, layout: str, shape: Sequence[int]) -> None:
        self.data, self.layout, self.shape = data, layout, tuple(shape)


def _as_tile(name, value, mesh, rank):
    """Returns (Tile or what has all of a tensor, mesh words, rank). A DTensor brings mesh and rank along, which for
    others are "" and None until they are given."""
    if not (hasattr(value, "to_local") and hasattr(value, "device_mesh")):
        return value, mesh, rank
    own_mesh, layout = layouts.from_dtensor(value.device_mesh, value.placements, value.dim())
    own_rank = value.device_mesh.get_rank()
    if mesh and own_mesh != mesh:
        raise ValueError(f"{name}: on the mesh {own_mesh}, not on {mesh}")
    if rank is not None and own_rank != rank:
        raise ValueError(f"{name}: this process is rank {own_rank} of its mesh, not rank {rank}")
    return Tile(value.to_local(), layout, value.shape), own_mesh, own_rank


def _address_of(view):
    """Where a buffer begins, also one that is read-only, which ctypes' own types do not take. Stays so as long as `view`
    lives."""
    buffer = (ctypes.c_void_p * _PY_BUFFER_WORDS)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), buffer, 0)
    address = buffer[0]
    ctypes.pythonapi.PyBuffer_Release(buffer)
    return address


def _view_of(name, data):
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"{name}: not a tensor, and has no buffer: {error}") from error
    # Names of fields are between colons. Objects, strings of C, typed pointers and functions are addresses.
    if re.search("[OzZ&X]", re.sub(":[^:]*:", "", view.format)):
        raise ValueError(f"{name}: its elements are addresses in this process, as those of Python objects are")
    return view


def _type_of(view):
    """Not all arrays write a native type without the order of its bytes: those of ctypes do not."""
    code = view.format.lstrip(_OWN_ORDER)
    code = {"l4": "i", "l8": "q", "L4": "I", "L8": "Q"}.get(f"{code}{view.itemsize}", code)
    return _TYPES.get(code, view.format)


def _memory_of(name, data, writes):
    """Returns (what must stay alive, shape, type, element's size, bytes, address)."""
    if hasattr(data, "data_ptr"):
        if not data.is_contiguous() or data.device.type != "cpu":
            raise ValueError(f"{name}: not contiguous, or not on the host")
        # Such a tensor's memory has other values than the tensor.
        for lazy, mend in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
            if getattr(data, lazy, bool)():
                raise ValueError(f"{name}: {lazy}() is true, its memory has other values: give {mend}() of it")
        return (data, tuple(data.shape), str(data.dtype).rsplit(".", 1)[-1], data.element_size(),
                data.element_size() * data.numel(), data.data_ptr())
    view = _view_of(name, data)
    if not view.c_contiguous:
        raise ValueError(f"{name}: not contiguous")
    if writes and view.readonly:
        raise ValueError(f"{name}: its memory is read-only, and read() writes to it")
    return view, view.shape, _type_of(view), view.itemsize, view.nbytes, _address_of(view)


def _take(name, value, writes):
    """Returns (ctypes record, shape of the memory, what must stay alive). `writes`: the library writes to the memory."""
    if not isinstance(value, Tile):
        value = Tile(value, "", tuple(value.shape) if hasattr(value, "data_ptr") else _view_of(name, value).shape)
    keep, found, dtype, element, size, address = _memory_of(name, value.data, writes)
    sizes = [number_of(f"{name}: shape", size) for size in value.shape] or [1]
    shape = (ctypes.c_uint64 * len(sizes))(*sizes)
    layout = value.layout if value.shape else ""
    record = _Tensor(text_of(f"tensor {name!r}", name), text_of(f"{name}: layout", layout), text_of(f"{name}: type", dtype),
                     shape, len(shape), element, address if size else None, size)
    return record, found, (shape, keep)


_Kind = TypeVar("_Kind", bound="_Object")


class _Object:
    """A handle of the library. Any thread may call; one call at a time goes on, and close() stops it."""

    def __init__(self, pool, name, tensors, mesh, rank, secret, run=0, versions=0, link=0, chunks=0,
                 relay="", exclusive=False):
        self._lib = library.library()
        self._process, self._is_closing = os.getpid(), False
        # Reentrant: a signal's handler may close what its thread has just called.
        self._in_call, self._ending = threading.RLock(), threading.RLock()
        self._keep, self._tensors = [], []
        records = []
        tiles = {}
        for tensor_name, value in tensors.items():
            tiles[tensor_name], mesh, rank = _as_tile(tensor_name, value, mesh, rank)
        if rank is None and set(mesh.partition(":")[0].split("x")) - {"", "1"}:
            # Rank 0's part has the size of the others': nothing else would tell.
            raise ValueError(f"the mesh {mesh} has several ranks: give this one's as rank=")
        rank = rank or 0
        for tensor_name, value in tiles.items():
            record, found, keep = _take(tensor_name, value, self._WRITES)
            self._check_shape(tensor_name, record, found, text_of("mesh", mesh), number_of("rank", rank, U32_MAX))
            records.append(record)
            self._keep.append(keep)
            if hasattr(keep[1], "data_ptr"):
                self._tensors.append((tensor_name, keep[1], record.data))
        options = _Options(ctypes.sizeof(_Options), text_of("name", name), text_of("secret", secret), text_of("mesh", mesh),
                           number_of("rank", rank, U32_MAX), number_of("run", run), number_of("versions", versions, U32_MAX),
                           number_of("link", link), chunks, text_of("relay", relay), bool(exclusive))
        self._own = isinstance(pool, str)
        self._pool = library.Pool(pool, name) if self._own else pool
        self._handle = ctypes.c_void_p()
        array = (_Tensor * max(len(records), 1))(*records)
        try:
            library._check(getattr(self._lib, self._OPEN)(
                self._pool.handle, ctypes.byref(options), array, len(records),
                ctypes.byref(self._handle)))
        except BaseException:
            self._close_pool()
            raise

    def _check_shape(self, name, record, found, mesh, rank):
        """A tile that is transposed, as one of a framework with another order, has the right size and wrong values.
        Memory of one dimension is taken as it is."""
        tile = (ctypes.c_uint64 * record.dimensions)()
        if len(found) < 2 or self._lib.ho_tile_shape(mesh, rank, record.layout, record.shape, record.dimensions, tile) != 0:
            return  # what is wrong with the layout is said where the object is opened
        if tuple(tile) != tuple(found):
            raise ValueError(f"{name}: rank {rank} has {tuple(tile)} of it, the memory is {tuple(found)}")

    def _check_places(self):
        """The library knows each tensor's memory since it was opened. A tensor that leaves the device, as under
        fit(), comes back elsewhere."""
        for name, tensor, address in self._tensors:
            if (tensor.data_ptr() or None) != address:
                raise library.Error("conflict", f"{name}: its memory has moved since this was opened; copy the tensor to one "
                                     "that stays, under fit() in run.paused()")

    def _check_process(self):
        if os.getpid() != self._process:  # a fork has no threads of the library, so nothing would answer
            raise RuntimeError(f"this {type(self).__name__} is of another process, which has forked: open one here")

    def _check_open(self):
        self._check_process()
        if self._handle is None or self._is_closing:
            raise RuntimeError(f"this {type(self).__name__} is closed")

    def _call(self, function, *arguments, begins=lambda: True):
        """Calls the library, which takes one call on a handle at a time, unless `begins` says no when its turn comes."""
        self._check_open()
        with self._in_call:
            self._check_open()
            if not begins():
                return None
            try:
                return library._check(function(self._handle, *arguments))
            except library.Error:
                self._check_open()  # close() has stopped the call
                raise

    def _stop(self):
        with self._ending:
            getattr(self._lib, self._STOP)(self._handle)

    def _move(self, function, *arguments):
        """Calls what moves bytes. Python acts on a signal, as Ctrl-C, on its main thread and between calls of the
        library: another thread makes the call meanwhile. When this returns or raises, the call has ended."""
        begun, outcome = threading.Lock(), []

        def call():
            try:
                outcome.append(self._call(function, *arguments, begins=lambda: begun.acquire(blocking=False)))
            except BaseException as error:
                outcome.append(error)

        main = threading.main_thread()
        if threading.current_thread() is not main or not main.is_alive():  # at its end Python starts no threads
            self._call(function, *arguments)
            return
        try:
            thread = threading.Thread(target=call, name="hyperoffload")
            thread.start()
            thread.join()
        except BaseException:
            # The thread that takes the lock first decides whether there is a call: one that waits for another thread's
            # call does not begin, and that one goes on. A call that has begun is stopped again and again, also after
            # Ctrl-C once more: before it is in the library nothing is stopped.
            ended = False
            while not ended:
                with contextlib.suppress(BaseException):
                    while not begun.acquire(blocking=False) and not outcome:
                        self._stop()
                        time.sleep(0.01)
                    ended = True
            raise
        if outcome[0] is not None:
            raise outcome[0]

    def _close_pool(self):
        if self._own:
            self._pool.close()

    def close(self) -> None:
        """Ends it, and the connection that it made. Versions of a publisher end with it. A call of another thread is
        stopped, and raises RuntimeError, as later ones do. In a process that was forked nothing happens."""
        if os.getpid() != self._process:
            return
        self._is_closing = True
        while not self._in_call.acquire(timeout=0.01):
            self._stop()
        try:
            with self._ending:
                handle, self._handle = self._handle, None
            if handle is None:
                return
            getattr(self._lib, self._CLOSE)(handle)
            self._keep.clear()  # its buffers may be closed now
            self._tensors.clear()
            self._close_pool()
        finally:
            self._in_call.release()

    def __enter__(self: _Kind) -> _Kind:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Publisher(_Object):
    """One rank's part of an object that its program publishes.

    `pool`: an address. `tensors`: by name; a torch tensor or a buffer, whole on each rank, a DTensor,
    or a Tile. Their memory is read at each publish(). `mesh`: "4x2:dp,tp", and `rank`: this one's in it. DTensors bring
    both along, and one rank needs neither. `run`: a number that all ranks of this run have, and no other run; 0:
    drawn, for one rank. `versions` are kept at a time, until close(). `chunks`: "rows", or "grid", with which readers that need parts of rows
    fetch little more than these, and both sides copy once more. `link`: publish() takes at most so many bytes per
    second; 0: no limit. `exclusive`: of several runs one publishes a version, whatever nodes they use, and the others
    get Error "already-exists"; the pool's nodes must be listed in etcd."""

    __module__ = "hyperoffload"
    _OPEN, _CLOSE, _STOP = "ho_publisher_open", "ho_publisher_close", "ho_publisher_stop"
    _WRITES = False
    _CHUNKS = {"rows": 0, "grid": 1}

    def __init__(self, pool: str, name: str, tensors: Mapping[str, Any], *, mesh: str = "", rank: int | None = None,
                 run: int = 0, versions: int = 2, secret: str = "", chunks: str = "rows", link: int = 0,
                 exclusive: bool = False) -> None:
        if chunks not in self._CHUNKS:
            raise ValueError(f"chunks: {chunks!r} is not one of {sorted(self._CHUNKS)}")
        super().__init__(pool, name, tensors, mesh, rank, secret, run, versions, link, self._CHUNKS[chunks],
                         exclusive=exclusive)

    def publish(self, version: int) -> None:
        """Copies the tensors into the pool and makes them visible. Raises Error: "busy" where readers
        have all kept versions open; "already-exists" where another run has this version. Ctrl-C ends it within
        0.2 s, and within some seconds more where a node does not answer: then the version is not visible, and may be
        published again (the oldest one may have made room already), or it is as a whole, and publishing it raises
        Error "invalid-argument"."""
        self._check_open()
        self._check_places()
        self._move(self._lib.ho_publish, number_of("version", version))


class Subscriber(_Object):
    """One rank that reads an object into tensors of its own, under layouts of its own. `mesh`, `rank`: as for Publisher.

    `link`: read() takes at most so many bytes per second; 0: no limit.

    `relay`: axes of the mesh along which ranks have the same tiles, "gpu" or "node;gpu". Each of them then reads a part
    from the publisher, publishes it for the others, and reads the rest from them, so that the publisher sends each byte
    once. All ranks have the same `run` and read the same versions in the same order. A rank keeps its part of `versions`
    versions in the pool."""

    __module__ = "hyperoffload"
    _OPEN, _CLOSE, _STOP = "ho_subscriber_open", "ho_subscriber_close", "ho_subscriber_stop"
    _WRITES = True

    def __init__(self, pool: str, name: str, tensors: Mapping[str, Any], *, mesh: str = "", rank: int | None = None,
                 secret: str = "", link: int = 0, relay: str = "", run: int = 0, versions: int = 2) -> None:
        super().__init__(pool, name, tensors, mesh, rank, secret, run, versions, link, relay=relay)

    def acquire(self, least: int = 0, timeout: float = 0.0, most: int = U64_MAX) -> int:
        """Opens the newest complete version between two, waiting `timeout` seconds for one. Returns its
        number. Raises Error: "not-found"; "unavailable" where none is found and some node could not be asked.
        Ctrl-C ends the wait within 0.2 s. A node that does not answer makes both take some seconds more."""
        least, most = number_of("least", least), number_of("most", most)
        version = ctypes.c_uint64()
        end = time.monotonic() + timeout
        while True:
            begin = time.monotonic()
            part = max(0.0, min(end - begin, _WAIT_S))
            try:
                self._call(self._lib.ho_acquire, least, most, math.ceil(part * 1000), ctypes.byref(version))
                return version.value
            except library.Error as error:
                now = time.monotonic()
                # A call that ends early found what waiting does not mend, as a tensor that the object lacks.
                over = not now < end or now < begin + part
                if over or error.name not in ("not-found", "unavailable"):
                    raise

    def read(self) -> None:
        """Fetches the open version into the tensors, and compares checksums. Raises Error: "corrupt" where
        they differ, "conflict" where no version is open. Ctrl-C ends it within 0.2 s, and within some seconds more
        where a node does not answer. After any exception the tensors have bytes of several versions, which no later
        moment changes; the version is open, and read() fetches all of it again."""
        self._check_open()
        self._check_places()
        self._move(self._lib.ho_object_read)

    def release(self) -> None:
        """Ends the use of the acquired version: its publisher may reuse the memory. close() does so, too."""
        if os.getpid() == self._process:
            with self._in_call:
                self._lib.ho_object_release(self._handle)

    def describe(self) -> dict[str, Any] | None:
        """What the acquired version has, or the last one had: mesh, tensors, and how many bytes read() needs and
        fetches. None: no version was acquired yet."""
        self._check_open()
        with self._in_call:
            self._check_open()
            text = self._lib.ho_object_text(self._handle)
        return json.loads(text) if text else None
