"""A daemon in a cgroup with a memory limit, beside a neighbour in the same group: it does not start with more than the limit,
and a grant that the group has no memory for is refused. Nobody is killed.

Usage: cgroup_test.py CLI DAEMON
Skipped where the test may not make a cgroup with a memory limit, of version 2 or 1.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402

CLI, DAEMON = sys.argv[1:3]
MIB = 1 << 20
LIMIT = 256 * MIB  # the group's
ROOM = "128MiB"  # the pool's
NEIGHBOUR = "import sys; held = bytearray(b'x') * (160 << 20); print(flush=True); sys.stdin.read()"
FILES = {2: ("memory.max", "memory.events"), 1: ("memory.limit_in_bytes", "memory.oom_control")}


class Group:
    """A cgroup of this test. Ends with the block."""

    def __enter__(self):
        for version, root in ((2, "/sys/fs/cgroup"), (1, "/sys/fs/cgroup/memory")):
            self.path = pathlib.Path(root, f"ho-test-{os.getpid()}")
            self.limit, self.events = (self.path / name for name in FILES[version])
            try:
                self.path.mkdir()
            except OSError:
                continue
            if self.limit.exists():
                self.limit.write_text(str(LIMIT))
                return self
            self.path.rmdir()
        needs.skip("no right to make a cgroup with a memory limit")

    def __exit__(self, *_):
        end = time.monotonic() + 60
        while True:
            try:
                return self.path.rmdir()
            except OSError:  # its last process is about to go
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def enter(self):
        """For a process that is being started."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self):
        return int(re.search(r"^oom_kill (\d+)$", self.events.read_text(), re.M)[1])


def main():
    with tempfile.TemporaryDirectory() as top, Group() as group:
        pool, config, log = f"unix:{top}/sock", pathlib.Path(top, "config"), pathlib.Path(top, "log")

        def configure(room):
            config.write_text(f'node_name: "n" ddr_bytes: "{room}" segment_bytes: "2MiB" unix_socket: "{top}/sock" drain_ms: 500')

        def run(*words):
            return subprocess.run(words, capture_output=True, text=True, timeout=60, preexec_fn=group.enter)

        def bench(size_mib):
            """Puts to memory of that size at least. It runs outside of the group."""
            return subprocess.run([CLI, "bench", "transport", "--transport", "local", "--op", "put", "--size", f"{size_mib // 2}MiB",
                                   "--inflight", "2", "--seconds", "0.1", "--pool", pool], capture_output=True, text=True,
                                  timeout=120)

        configure("300MiB")
        for mode, code in ((["--check-config"], 2), ([], 1)):
            done = run(DAEMON, "--config", config, *mode)
            assert done.returncode == code and "cgroup" in done.stderr and "ddr_bytes" in done.stderr, done
        configure(ROOM)
        with open(log, "wb") as errors:
            daemon = subprocess.Popen([DAEMON, "--config", config], stderr=errors, preexec_fn=group.enter)
        neighbour = None
        try:
            end = time.monotonic() + 60
            while " serving " not in log.read_text():
                assert time.monotonic() < end and daemon.poll() is None, log.read_text()
                time.sleep(0.05)
            assert bench(96).returncode == 0
            neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         preexec_fn=group.enter)
            assert neighbour.stdout.read(1) == b"\n"
            told = bench(96)
            assert told.returncode == 4 and "exhausted" in told.stderr, told
            assert daemon.poll() is None and neighbour.poll() is None
            neighbour.communicate()
            assert bench(96).returncode == 0, "the neighbour's memory is free"
            assert group.kills() == 0
            daemon.terminate()
            assert daemon.wait(60) == 0, log.read_text()
        finally:
            for process in (daemon, neighbour):
                if process and process.poll() is None:
                    process.kill()
                    process.wait()
    print(f"beside a neighbour: {told.stderr.strip()}")


main()
