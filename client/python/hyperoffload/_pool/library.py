"""The part of hyperoffload.h that the package uses, over ctypes.

Each class owns one handle of the C API; `close()` ends it. A call that fails raises `Error` with the
library's own text. The library is searched in the package, then at HYPEROFFLOAD_LIBRARY, then by
the loader.
"""

import atexit
import ctypes
import logging
import operator
import os
import pathlib
import time
from typing import SupportsIndex

PACKAGE = pathlib.Path(__file__).absolute().parents[1]
U32_MAX, U64_MAX = 2 ** 32 - 1, 2 ** 64 - 1
_NAME = "libhyperoffload.so.0"
_TAKE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
_DROP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
_LINE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
# By ho_log_level.
_LEVELS = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
# What a link is measured with: the first of these sizes, times 4 each, that takes so long.
_FIRST_BYTES, _LONG_ENOUGH_S = 256 << 10, 0.05


class Error(RuntimeError):
    """A call of the library failed: the pool cannot be reached, has no room, or has lost values.

    name: the status, as "unavailable" or "exhausted"; `hyperoffload explain-error NAME` says what to do.
    """

    __module__ = "hyperoffload"
    name: str

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}" if text else name)
        self.name = name


class _ConnectOptions(ctypes.Structure):
    # The struct grows at its end, and struct_bytes says how much of it we know.
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("pool", ctypes.c_char_p),
                ("name", ctypes.c_char_p), ("transport", ctypes.c_char_p),
                ("op_deadline_ms", ctypes.c_uint32), ("ucx_module", ctypes.c_char_p),
                ("ofi_provider", ctypes.c_char_p), ("ofi_domain", ctypes.c_char_p),
                ("ofi_interface", ctypes.c_char_p), ("ofi_allow_emulation", ctypes.c_uint32),
                ("connections", ctypes.c_uint32), ("tcp_interface", ctypes.c_char_p),
                ("ucx_devices", ctypes.c_char_p), ("ucx_transports", ctypes.c_char_p),
                ("ucx_allow_emulation", ctypes.c_uint32), ("local_threads", ctypes.c_uint32),
                ("local_numa", ctypes.c_char_p), ("link_bytes_per_s", ctypes.c_uint64),
                ("tls", ctypes.c_char_p), ("repair_after_ms", ctypes.c_uint32),
                ("wait_ms", ctypes.c_uint64)]


class _DeviceMemory(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("arena", ctypes.c_void_p),
                ("arena_bytes", ctypes.c_size_t), ("take", _TAKE), ("drop", _DROP),
                ("context", ctypes.c_void_p), ("kind", ctypes.c_uint32),
                ("ordinal", ctypes.c_uint32), ("stream", ctypes.c_void_p),
                ("cuda_library", ctypes.c_char_p), ("copies", ctypes.c_uint32)]


# ho_nearness.
NEAR, FAR = 1, 2


class Room(ctypes.Structure):
    """ho_pool_room."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("nodes", ctypes.c_uint32),
                ("failure_domains", ctypes.c_uint32), ("ddr_bytes", ctypes.c_uint64),
                ("flash_bytes", ctypes.c_uint64)]


class PoolNotice(ctypes.Structure):
    """ho_pool_notice."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("drained_nodes", ctypes.c_uint32),
                ("ending_nodes", ctypes.c_uint32), ("ending_ms", ctypes.c_uint64),
                ("changes", ctypes.c_uint64)]


class Counters(ctypes.Structure):
    """ho_counters, as far as the package reads it."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("steps", ctypes.c_uint64),
                ("stall_ns", ctypes.c_uint64), ("prefetch_bytes", ctypes.c_uint64),
                ("store_bytes", ctypes.c_uint64), ("last_step_ns", ctypes.c_uint64),
                ("last_step_stall_ns", ctypes.c_uint64)]


class RuntimeCounters(ctypes.Structure):
    """ho_runtime_counters."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), *((name, ctypes.c_uint64) for name in (
        "runs", "steps_left", "fetched_bytes", "stored_bytes", "device_bytes", "peak_device_bytes",
        "doubled_storages", "halved_storages", "repaired_storages")),
                ("nodes", ctypes.c_uint32), ("nodes_lost", ctypes.c_uint32), ("ddr_bytes", ctypes.c_uint64)]


