"""A daemon's own objects are as many after some thousand jobs as after some hundred: its heap grows until the lists that it
bounds are full, and then no more.

Usage: heap_test.py CLI DAEMON LIBRARY SOURCE_DIR plain|mixed
"""
import ctypes
import os
import pathlib
import subprocess
import sys

from support import Daemon, Job

PROGRAMS, LIBRARY, SOURCE = sys.argv[1:3], sys.argv[3], pathlib.Path(sys.argv[4])
MIB = 1 << 20
JOBS = 1100  # a little more than daemon/control/events.hpp keeps of each kind of event
# Kept events differ in the length of their texts, such as longer numbers: not a leak.
BYTES_A_JOB_MAX = 8


def jobs(daemon):
    """Opens sessions one after the other, over tcp, with memory, flash, transfers and a refusal each."""
    buffer = ctypes.create_string_buffer(4096)
    for _ in range(JOBS):
        with Job(LIBRARY, daemon.pool, b"one of many", b"tcp") as job:
            flash = job.flash(MIB)
            memory = job.beside(flash, MIB)
            job.call("ho_register", buffer, ctypes.c_size_t(len(buffer)))
            assert job.move("ho_put", memory, buffer) == 0
            assert job.stage("ho_stage_out", flash, memory, 4096) == 0
            job.call("ho_unregister", buffer)
            refused = ctypes.c_void_p()
            assert job.lib.ho_allocate(job.handle, ctypes.c_uint64(1 << 40), ctypes.byref(refused)) != 0
            job.call("ho_flash_free", flash)
    return heap(daemon)


def mixed_jobs(daemon):
    """The same in processes of their own, by the jobs that a soak begins with: memory, KV blocks and published objects."""
    subprocess.run([sys.executable, SOURCE / "tools/soaking/client.py", "events", daemon.pool, "tcp", "0", "0", "-"],
                   env={**os.environ, "PYTHONPATH": str(SOURCE / "client/python"), "HYPEROFFLOAD_LIBRARY": LIBRARY,
                        "PYTHONDONTWRITEBYTECODE": "1"}, timeout=300, check=True)
    return heap(daemon)


def heap(daemon):
    assert not daemon.json("sessions")["nodes"][0]["sessions"]
    return daemon.metrics()["hyperoffload_heap_bytes"]


def main():
    run, more = {"plain": (jobs, ""), "mixed": (mixed_jobs, 'blocks { ddr_bytes: "16MiB" }\n')}[sys.argv[5]]
    with Daemon(PROGRAMS, f"tcp {{}} insecure: true\n{more}", flash_bytes=64 * MIB) as daemon:
        begun, full, after = heap(daemon), run(daemon), run(daemon)
    print(f"heap: {begun:.0f} bytes at first, {full:.0f} after {JOBS} jobs, {after:.0f} after {2 * JOBS}")
    assert full > begun, "the bounded lists take nothing"
    assert after - full <= BYTES_A_JOB_MAX * JOBS, (full, after)


main()
