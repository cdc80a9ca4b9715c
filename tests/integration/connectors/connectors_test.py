"""The connectors of serving frameworks against a real daemon: each framework's order of calls, as its own code makes
them, without the framework. hyperoffload blocks shows what they stored."""
import concurrent.futures
import ctypes
import json
import logging
import os
import pathlib
import resource
import select
import subprocess
import sys
import tempfile
import threading
import time
import types

cli, daemon, library, package = sys.argv[1:5]
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
BLOCK = 64 << 10


def run(*words):
    return subprocess.run([cli, *words, "--pool", pool], capture_output=True, text=True, timeout=60)


def content(number, size=BLOCK):
    return bytes((number * 31 + i) % 251 for i in range(256)) * (size // 256)


class LMCacheClient:
    """What LMCache's ConnectorClientBase does with a native client: a reader of the descriptor, futures by id."""

    def __init__(self, native):
        self.native, self.pending, self.lock, self.errors = native, {}, threading.RLock(), []
        self.stop = False
        self.thread = threading.Thread(target=self.demultiplex)
        self.thread.start()

    def demultiplex(self):
        poller = select.poll()
        poller.register(int(self.native.event_fd()), select.POLLIN)
        while not self.stop:
            if not poller.poll(100):
                continue
            with self.lock:
                for future, ok, error, bools in self.native.drain_completions():
                    assert isinstance(future, int) and isinstance(error, str)
                    assert ok == (error == ""), error
                    self.errors.append(error)
                    self.pending.pop(future).set_result((ok, bools))

    def call(self, submit, *arguments):
        with self.lock:
            future = concurrent.futures.Future()
            self.pending[int(submit(*arguments))] = future
        return future

    def close(self):
        self.stop = True
        self.thread.join()
        self.native.close()


def lmcache():
    from hyperoffload.connectors.lmcache import Connector
    client = LMCacheClient(Connector(pool=pool, tenant="lmcache", model="m"))
    try:
        native = client.native
        keys = [f"m@{i}@chunk" for i in range(20)]
        stored = [memoryview(bytearray(content(i))) for i in range(20)]
        assert client.call(native.submit_batch_exists, keys).result(10) == (True, [False] * 20)
        assert client.call(native.submit_batch_set, keys[:15], stored[:15]).result(10) == (True, [True] * 15)
        assert client.call(native.submit_batch_exists, keys).result(10)[1] == [True] * 15 + [False] * 5
        loaded = [memoryview(bytearray(BLOCK)) for _ in keys]
        ok, bools = client.call(native.submit_batch_get, keys, loaded).result(10)
        assert not ok and bools == [True] * 15 + [False] * 5, bools
        assert all(bytes(loaded[i]) == content(i) for i in range(15))
        # Several at a time, of which two share a buffer.
        again = [client.call(native.submit_batch_get, [keys[0]], [loaded[0]]) for _ in range(8)]
        assert all(future.result(10) == (True, [True]) for future in again)
        assert client.call(native.submit_batch_delete, keys[:2]).result(10) == (True, [True, True])
        assert client.call(native.submit_batch_exists, keys[:3]).result(10)[1] == [False, False, True]
        # A block that is not there need not be removed.
        assert client.call(native.submit_batch_delete, keys[:1]).result(10) == (True, [False])
        # A put only reads: buffers may overlap, within a request and between those in flight, and be read-only.
        whole = memoryview(bytearray(content(1) + content(2)))
        parts = [whole[at:at + BLOCK] for at in range(0, BLOCK, 4096)]
        sets = [client.call(native.submit_batch_set, [f"part {at}" for at in some], [parts[at] for at in some])
                for some in (range(8), range(8, 16))]
        sets.append(client.call(native.submit_batch_set, ["read-only"], [content(3)]))
        assert [future.result(10)[0] for future in sets] == [True] * 3
        names = [f"part {at}" for at in range(16)] + ["read-only"]
        loaded = [memoryview(bytearray(BLOCK)) for _ in names]
        assert client.call(native.submit_batch_get, names, loaded).result(10)[0]
        assert loaded == parts + [content(3)]
        assert client.call(native.submit_batch_get, names[-1:], [content(3)]).result(10)[0] is False
        assert client.call(native.submit_batch_delete, names).result(10)[0]
        # Buffers that gets write may overlap, too: each end has its own block's bytes.
        whole = memoryview(bytearray(BLOCK + 4096))
        both = [whole[:BLOCK], whole[4096:]]
        with client.lock:  # nothing of them ends before the last begins
            gets = [client.call(native.submit_batch_get, [key], [part]) for key, part in zip(keys[2:4], both)]
            gets.append(client.call(native.submit_batch_get, keys[2:4], both))
        assert [future.result(10) for future in gets] == [(True, [True]), (True, [True]), (True, [True, True])]
        assert whole[:4096] == content(2)[:4096] and whole[-4096:] == content(3)[-4096:]
        # A request that cannot start ends as well.
        assert client.call(native.submit_batch_set, keys[:2], stored[:1]).result(10)[0] is False
        assert client.call(native.submit_batch_set, ["small"], [memoryview(bytearray(100))]).result(10)[0] is False
        assert client.call(native.submit_batch_exists, []).result(10) == (True, [])
    finally:
        client.close()


class Job(types.SimpleNamespace):
    pass


def finished(tier, name, jobs):
    """Results by job id, as the scheduler gets them: a call at each step."""
    results, end = {}, time.monotonic() + 10
    while len(results) < jobs:
        assert time.monotonic() < end, "no result"
        for result in getattr(tier, name)():
            assert result.job_id not in results
            results[result.job_id] = result.success
        time.sleep(0.001)
    return results


def settled(tier, key, context):
    end = time.monotonic() + 10
    while (found := tier.lookup(key, context)) is None:
        assert time.monotonic() < end, "no verdict"
        time.sleep(0.001)
    return found


def vllm():
    from hyperoffload.connectors.vllm import HyperOffloadTier
    rows = 16
    memory = bytearray(rows * BLOCK)
    view = memoryview(memory).cast("B", (rows, BLOCK))
    context = Job(request_id="r")
    for new in (True, False):
        memory[:] = bytes(len(memory))
        salt = "new" if new else "old"
        tier = (HyperOffloadTier(Job(), view, "hyperoffload", pool=pool, tenant="vllm", salt=salt) if new else
                HyperOffloadTier(Job(), view, pool=pool, tenant="vllm", salt=salt))
        ids, poll = ("chunk_ids", "get_finished_jobs") if new else ("block_ids", "get_finished")
        assert tier.get_tier_type() == "hyperoffload"
        assert (tier.on_new_request if new else tier.get_request_offloading_context)(context) is not None
        keys = [f"hash-{i}".encode() * 4 for i in range(8)]
        assert tier.lookup(keys[0], context) is None  # asked, not waited for
        assert all(settled(tier, key, context) is False for key in keys)
        for i in range(8):
            memory[i * BLOCK:(i + 1) * BLOCK] = content(i)
        tier.submit_store(Job(job_id=1, keys=keys[:5], is_promotion=False, req_context=context, **{ids: range(5)}))
        tier.submit_store(Job(job_id=2, keys=keys[5:6], is_promotion=False, req_context=context, **{ids: [5]}))
        assert finished(tier, poll, 2) == {1: True, 2: True}
        tier.touch(keys[:2], context)
        assert all(settled(tier, key, context) is True for key in keys[:6])
        memory[:] = bytes(len(memory))
        tier.submit_load(Job(job_id=3, keys=keys[:4], is_promotion=True, req_context=context, **{ids: [9, 8, 7, 6]}))
        tier.submit_load(Job(job_id=4, keys=keys[4:8], is_promotion=True, req_context=context, **{ids: [0, 1, 2, 3]}))
        tier.drain_jobs()
        assert tier.has_pending_work()  # vLLM has still to collect them
        assert finished(tier, poll, 2) == {3: True, 4: False}, "two of its blocks are not there"
        assert not tier.has_pending_work()
        for i, row in enumerate([9, 8, 7, 6]):
            assert memory[row * BLOCK:(row + 1) * BLOCK] == content(i)
        assert settled(tier, keys[7], context) is False  # not promised again
        # Not a row of the view for each key: nothing is moved.
        for number, bad in enumerate(([1], [1, 2, 3], [1, rows], [-1, 0])):
            job = Job(job_id=number, keys=[b"x", b"y"], is_promotion=False, req_context=context, **{ids: bad})
            tier.submit_store(job)
            assert finished(tier, poll, 1) == {number: False}, bad
        assert settled(tier, b"x", context) is False
        tier.on_schedule_end(None)
        (tier.on_request_finished if new else tier.request_finished)(context)
        assert list(tier.take_events()) == []
        tier.shutdown()


class Tensor:
    """Host memory as SGLang passes it."""

    def __init__(self, size, contiguous=True):
        self.contiguous = contiguous
        self.bytes = bytearray(size)
        self.view = (ctypes.c_char * size).from_buffer(self.bytes)

    def data_ptr(self):
        return ctypes.addressof(self.view)

    def is_contiguous(self):
        return self.contiguous

    def numel(self):
        return len(self.bytes) // 2

    def element_size(self):
        return 2


class HostPool:
    """A host memory pool whose pages have a part of keys and one of values."""

    def __init__(self, pages):
        self.kv_buffer, self.pages = Tensor(2 * pages * BLOCK), pages

    def get_page_buffer_meta(self, indices):
        base = self.kv_buffer.data_ptr()
        parts = [base + (half * self.pages + page) * BLOCK for page in indices for half in (0, 1)]
        return parts, [BLOCK] * len(parts)

    def part(self, page, half):
        begin = (half * self.pages + page) * BLOCK
        return slice(begin, begin + BLOCK)


def sglang():
    from hyperoffload.connectors.sglang import HyperOffloadStorage
    extra = {"backend_name": "hyperoffload", "pool": pool, "tenant": "sglang"}
    config = types.SimpleNamespace(tp_rank=1, tp_size=2, pp_rank=0, pp_size=1, is_mla_model=False, model_name="m",
                                   is_page_first_layout=True, extra_config=extra)
    storage = HyperOffloadStorage(config, {})
    host = HostPool(8)
    storage.register_mem_pool_host(host)
    keys = [f"page-{i}" for i in range(8)]
    # Backup: what is there already is asked first; then the rest is set.
    assert storage.batch_exists(keys) == 0
    for page in range(6):
        for half in (0, 1):
            host.kv_buffer.bytes[host.part(page, half)] = content(2 * page + half)
    assert storage.batch_set_v1(keys[:6], range(6)) == [True] * 6
    # Prefetch: how many there are, then these; one that is gone meanwhile is False.
    assert {storage.batch_exists(keys) for _ in range(40)} == {6}
    assert storage.exists(keys[5]) and not storage.exists(keys[6])
    host.kv_buffer.bytes[:] = bytes(len(host.kv_buffer.bytes))
    assert storage.batch_get_v1(keys, range(8)) == [True] * 6 + [False] * 2
    for page in range(6):
        assert host.kv_buffer.bytes[host.part(page, 1)] == content(2 * page + 1)
    other = types.SimpleNamespace(**{**vars(config), "tp_rank": 0})
    rank = HyperOffloadStorage(other)
    assert rank.batch_exists(keys) == 0, "another rank's pages are other pages"
    rank.close()
    # The generic interface, with tensors outside the pool.
    value, target = Tensor(BLOCK), Tensor(BLOCK)
    value.bytes[:] = content(99)
    assert storage.set("generic", value) and storage.batch_set(["generic-2"], [value])
    assert storage.get("generic", target) is target and target.bytes == value.bytes
    assert storage.get("absent", target) is None
    assert storage.batch_get(["generic", "absent"], [target, target]) == [target, None]
    # Nothing raises, and lists stay lists.
    logging.disable(logging.CRITICAL)
    assert storage.batch_get_v1(keys, None) == [False] * 8
    assert storage.batch_set_v1(keys[:3], range(2)) == [False] * 3
    assert storage.batch_get(keys, None) == [None] * 8
    assert storage.get("generic", None) is None and storage.set("generic", None) is False
    assert storage.batch_set(keys, None) is False
    assert storage.batch_set(["two", "values"], [value]) is False
    assert storage.batch_get(["generic", "generic-2"], [target]) == [None, None]
    # Its bytes are not those from its address on.
    strided = Tensor(BLOCK, contiguous=False)
    assert storage.set("strided", strided) is False and storage.batch_set(["strided"], [strided]) is False
    assert storage.get("generic", strided) is None and not any(strided.bytes)
    assert storage.batch_get(["generic"], [strided]) == [None] and not any(strided.bytes)
    assert storage.batch_get_v1(keys=keys, host_indices=None) == [False] * 8 and storage.batch_get_v1() == []
    assert storage.exists(key=None, more=1) is False and storage.batch_exists(keys=[None]) == 0
    assert storage.batch_get_v1([], []) == [] and storage.batch_exists([]) == 0
    logging.disable(logging.NOTSET)
    storage.clear()
    assert storage.get_stats() is None
    return storage, host, keys


def sglang_full():
    """Backup and prefetch in turn, until far more was stored than there is room for. Pages that were matched, and got or
    never got, keep no others from being stored."""
    from hyperoffload.connectors.sglang import HyperOffloadStorage
    config = types.SimpleNamespace(extra_config={"pool": pool, "tenant": "sglang"}, is_mla_model=True, model_name="full")
    storage, host = HyperOffloadStorage(config), HostPool(32)
    storage.register_mem_pool_host(host)
    for turn in range(60):  # each turn has 2 MiB, the store 32
        keys = [f"{turn}-{i}" for i in range(16)]
        stored, found = storage.batch_set_v1(keys, range(16)), storage.batch_exists(keys)
        assert all(stored) and found == 16, f"turn {turn}: stored {sum(stored)}, found {found}"
        if turn < 30:
            assert storage.batch_get_v1(keys, range(16, 32)) == [True] * 16
            assert storage._pins == {}, "what was got is pinned"
    storage.close()


def larger_than_the_store():
    """A node does not evict what is being written: the rest of a request is put once more when the others have ended."""
    from hyperoffload.connectors.lmcache import Connector
    for one in json.loads(run("blocks", "ls", "-o", "json").stdout)["nodes"][0]["tenants"]:
        assert run("blocks", "clear", "--tenant", one["tenant"]).returncode == 0
    client = LMCacheClient(Connector(pool=pool, tenant="large"))
    try:
        for count, stored in ((48, 48), (80, 64)):  # there is room for 32
            buffers = [memoryview(bytearray(1 << 20))] * count
            ok, bools = client.call(client.native.submit_batch_set, [f"{count}.{i}" for i in range(count)],
                                    buffers).result(60)
            assert ok == (stored == count) and sum(bools) == stored, (count, sum(bools))
        assert client.errors[-1] == "16 of 80 blocks could not be stored: exhausted", client.errors
    finally:
        client.close()


def lmcache_lost(native):
    """A removal that no node has done is not a success."""
    future, done, end = native.submit_batch_delete(["a", "b"]), [], time.monotonic() + 20
    while not done:
        assert time.monotonic() < end, "no completion"
        done = native.drain_completions()
        time.sleep(0.01)
    assert done == [(future, False, "2 of 2 blocks could not be removed: unavailable", [False, False])], done
    native.close()


def shown():
    done = run("blocks", "ls", "-o", "json")
    assert done.returncode == 0, done
    tenants = {one["tenant"].split("/")[-1]: one for one in json.loads(done.stdout)["nodes"][0]["tenants"]}
    assert set(tenants) == {"lmcache", "vllm", "sglang"}, tenants
    model = tenants["lmcache"]["models"][0]
    assert (model["model"], model["blocks"], model["bytes"]) == ("m", 13, 13 * BLOCK), model
    assert model["hits"] == 15 + 8 + 17 + 4 and model["puts"] == 15 + 17, model
    assert "lmcache" in run("blocks", "ls").stdout
    name = tenants["lmcache"]["tenant"]
    cleared = run("blocks", "clear", "--tenant", name, "-o", "json")
    assert cleared.returncode == 0 and json.loads(cleared.stdout)["blocks"] == 13, cleared
    assert run("blocks", "clear", "--tenant", "nobody").returncode == 1


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    pool = f"unix:{folder}/c.sock"
    config = folder / "config.textproto"
    config.write_text(f'''
node_id: 5 ddr_bytes: 33554432 segment_bytes: 2097152 unix_socket: "{folder}/c.sock" drain_ms: 500
blocks {{ ddr_bytes: 33554432 }}
''')
    process = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while run("status").returncode != 0:
            assert time.monotonic() < end and process.poll() is None, "the daemon did not come up"
            time.sleep(0.1)
        # Serving processes have many descriptors open.
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
        lmcache()
        vllm()
        storage, host, keys = sglang()
        shown()
        sglang_full()
        larger_than_the_store()
        from hyperoffload.connectors.lmcache import Connector
        native = Connector(pool=pool, tenant="lost")
        # The node dies: misses, and no exception.
        logging.disable(logging.CRITICAL)
        process.kill()
        process.wait()
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, range(8)) == [False] * 8
        assert storage.batch_set_v1(keys, range(8)) == [False] * 8
        lmcache_lost(native)
        storage.close()
    finally:
        process.kill()
        process.wait()
print("the connectors hold their frameworks' contracts")