class ScheduleNeeds(ctypes.Structure):
    """ho_schedule_needs, as far as the package reads it."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), *((name, ctypes.c_uint64) for name in (
        "arena_bytes", "device_budget_bytes", "align_bytes", "local_ddr_bytes", "remote_ddr_bytes",
        "flash_bytes", "persistent_bytes", "input_bytes", "step_ns", "stall_ns"))]


class Span(ctypes.Structure):
    """ho_span: what an op or a cache op did in the last complete step."""
    _fields_ = [("start_ns", ctypes.c_uint64), ("end_ns", ctypes.c_uint64),
                ("stall_ns", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
                ("queued_ns", ctypes.c_uint64)]


class StorageState(ctypes.Structure):
    """ho_storage_state: where a storage's latest value is."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("bytes", ctypes.c_uint64),
                ("memory", ctypes.c_void_p), ("on_device", ctypes.c_uint32),
                ("at_home", ctypes.c_uint32)]


def _find():
    beside = PACKAGE / _NAME
    if beside.exists():
        return str(beside)
    return os.environ.get("HYPEROFFLOAD_LIBRARY") or _NAME


def _load():
    path = _find()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"cannot load {path}: {error}. Install HyperOffload, or set "
                          f"HYPEROFFLOAD_LIBRARY to the path of {_NAME}") from error
    handle, size, number, wide = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64
    text, status = ctypes.c_char_p, ctypes.c_int
    for result, functions in {
            status: {
                "ho_connect": [handle, handle], "ho_disconnect": [handle], "ho_set_log": [ctypes.c_int, _LINE, handle],
                "ho_allocate_among": [handle, ctypes.c_int, wide, handle], "ho_register": [handle, handle, size],
                "ho_pool_get_room": [handle, ctypes.c_int, handle], "ho_pool_get_notice": [handle, handle],
                "ho_flash_allocate": [handle, wide, ctypes.c_int, handle], "ho_flash_free": [handle, handle],
                "ho_allocate_beside": [handle, handle, wide, handle],
                "ho_stage_in": [handle, handle, wide, handle, wide, wide, handle],
                "ho_stage_out": [handle, handle, wide, handle, wide, wide, handle],
                "ho_unregister": [handle, handle], "ho_get": [handle, handle, wide, handle, size, handle],
                "ho_put": [handle, handle, wide, handle, size, handle], "ho_wait": [handle, wide],
                "ho_open": [handle, handle, handle], "ho_load": [handle, handle, size, handle],
                "ho_unload": [handle], "ho_schedule_info": [handle, size, handle], "ho_sync": [handle],
                "ho_step_begin": [handle], "ho_before": [handle, number], "ho_after": [handle, number],
                "ho_step_end": [handle], "ho_leave": [handle], "ho_storage_of": [handle, number, handle],
                "ho_adopt": [handle, number, handle], "ho_fetch": [handle, number, handle],
                "ho_evict": [handle, number], "ho_forget": [handle, number],
                "ho_peek": [handle, number, handle, size], "ho_declare": [handle, handle, wide, handle],
                "ho_undeclare": [handle, number], "ho_get_storage": [handle, number, handle],
                "ho_get_counters": [handle, handle], "ho_get_runtime_counters": [handle, handle],
                "ho_get_timeline": [handle, handle, handle],
                "ho_blocks_open": [handle, handle, handle], "ho_blocks_close": [handle],
                "ho_blocks_submit": [handle, ctypes.c_int, handle, size, handle], "ho_blocks_event_fd": [handle],
                "ho_blocks_match": [handle, handle, size, handle, handle], "ho_blocks_unpin": [handle, wide],
                "ho_tile_shape": [text, number, text, handle, number, handle],
                "ho_publisher_open": [handle, handle, handle, size, handle], "ho_publish": [handle, wide],
                "ho_subscriber_open": [handle, handle, handle, size, handle],
                "ho_acquire": [handle, wide, wide, number, handle], "ho_object_read": [handle]},
            None: {"ho_free": [handle, handle], "ho_close": [handle], "ho_publisher_close": [handle],
                   "ho_publisher_stop": [handle], "ho_subscriber_close": [handle], "ho_subscriber_stop": [handle],
                   "ho_object_release": [handle]},
            number: {"ho_cache_op_count": [handle], "ho_position_count": [handle]},
            size: {"ho_blocks_drain": [handle, handle, size]},
            text: {"ho_last_error": [], "ho_status_name": [status], "ho_object_text": [handle]}}.items():
        for name, arguments in functions.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    return library


