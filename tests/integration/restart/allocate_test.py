"""A job that takes and returns memory all the time gets it at every moment of upgrades of its only node."""
import ctypes
import os
import sys
import tempfile
import threading
import time

from node import SEGMENT, Node

library, package = sys.argv[5:7]
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
from hyperoffload._pool import library as _library  # noqa: E402

ROUNDS = 6


class Job:
    """Takes memory and returns it until told to end. `error`: of the call that failed."""

    def __init__(self, pool):
        self.pool = _library.Pool(pool, "greedy")
        self.library = _library.library()
        self.library.ho_allocate.restype = ctypes.c_int
        self.library.ho_allocate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
        self.taken, self.error, self.ending = 0, None, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        memory = ctypes.c_void_p()
        while not self.ending and self.error is None:
            status = self.library.ho_allocate(self.pool.handle, SEGMENT, ctypes.byref(memory))
            if status != 0:
                self.error = (status, self.library.ho_last_error().decode())
                return
            self.library.ho_free(self.pool.handle, memory)
            self.taken += 1

    def end(self):
        self.ending = True
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()


with tempfile.TemporaryDirectory() as folder, Node(folder) as node:
    node.start()
    job = Job(node.pool)
    try:
        for round_ in range(ROUNDS):
            before = job.taken
            end = time.monotonic() + 60
            while job.taken < before + 20 and job.error is None:
                assert time.monotonic() < end, "the job takes no memory"
                time.sleep(0.01)
            assert node.ask("upgrade", "n3")["upgraded"]
            assert job.error is None, (round_, job.error)
    finally:
        job.end()
    assert job.error is None, job.error
    job.pool.close()
print(f"ok: took memory {job.taken} times beside {ROUNDS} upgrades")
