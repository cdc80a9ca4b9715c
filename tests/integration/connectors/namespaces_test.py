"""Servers whose blocks mean something else share none: connectors and the Python API against a real daemon. What a script
may do wrong there gets an error, also after close()."""
import importlib.util
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import traceback
import unittest

cli, daemon, library, package = (sys.argv.pop(1) for _ in range(4))
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
import hyperoffload  # noqa: E402
from hyperoffload._pool import blocks as _blocks  # noqa: E402
from hyperoffload.connectors.sglang import HyperOffloadStorage  # noqa: E402
from hyperoffload.connectors import vllm  # noqa: E402
from hyperoffload.connectors.vllm import HyperOffloadTier  # noqa: E402

BLOCK = 64 << 10
Some = types.SimpleNamespace


class Host:
    """Host memory of SGLang: each page is one piece."""

    def __init__(self, layout="page_first_direct", dtype="bfloat16", pieces=1):
        self.layout, self.dtype, self.page_size, self.pieces = layout, dtype, 1, pieces
        self.memory = mmap.mmap(-1, 8 * BLOCK)
        self.kv_buffer = self.tensor()

    def tensor(self, device="cpu", size=8 * BLOCK):
        address = _blocks.ctypes.addressof(_blocks.ctypes.c_char.from_buffer(self.memory))
        return Some(device=Some(type=device), is_contiguous=lambda: True, data_ptr=lambda: address,
                    numel=lambda: size, element_size=lambda: 1)

    def get_page_buffer_meta(self, indices):
        base = self.kv_buffer.data_ptr()
        places = [base + (int(page) * self.pieces + piece) * BLOCK for page in indices for piece in range(self.pieces)]
        return places, [BLOCK] * len(places)


