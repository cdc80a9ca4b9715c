"""A daemon under the stand-in for systemd, with what tests ask of it."""
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools/soaking"), str(ROOT / "tests/support")]
from gpt_job import Job  # noqa: E402
from service_manager import ServiceManager  # noqa: E402

cli, daemon, gpt, holder = sys.argv[1:5]
SEGMENT = 2097152
LONG_LEASE_MS = 600_000  # longer than any test: only tests of leases have shorter ones


class Node(ServiceManager):
    def __init__(self, folder, lease_ms=LONG_LEASE_MS, more="", **options):
        self.folder = pathlib.Path(folder)
        self.file = self.folder / "node.textproto"
        self.text = f"""
node_id: 3 node_name: "n3" ddr_bytes: 67108864 segment_bytes: {SEGMENT} lease_ms: {lease_ms} drain_ms: 500
unix_socket: "{folder}/control.sock" tcp {{ address: "127.0.0.1" }}
{more}
"""
        self.file.write_text(self.text)
        self.pool = f"unix:{folder}/control.sock"
        super().__init__(folder, [daemon, "--config", str(self.file)], **options)

    def write(self, text):
        """The configuration, at once: a daemon that starts meanwhile reads the old or the new one."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def cli(self, *words):
        return subprocess.run([cli, *words, "--pool", self.pool, "-o", "json"], capture_output=True, text=True,
                              timeout=60)

    def ask(self, *words):
        done = self.cli(*words)
        assert done.returncode == 0, (done.args, done.stderr, self.errors.read_text()[-2000:])
        return json.loads(done.stdout)["nodes"][0]

    def restart_status(self):
        return self.ask("status")["restart"]

    def sessions(self):
        return self.ask("sessions")["sessions"]

    def segments(self):
        return self.ask("segments")["segments"]

    def hold(self, segments=3):
        """A client with a session and memory. It never renews."""
        client = subprocess.Popen([holder, self.pool, str(segments * SEGMENT)], stdout=subprocess.PIPE)
        assert client.stdout.read(1) == b"y"
        return client

    def wait_for_steps(self):
        """Until a job has told of steps in three renewals of its lease: the first ones may be those of a measurement,
        after which it loads its plan."""
        end = time.monotonic() + 60
        told = set()
        while len(told) < 3:
            assert time.monotonic() < end, "the job does not train"
            told |= set(re.findall(r'"steps": (\d+)', json.dumps(self.sessions())))
            time.sleep(0.1)

    def train(self, transport, steps, *more):
        return Job(gpt, self.folder, self.pool, transport, steps, *more)
