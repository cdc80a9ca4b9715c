"""A daemon's own objects are as many after some thousand jobs as after some hundred: its heap grows until the lists that it
bounds are full, and then no more.

Usage: heap_test.py CLI DAEMON LIBRARY
"""
import ctypes
import sys

from support import Daemon, Job

PROGRAMS, LIBRARY = sys.argv[1:3], sys.argv[3]
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


def heap(daemon):
    assert not daemon.json("sessions")["nodes"][0]["sessions"]
    return daemon.metrics()["hyperoffload_heap_bytes"]


def main():
    with Daemon(PROGRAMS, "tcp {} insecure: true\n", flash_bytes=64 * MIB) as daemon:
        begun = heap(daemon)
        full = jobs(daemon)
        after = jobs(daemon)
    print(f"heap: {begun:.0f} bytes at first, {full:.0f} after {JOBS} jobs, {after:.0f} after {2 * JOBS}")
    assert full > begun, "the bounded lists take nothing"
    assert after - full <= BYTES_A_JOB_MAX * JOBS, (full, after)


main()