_library = None


def library():
    """The loaded library; loads it at the first call. Raises ImportError."""
    global _library
    if _library is None:
        _library = _load()
    return _library


@_LINE
def _to_logging(_, level, text):
    logging.getLogger("hyperoffload").log(_LEVELS[level], "%s", text.decode(errors="replace"))


def use_logging() -> None:
    """Sends the library's log lines to the logger "hyperoffload" of `logging`, in place of stderr. Handlers run on any
    thread, and must not call this package."""
    _check(library().ho_set_log(0, _to_logging, None))
    # Threads of the library that log later would find no interpreter. A forked child has none of them.
    atexit.register(lambda owner: os.getpid() == owner and _library.ho_set_log(3, _LINE(), None), os.getpid())


use_logging.__module__ = "hyperoffload"


def status_name(status):
    """The name of a status, as "exhausted"."""
    return library().ho_status_name(status).decode()


def _check(status):
    if status != 0:
        raise Error(status_name(status), _library.ho_last_error().decode())


def check_kind(name, value, kind, words):
    """Raises TypeError where an argument is not what it has to be. words: how to say that."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is a {type(value).__name__}; give {words}")


def text_of(name, value):
    """What C takes for a text, which a NUL would end."""
    check_kind(name, value, str, "a text")
    if "\0" in value:
        raise ValueError(f"{name} has a NUL in it")
    return value.encode()


def number_of(name, value, most=U64_MAX):
    """ctypes would cut a number that a field has no room for."""
    check_kind(name, value, SupportsIndex, "a whole number")
    if not 0 <= operator.index(value) <= most:
        raise ValueError(f"{name} is {value}; write a number from 0 to {most}")
    return operator.index(value)


def _repair_after_ms():
    text = os.environ.get("HYPEROFFLOAD_REPAIR_AFTER_MS", "0")
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise ValueError(f"HYPEROFFLOAD_REPAIR_AFTER_MS is {text!r}; write milliseconds, as 60000")
    return int(text)


class Pool:
    """A job's sessions on all nodes of a pool."""

    def __init__(self, address, name, wait_s=0, link=0):
        options = _ConnectOptions(struct_bytes=ctypes.sizeof(_ConnectOptions),
                                  pool=address.encode(), name=name.encode(),
                                  tls=os.environ.get("HYPEROFFLOAD_TLS", "").encode(),
                                  repair_after_ms=_repair_after_ms(), wait_ms=int(wait_s * 1000),
                                  link_bytes_per_s=link)
        self.handle = ctypes.c_void_p()
        lib = library()
        try:
            _check(lib.ho_connect(ctypes.byref(options), ctypes.byref(self.handle)))
        except Error as error:
            if ": connect: " in str(error):
                error.args = (f"{error}. hyperoffloadd may not run there, or listens at another address",)
            raise

    def room(self, nodes):
        """Returns what NEAR or FAR nodes can give to jobs now."""
        room = Room(struct_bytes=ctypes.sizeof(Room))
        _check(library().ho_pool_get_room(self.handle, nodes, ctypes.byref(room)))
        return room

    def notice(self):
        """Returns PoolNotice: what daemons have told of nodes that the job should leave. Does not wait."""
        notice = PoolNotice(struct_bytes=ctypes.sizeof(PoolNotice))
        _check(library().ho_pool_get_notice(self.handle, ctypes.byref(notice)))
        return notice

    def measure(self, nodes, size, least, times=3):
        """Moves up to `size` bytes to NEAR or FAR nodes and back, or `least` where they have no room for more: other
        ranks may measure at the same time. Returns (put, get) in bytes/s, the best of all."""
        try:
            return self._measure(nodes, size, times)
        except Error as error:
            if error.name != "exhausted" or size <= least:
                raise
            return self.measure(nodes, max(least, size // 4), least, times)

    def _measure(self, nodes, size, times):
        lib = library()
        buffer = ctypes.create_string_buffer(size)
        address = ctypes.addressof(buffer)
        memory, ticket = ctypes.c_void_p(), ctypes.c_uint64()
        _check(lib.ho_allocate_among(self.handle, nodes, size, ctypes.byref(memory)))
        try:
            _check(lib.ho_register(self.handle, address, size))
            try:
                def took(move, moved):
                    begun = time.perf_counter()
                    _check(move(self.handle, memory, 0, address, moved, ctypes.byref(ticket)))
                    _check(lib.ho_wait(self.handle, ticket))
                    return time.perf_counter() - begun

                moved = min(size, _FIRST_BYTES)
                while took(lib.ho_put, moved) < _LONG_ENOUGH_S and moved < size:
                    moved = min(size, 4 * moved)
                return tuple(moved / min(took(move, moved) for _ in range(times))
                             for move in (lib.ho_put, lib.ho_get))
            finally:
                lib.ho_unregister(self.handle, address)
        finally:
            lib.ho_free(self.handle, memory)

    def measure_flash(self, size, times=3):
        """Moves `size` bytes between flash and memory beside it. Returns (out, in) in bytes/s, the best of all."""
        lib, flash, memory, ticket = library(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()

        def took(move):
            begun = time.perf_counter()
            _check(move(self.handle, flash, 0, memory, 0, size, ctypes.byref(ticket)))
            _check(lib.ho_wait(self.handle, ticket))
            return time.perf_counter() - begun

        _check(lib.ho_flash_allocate(self.handle, size, 0, ctypes.byref(flash)))
        try:
            _check(lib.ho_allocate_beside(self.handle, flash, size, ctypes.byref(memory)))
            try:
                return tuple(size / min(took(move) for _ in range(times))
                             for move in (lib.ho_stage_out, lib.ho_stage_in))
            finally:
                lib.ho_free(self.handle, memory)
        finally:
            _check(lib.ho_flash_free(self.handle, flash))

    def measure_device(self, device, size, times=3):
        """Moves `size` bytes from a device to the nodes that values go to first, and back. Returns (put, get) in
        bytes/s, the best of all. device: devices.Device."""
        try:
            storage = device.new_storage(size)
        except RuntimeError as error:  # no memory on the device
            raise Error("exhausted", f"measuring the link takes {size} bytes of the device: {error}") from error

        def take(_, size):
            try:
                device.resize(storage, size)
            except RuntimeError:
                return None
            return storage.data_ptr()

        runtime = Runtime(self, take, lambda _: device.resize(storage, 0), 1, device)
        try:
            held = runtime.declare(size)

            def took(move):
                begun = time.perf_counter()
                move(held)
                return time.perf_counter() - begun

            best = [float("inf")] * 2
            for _ in range(1 + times):  # the first one also takes memory in the pool
                runtime.adopt(held, storage.data_ptr())
                best = [min(pair) for pair in zip(best, (took(runtime.evict), took(runtime.fetch)))]
            return tuple(size / seconds for seconds in best)
        finally:
            runtime.close()

    def close(self):
        """Gives back all that the job holds in the pool."""
        handle, self.handle = self.handle, None
        if handle is not None:
            _check(library().ho_disconnect(handle))


class Runtime:
    """A runtime whose device bytes the job places. `take(storage, bytes) -> address or None` and
    `drop(storage)` are called on the thread that calls, inside its calls, and must not raise. copies:
    homes of what no plan has given homes. device: the devices.Device whose memory it is."""

    def __init__(self, pool, take, drop, copies, device):
        # ctypes frees a callback that nothing refers to.
        self._take = _TAKE(lambda _, storage, size: take(storage, size))
        self._drop = _DROP(lambda _, storage, memory: drop(storage))
        memory = _DeviceMemory(struct_bytes=ctypes.sizeof(_DeviceMemory), take=self._take,
                               drop=self._drop, copies=copies, kind=device.kind, ordinal=device.ordinal,
                               stream=device.stream,
                               cuda_library=device.library and device.library.encode())
        self.handle = ctypes.c_void_p()
        _check(library().ho_open(pool.handle, ctypes.byref(memory), ctypes.byref(self.handle)))

    def adopt(self, storage, address):
        _check(_library.ho_adopt(self.handle, storage, address))

    def fetch(self, storage):
        _check(_library.ho_fetch(self.handle, storage, None))

    def evict(self, storage):
        _check(_library.ho_evict(self.handle, storage))

    def forget(self, storage):
        """Its memory on the device is no longer known by this number."""
        _check(_library.ho_forget(self.handle, storage))

    def peek(self, storage, address, size):
        """Within a step: copies the latest value of a storage of its plan to an address."""
        _check(_library.ho_peek(self.handle, storage, address, size))

    def declare(self, size):
        """The number of a new storage that no plan has, without a value until adopt()."""
        number = ctypes.c_uint32()
        _check(_library.ho_declare(self.handle, None, size, ctypes.byref(number)))
        return number.value

    def undeclare(self, storage):
        _check(_library.ho_undeclare(self.handle, storage))

    def counters(self):
        counters = RuntimeCounters(struct_bytes=ctypes.sizeof(RuntimeCounters))
        _check(_library.ho_get_runtime_counters(self.handle, ctypes.byref(counters)))
        return counters

    def state(self, storage):
        state = StorageState(struct_bytes=ctypes.sizeof(StorageState))
        _check(_library.ho_get_storage(self.handle, storage, ctypes.byref(state)))
        return state

    def close(self):
        """Ends the runtime and its plans; storages on the device stay there."""
        handle, self.handle = self.handle, None
        if handle is not None:
            _library.ho_close(handle)


def schedule_info(schedule):
    """ScheduleNeeds of the bytes of a .hos file."""
    needs = ScheduleNeeds(struct_bytes=ctypes.sizeof(ScheduleNeeds))
    _check(library().ho_schedule_info(schedule, len(schedule), ctypes.byref(needs)))
    return needs


class Plan:
    """A schedule loaded for a runtime, whose close() ends it too."""

    def __init__(self, runtime, schedule):
        self.handle = ctypes.c_void_p()
        _check(_library.ho_load(runtime.handle, schedule, len(schedule), ctypes.byref(self.handle)))
        self._begun_ns = self._last_begun_ns = 0  # the last step, and the last complete one

    def storage_of(self, storage_id):
        """The number of a storage in the runtime, by its id in the graph."""
        number = ctypes.c_uint32()
        _check(_library.ho_storage_of(self.handle, storage_id, ctypes.byref(number)))
        return number.value

    def step_begin(self):
        _check(_library.ho_step_begin(self.handle))
        self._begun_ns = time.time_ns()

    def before(self, position):
        status = _library.ho_before(self.handle, position)
        if status != 0:
            _check(status)

    def after(self, position):
        status = _library.ho_after(self.handle, position)
        if status != 0:
            _check(status)

    def step_end(self):
        _check(_library.ho_step_end(self.handle))
        self._last_begun_ns = self._begun_ns

    def leave(self):
        _check(_library.ho_leave(self.handle))

    def close(self):
        """Ends the plan between its steps; persistent values stay where they are."""
        handle, self.handle = self.handle, None
        if handle is not None:
            _library.ho_unload(handle)

    def counters(self):
        counters = Counters(struct_bytes=ctypes.sizeof(Counters))
        _check(_library.ho_get_counters(self.handle, ctypes.byref(counters)))
        return counters

    def timeline(self):
        """Returns (begin by time.time_ns(), spans of ops by position, spans of cache ops) of the last complete
        step; spans count from its begin."""
        ops = (Span * _library.ho_position_count(self.handle))()
        cache_ops = (Span * _library.ho_cache_op_count(self.handle))()
        _check(_library.ho_get_timeline(self.handle, ops, cache_ops))
        return self._last_begun_ns, ops, cache_ops
