"""A daemon of its own for the test of a page."""
import json
import os
import pathlib
import subprocess
import tempfile
import time

PAGE_ADDRESS = "unix:/run/hyperoffload/control.sock"


class Node:
    """Ends with the block. `folder` is one for files, `pool` its address."""

    def __init__(self, cli, daemon, more=""):
        self.cli, self.daemon, self.more = cli, daemon, more

    def __enter__(self):
        self.holder = tempfile.TemporaryDirectory(prefix="ho-page-")
        self.folder = pathlib.Path(self.holder.name)
        self.pool = f"unix:{self.folder}/sock"
        config = self.folder / "config"
        config.write_text(f'node_name: "n" ddr_bytes: "256MiB" segment_bytes: "2MiB" unix_socket: "{self.folder}/sock"\n'
                          f'lease_ms: 600000 drain_ms: 500\n{self.more}')
        self.process = subprocess.Popen([self.daemon, "--config", config], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while subprocess.run([self.cli, "nodes", "--pool", self.pool], check=False, capture_output=True).returncode != 0:
            assert time.monotonic() < end and self.process.poll() is None, "the daemon did not come up"
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.holder.cleanup()

    def run(self, script):
        """Runs shell commands of a page in `folder`. @return what they print."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        if not (programs / "hyperoffload").exists():
            (programs / "hyperoffload").symlink_to(self.cli)
        done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", script.replace(PAGE_ADDRESS, self.pool)], cwd=self.folder,
                              env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HYPEROFFLOAD_POOL": self.pool},
                              capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (script, done)
        return done.stdout

    def json(self, script):
        return json.loads(self.run(f"{script} -o json"))
