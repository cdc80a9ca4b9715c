"""Signs of life for systemd's watchdog come while both threads of a daemon work, and stop with either of them. A
daemon that cannot start does not start again at once."""
import errno
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from node import Node  # first: it finds needs and patience
import needs
from patience import within

WATCHDOG_S = 0.6
# Stops one thread, until its stdin ends. A process of its own: the parent of the daemon would take the stop for its end.
STOPPER = """
import ctypes, os, sys
libc, thread = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
ptrace = lambda request: libc.ptrace(request, ctypes.c_long(thread), None, None)
if ptrace(16) != 0:  # PTRACE_ATTACH
    sys.exit(ctypes.get_errno())
os.waitpid(thread, 0x40000000)  # __WALL
print("stopped", flush=True)
sys.stdin.read()
sys.exit(ptrace(17))  # PTRACE_DETACH
"""


def thread_named(process, name):
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise AssertionError(f"no thread {name}")


def lives(node):
    signs = node.signs
    node.wait_until(lambda: node.signs >= signs + 3, "signs of life")


def stops_with(node, thread):
    """Stops one thread for longer than the watchdog allows, then lets it go on."""
    with subprocess.Popen([sys.executable, "-c", STOPPER, str(thread)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stopper:
        if stopper.stdout.readline() != b"stopped\n":
            assert stopper.wait(60) == errno.EPERM
            needs.skip("this process may not trace others")
        node.drain(f"stopped {thread}")
        signs = node.signs
        time.sleep(3 * WATCHDOG_S)
        node.drain(f"waited {thread}")
        assert node.signs <= signs + 1, (signs, node.signs)  # one may have been on its way
    assert stopper.returncode == 0
    lives(node)


def watched():
    with tempfile.TemporaryDirectory() as folder, Node(folder, watchdog_s=WATCHDOG_S) as node:
        node.start()
        lives(node)
        stops_with(node, thread_named(node.pid, "ho-data"))
        assert "data thread does not answer" in node.errors.read_text()
        stops_with(node, node.pid)
        assert node.exits == []
    with tempfile.TemporaryDirectory() as folder, Node(folder) as node:
        node.start()
        assert node.cli("status").returncode == 0
        node.drain("served")
        assert node.signs == 0, "nobody watches it"


def failed_starts_are_rare():
    """A port that another process has keeps a daemon from starting."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        more = f'insecure: true tcp_listen: "127.0.0.1:{taken.getsockname()[1]}"'
        with Node(folder, more=more) as node:
            # Where jobs wait for a daemon that died, the next ones try at once.
            node.file.write_text(node.text.replace(more, ""))
            node.start()
            node.file.write_text(node.text)
            begin = time.monotonic()
            node.end_process()
            node.wait_until(lambda: len(node.exits) >= 4, "failed starts")
            assert time.monotonic() - begin < within(5), "jobs would have given up"
            time.sleep(max(0, begin + 7 - time.monotonic()))
            count = len(node.exits)
            time.sleep(5)
            assert len(node.exits) - count <= 3, (count, node.exits)
            assert set(node.exits) == {-signal.SIGKILL, 1}, node.exits
            node.file.write_text(node.text.replace(more, ""))
            node.wait_ready(2)
            assert node.stop() == 0


watched()
failed_starts_are_rare()