class Namespaces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.pool = f"unix:{folder.name}/c.sock"
        config = self.folder / "config.textproto"
        config.write_text(f'node_id: 5 ddr_bytes: 33554432 segment_bytes: 2097152 unix_socket: "{folder.name}/c.sock" '
                          'drain_ms: 500 blocks { ddr_bytes: 33554432 }')
        self.daemon = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)
        self.addCleanup(self.daemon.wait)
        self.addCleanup(self.daemon.kill)
        end = time.monotonic() + 60
        while subprocess.run([cli, "status", "--pool", self.pool], capture_output=True, check=False).returncode != 0:
            self.assertLess(time.monotonic(), end, "the daemon did not come up")
            time.sleep(0.05)

    def blocks(self, **options):
        made = _blocks.Blocks(self.pool, **options)
        self.addCleanup(made.close)
        return made

    def tier(self, spec, view, **options):
        made = HyperOffloadTier(spec, view, pool=self.pool, tenant="chat", model="llama", **options)
        self.addCleanup(made.shutdown)
        return made

    def until(self, ask):
        end = time.monotonic() + 60
        while not (found := ask()) and found is not False:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)
        return found

    def test_vllm_servers_that_divide_a_model_in_other_ways_share_nothing(self):
        def old(tp, dtype="bfloat16"):
            return Some(vllm_config=Some(parallel_config=Some(tensor_parallel_size=tp), cache_config=Some(cache_dtype=dtype)))

        def new(tp, names=("a", "b")):
            return Some(config=Some(model=Some(name="llama", dtype="bfloat16"), parallel=Some(tp_size=tp),
                                    groups=[Some(tokens_per_block=16, layer_names=names)]))

        memory = bytearray(4 * BLOCK)
        view = memoryview(memory).cast("B", (4, BLOCK))
        for first, same, others in ((old(1), old(1), (old(2), old(1, "fp8"))), (new(1), new(1), (new(2), new(1, ("a",))))):
            stored = self.tier(first, view)
            stored.submit_store(Some(job_id=1, keys=[b"key"], chunk_ids=[0]))
            self.assertTrue(self.until(stored.get_finished_jobs)[0].success)
            self.assertIs(self.until(lambda tier=self.tier(same, view): tier.lookup(b"key")), True)
            for spec in others:
                self.assertIs(self.until(lambda tier=self.tier(spec, view): tier.lookup(b"key")), False)

    def test_vllm_is_not_promised_what_was_there_long_ago(self):
        memory = bytearray(BLOCK)
        tier = self.tier(None, memoryview(memory).cast("B", (1, BLOCK)))
        tier.submit_store(Some(job_id=1, keys=[b"key"], chunk_ids=[0]))
        self.assertTrue(self.until(tier.get_finished_jobs)[0].success)
        self.assertEqual(self.blocks(tenant="chat", model="llama").run(_blocks.REMOVE, [b"key"]), [True])
        time.sleep(vllm._UNUSED_S)  # pylint: disable=protected-access
        self.assertIs(self.until(lambda: tier.lookup(b"key")), False)

    def test_vllm_gets_its_memory_back_and_hears_why_jobs_fail(self):
        memory = mmap.mmap(-1, 4 * 1024)
        view = memoryview(memory).cast("B", (4, 1024))  # blocks have 4096 bytes at least
        tier = self.tier(None, view)
        with self.assertLogs("hyperoffload", "WARNING") as logged:
            for job in range(3):
                tier.submit_store(Some(job_id=job, keys=[b"key"], chunk_ids=[0]))
        self.assertEqual([result.success for result in tier.get_finished_jobs()], [False] * 3)
        self.assertEqual(len(logged.output), 1)
        tier.shutdown()
        self.assertEqual(list(tier.get_finished_jobs()), [])
        view.release()
        memory.close()  # raises BufferError if somebody has a view

    def storage(self, host, **extra):
        made = HyperOffloadStorage(Some(model_name="llama", tp_rank=0, tp_size=1, extra_config={"pool": self.pool, **extra}))
        self.addCleanup(made.close)
        if host is not None:
            made.register_mem_pool_host(host)
        return made

    def test_sglang_servers_with_other_pages_share_nothing(self):
        stored = self.storage(Host())
        self.assertEqual(stored.batch_set_v1(["a", "b"], [0, 1]), [True, True])
        self.assertEqual(self.storage(Host()).batch_exists(["a", "b"]), 2)
        for host in (Host(layout="page_head"), Host(dtype="float16")):
            self.assertEqual(self.storage(host).batch_exists(["a", "b"]), 0)

    def test_sglang_asks_for_all_pieces_from_the_beginning(self):
        if importlib.util.find_spec("torch") is None:  # this host memory takes any sequence of indices
            sys.modules["torch"] = Some(arange=range)
            self.addCleanup(sys.modules.pop, "torch")
        stored = self.storage(Host(pieces=2))
        self.assertEqual(stored.batch_set_v1(["a"], [0]), [True])
        self.blocks_of(stored).run(_blocks.REMOVE, ["a#1"])
        self.assertEqual(self.storage(Host(pieces=2)).batch_exists(["a"]), 0)

    @staticmethod
    def blocks_of(storage):
        return storage._blocks  # pylint: disable=protected-access

    def test_sglang_never_raises(self):
        storage = self.storage(Host())
        with self.assertLogs("hyperoffload", "ERROR"):
            self.assertFalse(storage.set("key", Host().tensor("cuda", BLOCK)))
        self.assertEqual(storage.batch_exists_v2(["a"], [Some(name="mamba")]), 0)
        self.assertEqual(storage.batch_get_v2([Some(name="mamba", keys=["a", "b"])]), {"mamba": [False, False]})
        with self.assertLogs("hyperoffload", "WARNING") as logged:
            self.storage(None, tennant="typo")
        self.assertIn("tennant", logged.output[0])
        with self.assertRaisesRegex(ValueError, '"pool"'):
            HyperOffloadStorage(Some(extra_config={}))

    def test_options_are_not_cut(self):
        for options, error in (({"salt": "a\0b"}, ValueError), ({"tenant": "a\0b"}, ValueError), ({"model": None}, TypeError),
                               ({"rank": 1 << 32}, ValueError), ({"deadline_ms": -1}, ValueError),
                               ({"secret": "sixteen bytes and more", "secret_file": "/none"}, ValueError)):
            with self.assertRaises(error, msg=options):
                _blocks.Blocks(self.pool, **options)
        blocks = self.blocks()
        for key in (5, True, None):
            with self.assertRaisesRegex(TypeError, "a key is"):
                blocks.run(_blocks.EXISTS, [key])
        with self.assertRaisesRegex(ValueError, "0 bytes"):
            blocks.submit(_blocks.PUT, [("key", 4096, 0)])
        with self.assertRaisesRegex(KeyError, "no request has the ticket 12345"):
            blocks.take(12345)

    def test_a_block_that_is_too_small_is_refused_with_the_limit(self):
        memory = (_blocks.ctypes.c_char * BLOCK)()
        with self.assertRaisesRegex(RuntimeError, "a block has 4096 bytes or more"):
            self.blocks().submit(_blocks.PUT, [("key", _blocks.ctypes.addressof(memory), 4095)])

    def test_sizes_that_were_not_named_are_refused(self):
        memory = (_blocks.ctypes.c_char * (2 * BLOCK))()
        address = _blocks.ctypes.addressof(memory)
        blocks = self.blocks(block_bytes=[BLOCK])
        self.assertEqual(blocks.put([("key", address, BLOCK)]), [True])
        with self.assertRaisesRegex(RuntimeError, "131072 bytes are none of the sizes"):
            blocks.put([("key", address, 2 * BLOCK)])
        with self.assertRaisesRegex(RuntimeError, "block_bytes: 1 to 16 sizes"):
            _blocks.Blocks(self.pool, block_bytes=[BLOCK] * 17)
        with self.assertRaisesRegex(ValueError, "block_bytes is -1"):
            _blocks.Blocks(self.pool, block_bytes=[-1])

    def test_what_costs_more_is_evicted_later(self):
        memory = (_blocks.ctypes.c_char * (1 << 20))()
        address = _blocks.ctypes.addressof(memory)
        blocks = self.blocks()

        def put(names, cost):
            self.assertEqual(blocks.put([(name, address, 1 << 20) for name in names], cost), [True] * len(names))

        put([f"dear {i}" for i in range(16)], 9)
        for turn in range(4):  # there is room for 32
            put([f"cheap {turn}.{i}" for i in range(16)], 1)
        self.assertEqual(sum(blocks.exists([f"dear {i}" for i in range(16)])), 16)
        self.assertEqual(sum(blocks.remove([f"dear {i}" for i in range(4)])), 4)
        with self.assertRaisesRegex(ValueError, "cost is -1"):
            blocks.put([("key", address, 1 << 20)], -1)

    def test_blocks_end_with_their_with_and_a_pin_that_is_not_there_is_told(self):
        memory = (_blocks.ctypes.c_char * BLOCK)()
        item = ("key", _blocks.ctypes.addressof(memory), BLOCK)
        with hyperoffload.Blocks(self.pool) as blocks:
            self.assertEqual((blocks.put([item]), blocks.get([item])), ([True], [True]))
            self.assertEqual(blocks.match(["absent"]), (0, 0))
            blocks.unpin(0)
            found, pin = blocks.match(["key"])
            self.assertEqual(found, 1)
            blocks.unpin(pin)
            with self.assertRaisesRegex(hyperoffload.Error, "not-found: no such pin"):
                blocks.unpin(pin)
            ticket = blocks.submit(blocks.GET, [("absent", *item[1:])])
            self.assertEqual([blocks.status_name(status) for status in blocks.wait(ticket)], ["not-found"])
        with self.assertRaisesRegex(RuntimeError, "closed"):
            blocks.exists(["key"])

    def test_a_secret_comes_from_a_file(self):
        file = self.folder / "secret"
        file.write_text("sixteen bytes and more\n")
        memory = (_blocks.ctypes.c_char * BLOCK)()
        item = ("key", _blocks.ctypes.addressof(memory), BLOCK)
        self.assertEqual(self.blocks(secret_file=str(file)).run(_blocks.PUT, [item]), [True])
        self.assertEqual(self.blocks(secret="sixteen bytes and more").run(_blocks.EXISTS, ["key"]), [True])
        self.assertEqual(self.blocks().run(_blocks.EXISTS, ["key"]), [False])

    def test_who_waits_when_the_blocks_are_closed_gets_an_error(self):
        blocks = self.blocks(deadline_ms=60_000)
        self.daemon.send_signal(signal.SIGSTOP)
        errors = []

        def wait():
            try:
                blocks.run(_blocks.EXISTS, ["key"])
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        self.until(lambda: bool(blocks._left) or None)  # pylint: disable=protected-access
        blocks.close(patience_s=0.1)
        thread.join(timeout=30)
        self.assertEqual(errors, ["the blocks are closed"])
        self.assertEqual(blocks.event_fd, -1)
        with self.assertRaisesRegex(RuntimeError, "closed"):
            blocks.submit(_blocks.EXISTS, ["key"])
        self.daemon.send_signal(signal.SIGCONT)

    def test_a_process_that_was_forked_cannot_use_the_blocks_of_its_parent(self):
        blocks = self.blocks()
        memory = (_blocks.ctypes.c_char * BLOCK)()
        self.assertEqual(blocks.run(_blocks.PUT, [("key", _blocks.ctypes.addressof(memory), BLOCK)]), [True])
        held, over = threading.Event(), threading.Event()

        def hold():  # as in a match that waits for the network
            with blocks._lock:
                held.set()
                over.wait()

        other = threading.Thread(target=hold)
        other.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that hangs
            code = 1
            try:
                for call in (lambda: blocks.run(_blocks.EXISTS, ["key"]), lambda: blocks.match(["key"]), blocks.poll,
                             lambda: blocks.take(1)):
                    with self.assertRaisesRegex(RuntimeError, "another process"):
                        call()
                blocks.close()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        over.set()
        other.join()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(blocks.run(_blocks.EXISTS, ["key"]), [True])


if __name__ == "__main__":
    unittest.main()
