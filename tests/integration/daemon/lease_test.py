"""A job that is stopped for longer than its lease, or evicted meanwhile, hears which, once it runs again. What it held
is lost; it may begin anew there.

Usage: lease_test.py CLI DAEMON LIBRARY
"""
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "monitor"))
from support import Daemon, Job  # noqa: E402

PROGRAMS, LIBRARY = sys.argv[1:3], sys.argv[3]
SIZE = 1 << 20
LAPSED, EVICTED = "the session's lease lapsed", "an administrator ended it"


def job(pool, transport, why):
    one = Job(LIBRARY, pool, b"stopped", transport.encode())
    memory, buffer = one.allocate(SIZE), ctypes.create_string_buffer(SIZE)
    one.call("ho_register", buffer, ctypes.c_size_t(SIZE))
    assert one.move("ho_put", memory, buffer) == 0
    os.kill(os.getpid(), signal.SIGSTOP)
    # The library learns of the lease at its next renewal; until then a transfer may fail by another reason.
    end = time.monotonic() + 30
    while why not in one.lib.ho_last_error().decode():
        assert time.monotonic() < end, one.lib.ho_last_error()
        ticket = ctypes.c_uint64()
        one.lib.ho_get(one.handle, memory, ctypes.c_uint64(0), buffer, ctypes.c_size_t(SIZE), ctypes.byref(ticket))
        assert one.wait(ticket) != 0
    print(one.lib.ho_last_error().decode(), flush=True)
    fresh = one.allocate(SIZE)
    assert one.move("ho_put", fresh, buffer) == 0
    assert one.move("ho_get", memory, buffer) != 0
    print(one.lib.ho_last_error().decode(), flush=True)
    one.give_up()


def main():
    if len(sys.argv) > 4:
        return job(*sys.argv[4:])
    # Over tcp the daemon closes the data path of an evicted session, which the next transfer may see first.
    for transport, why in (("local", LAPSED), ("local", EVICTED), ("tcp", LAPSED)):
        with Daemon(PROGRAMS, 'lease_ms: 3000 tcp {} insecure: true\n') as daemon:
            process = subprocess.Popen([sys.executable, __file__, *sys.argv[1:4], daemon.pool, transport, why],
                                       stdout=subprocess.PIPE, text=True)
            try:
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
                if why == EVICTED:
                    (session,) = daemon.json("sessions")["nodes"][0]["sessions"]
                    assert daemon.run("evict", f"0:{session['session_id']}").returncode == 0
                while daemon.json("sessions")["nodes"][0]["sessions"]:
                    assert daemon.process.poll() is None
                process.send_signal(signal.SIGCONT)
                out, _ = process.communicate(timeout=60)
            finally:
                process.kill()
                process.wait()
            print(out, end="")
            assert process.returncode == 0, process.returncode
            lines = out.splitlines()
            assert len(lines) == 2, lines
            for line in lines:
                assert line.startswith("transfer to or from node 0 (n0, ") and line.endswith(why), line
    return None


main()
