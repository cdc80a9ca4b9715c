"""What the tests of hyperoffload.fit() share: arguments, PyTorch, and a real daemon.

Usage of each: TEST.py HYPEROFFLOAD HYPEROFFLOADD LIBRARY FOLDER_OF_THE_PYTHON_PACKAGE [unittest arguments]
"""

import contextlib
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from with_torch import torch  # noqa: E402

PROGRAM, DAEMON, LIBRARY, PACKAGE = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
os.environ["HYPEROFFLOAD_COMMAND"], os.environ["HYPEROFFLOAD_LIBRARY"] = PROGRAM, LIBRARY
os.environ["PYTHONPATH"] = PACKAGE
sys.path.insert(0, PACKAGE)


def wait_for_pool(pool, daemon):
    """Waits until a daemon answers at its address."""
    end = time.monotonic() + 60
    while subprocess.run([PROGRAM, "nodes", "--pool", pool], check=False,
                         capture_output=True).returncode != 0:
        assert time.monotonic() < end and daemon.poll() is None, "the daemon did not come up"
        time.sleep(0.05)


class Daemons:
    """A pool of real daemons, reached by Unix sockets or over TCP on loopback. `addresses` are theirs."""

    def __init__(self, count, tcp=False, ddr_bytes=128 << 20, segment_bytes=2 << 20, flash_bytes=0):
        self.folder = tempfile.TemporaryDirectory(prefix="ho-fit-")
        self.size = f"ddr_bytes: {ddr_bytes} segment_bytes: {segment_bytes}"
        if flash_bytes > 0:
            assert count == 1
            flash = pathlib.Path(self.folder.name) / "flash"
            flash.touch(0o600)
            os.truncate(flash, flash_bytes)
            self.size += f' flash {{ path: "{flash}" }}'
        self.addresses = [f"tcp:127.0.0.1:{free_port()}" if tcp else f"unix:{self.folder.name}/n{node}.sock"
                          for node in range(count)]
        self.processes = [self._start(node, tcp) for node in range(count)]

    def _start(self, node, tcp):
        peers = "".join(f'nodes {{ node_id: {other} name: "n{other}" control_addresses: "{address}" }}\n'
                        for other, address in enumerate(self.addresses) if other != node)
        listen = f'tcp_listen: "{self.addresses[node][4:]}" insecure: true' if tcp else ""
        config = pathlib.Path(self.folder.name) / f"n{node}.textproto"
        config.write_text(f"""
node_id: {node} node_name: "n{node}" {self.size} drain_ms: 500
unix_socket: "{self.folder.name}/n{node}.sock" tcp {{ address: "127.0.0.1" }} {listen}
{peers}""")
        return subprocess.Popen([DAEMON, "--config", str(config)], stderr=subprocess.DEVNULL)

    def kill(self, node):
        self.processes[node].kill()
        self.processes[node].wait()

    def __enter__(self):
        for address, process in zip(self.addresses, self.processes):
            wait_for_pool(address, process)
        return self

    def __exit__(self, *_):
        for node in range(len(self.processes)):
            self.kill(node)
        self.folder.cleanup()


def free_port():
    """One that nobody gets by chance until a process listens there: below those for outgoing connections."""
    while True:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class WithDaemon(unittest.TestCase):
    """Tests with a daemon of their own: `pool` is its address, `folder` one for files."""

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        ends = contextlib.ExitStack()
        cls.addClassCleanup(ends.close)
        daemons = ends.enter_context(Daemons(1, ddr_bytes=256 << 20, segment_bytes=8 << 20))
        cls.folder, (cls.pool,) = pathlib.Path(daemons.folder.name), daemons.addresses
