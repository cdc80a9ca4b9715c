"""What a job under hyperoffload.fit() hears of nodes that it should leave, and how it waits for memory that others hold.

Usage: see support.py.
"""

import ctypes
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload
from hyperoffload._pool import library as _library

MIB = 1 << 20
POOL_BYTES = 64 * MIB


class Job:
    """A model, its optimizer and a step."""

    def __init__(self):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batch = torch.randn(32, 128)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Notices(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory(prefix="ho-notice-")
        self.addCleanup(folder.cleanup)
        config = pathlib.Path(folder.name) / "config"
        # Leases are renewed by thirds: notices come every 0.3 s.
        config.write_text(f'node_name: "n" ddr_bytes: {POOL_BYTES} segment_bytes: 2097152 lease_ms: 900 '
                          f'drain_ms: 120000 unix_socket: "{folder.name}/c.sock"')
        self.pool = f"unix:{folder.name}/c.sock"
        self.daemon = subprocess.Popen([support.DAEMON, "--config", str(config)], stderr=subprocess.DEVNULL)
        self.addCleanup(self.daemon.wait)
        self.addCleanup(self.daemon.kill)
        support.wait_for_pool(self.pool, self.daemon)

    def command(self, *words):
        subprocess.run([support.PROGRAM, *words, "--pool", self.pool], check=True, capture_output=True, timeout=60)

    def until(self, job, run, done):
        """Trains until run.notice is as it should be."""
        end = time.monotonic() + 60
        while not done(run.notice):
            self.assertLess(time.monotonic(), end, run.notice)
            job.step()
        return run.notice

    def fit(self, job, **more):
        return hyperoffload.fit(job.model, job.optimizer, device_memory="60%", pool=self.pool, **more)

    def test_a_job_hears_of_a_drain_and_of_its_daemons_end(self):
        job = Job()
        with self.fit(job) as run:
            for _ in range(4):  # with a plan, the job needs nothing new of the pool
                job.step()
            self.assertIsNone(run.notice)
            self.command("drain", "n")
            told = self.until(job, run, lambda notice: notice)
            self.assertEqual((told.drained_nodes, told.ending_nodes, told.ending_s), (1, 0, None))
            changes = run._pool.notice().changes
            self.command("undrain", "n")
            self.until(job, run, lambda notice: notice is None)
            self.assertEqual(run._pool.notice().changes, changes + 1)
            self.daemon.send_signal(signal.SIGTERM)
            told = self.until(job, run, lambda notice: notice)
            self.assertEqual((told.drained_nodes, told.ending_nodes), (0, 1))
            self.assertTrue(60 < told.ending_s <= 120, told)
        self.assertIsNone(run.notice)

    def test_a_job_waits_for_memory_that_another_one_holds(self):
        other = _library.Pool(self.pool, "holder")
        held = ctypes.c_void_p()
        library = _library.library()
        self.assertEqual(library.ho_allocate_among(other.handle, 0, POOL_BYTES, ctypes.byref(held)), 0)
        hasty = Job()
        with self.assertRaises(hyperoffload.Error) as refused, self.fit(hasty):
            for _ in range(3):
                hasty.step()
        self.assertEqual(refused.exception.name, "exhausted")
        freed = threading.Timer(1.5, lambda: library.ho_free(other.handle, held))
        job = Job()
        begin = time.monotonic()
        freed.start()
        with self.fit(job, wait=60) as run:
            losses = [job.step() for _ in range(4)]
        self.assertGreater(time.monotonic() - begin, 1.4)
        plain = Job()
        self.assertEqual(losses, [plain.step() for _ in range(4)])
        freed.join()
        other.close()

    def test_a_wait_that_is_none_is_refused(self):
        for wrong in (-1, 1e10):
            with self.assertRaises(ValueError):
                self.fit(Job(), wait=wrong)

    def test_a_job_is_held_to_its_link(self):
        job, plain = Job(), Job()
        begin = time.monotonic()
        with self.fit(job, replan="never", link=1_000_000) as run:
            losses = [job.step() for _ in range(3)]
            took = time.monotonic() - begin
        self.assertEqual(losses, [plain.step() for _ in range(3)])
        # Weights, gradients and two states are 1 MiB; 0.4 of it leaves and comes back in each of two steps.
        self.assertGreater(took, 0.5, run.summary())
        for wrong in (0, -1, "1GB", 1.5):
            with self.assertRaises(ValueError):
                self.fit(Job(), link=wrong)


if __name__ == "__main__":
    unittest.main()
