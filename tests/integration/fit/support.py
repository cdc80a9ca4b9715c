"""What the tests of hyperoffload.fit() share: arguments, PyTorch, and a real daemon.

Usage of each: TEST.py HYPEROFFLOAD HYPEROFFLOADD LIBRARY FOLDER_OF_THE_PYTHON_PACKAGE [unittest arguments]
"""

import os
import pathlib
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


class WithDaemon(unittest.TestCase):
    """Tests with a daemon of their own: `pool` is its address, `folder` one for files."""

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory(prefix="ho-fit-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        config = cls.folder / "config"
        config.write_text(f'node_name: "fit" ddr_bytes: 268435456 segment_bytes: 8388608 '
                          f'unix_socket: "{folder.name}/control.sock"')
        cls.pool = f"unix:{folder.name}/control.sock"
        daemon = subprocess.Popen([DAEMON, "--config", str(config)], stderr=subprocess.DEVNULL)
        cls.addClassCleanup(daemon.wait)
        cls.addClassCleanup(daemon.terminate)
        wait_for_pool(cls.pool, daemon)
