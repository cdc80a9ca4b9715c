"""A daemon and a job whose system clock (CLOCK_REALTIME) is set forward and back while they run: leases, steps and extents on
flash do not depend on it; certificates do, and errors say so. libfaketime sets the clock of these processes alone, as
settimeofday() does that of a machine.

Usage: clock_test.py CLI DAEMON GPT LIBRARY
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

CLI, DAEMON, GPT, LIBRARY = sys.argv[1:5]
HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "support"), str(HERE.parents[1] / "monitor")]
from gpt_job import Job  # noqa: E402
import needs  # noqa: E402
from support import FLASH_DURABLE, Job as Holder  # noqa: E402

FAKETIME = next(iter(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
DAY_S = 86400
UNUSED_S = 20  # flash_unused_s_max
JUMPS_S = (400 * DAY_S, 0, -400 * DAY_S, 3600, 0, -60)


class Clock:
    """The offset that all processes with its environment see."""

    def __init__(self, folder):
        self.file = pathlib.Path(folder, "clock")
        self.set(0)
        os.environ.update(FAKETIME_TIMESTAMP_FILE=str(self.file), FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1",
                          FAKETIME_DONT_RESET="1")
        self.environment = {**os.environ, "LD_PRELOAD": str(FAKETIME)}

    def set(self, ahead_s):
        new = self.file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}")
        new.rename(self.file)


class Node:
    def __init__(self, folder, clock):
        self.folder, self.clock = pathlib.Path(folder), clock
        self.near = f"unix:{folder}/sock"
        self.ca = self.folder / "ca"
        for words in (["init"], ["issue", "--role", "daemon", "--name", "n", "--address", "127.0.0.1"],
                      ["issue", "--role", "job", "--name", "job"]):
            subprocess.run([CLI, "ca", words[0], str(self.ca), *words[1:]], check=True, capture_output=True)
        flash = self.folder / "flash"
        os.close(os.open(flash, os.O_CREAT | os.O_RDWR, 0o600))
        os.truncate(flash, 128 << 20)
        tls = self.ca / "n"
        config = self.folder / "config"
        # A lease that lasts: a busy machine must not end it. It would end at once if it were of the system's clock.
        config.write_text(f"""node_name: "n" ddr_bytes: "64MiB" segment_bytes: "2MiB" unix_socket: "{folder}/sock"
tcp_listen: "127.0.0.1:0" tcp {{ }} lease_ms: 30000 drain_ms: 500 flash_unused_s_max: {UNUSED_S}
tls {{ certificate: "{tls}/node.crt" key: "{tls}/node.key" authority: "{tls}/ca.crt" }} flash {{ path: "{flash}" }}
""")
        self.log = self.folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([DAEMON, "--config", str(config)], stderr=log, env=clock.environment)
        self.until(lambda: " serving " in self.log.read_text(), "the daemon did not come up")
        self.began = time.monotonic()
        self.far = self.ask("nodes")["nodes"][0]["control_addresses"][1]

    def until(self, true, what):
        end = time.monotonic() + 120
        while not true():
            assert time.monotonic() < end and self.process.poll() is None, (what, self.log.read_text()[-3000:])
            time.sleep(0.05)

    def ask(self, *words):
        done = subprocess.run([CLI, *words, "--pool", self.near, "-o", "json"], capture_output=True, text=True, timeout=60,
                              env=self.clock.environment)
        assert done.returncode == 0, (words, done.stderr)
        return json.loads(done.stdout)

    def look_by_tls(self):
        return subprocess.run([CLI, "status", "--pool", self.far, "--tls", str(self.ca / "job")], capture_output=True,
                              text=True, timeout=60, env=self.clock.environment)

    def extents(self):
        return self.ask("flash", "ls")["nodes"][0]["extents"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)


def leases_and_steps(node, clock):
    """A job over TLS steps on, whichever way the clock is set, and computes the same."""
    def train():
        return Job(GPT, node.folder, node.far, "tcp", steps, "--tls", str(node.ca / "job"))

    steps = 200
    while True:
        quiet = train().result()
        with train() as job:
            assert job.wait_for("step 5:")
            (before,) = node.ask("sessions")["nodes"][0]["sessions"]
            for ahead_s in JUMPS_S:
                clock.set(ahead_s)
                at = job.at_step()
                node.until(lambda: job.ended() or job.at_step() > at + 5, "the job does not step")
                if job.ended():
                    break
                (now,) = node.ask("sessions")["nodes"][0]["sessions"] or [before]
                assert now["session_id"] == before["session_id"], (before, now)
                assert 0 < now["lease_left_ms"] <= 30000 and now["age_ms"] < 3_600_000, now
            in_time = not job.ended()
            run = job.result()
        clock.set(0)
        if in_time:
            break
        steps *= 3
    assert run["losses"] == quiet["losses"], (run["losses"][-3:], quiet["losses"][-3:])
    assert "lapsed" not in node.log.read_text()


def certificates(node, clock):
    """Certificates end by the system's clock: a refusal names the reason, and ends when the clock is right."""
    assert node.look_by_tls().returncode == 0
    for ahead_s, why in ((4000 * DAY_S, "expired"), (-4000 * DAY_S, "is not valid before")):
        clock.set(ahead_s)
        done = node.look_by_tls()
        assert done.returncode != 0 and why in done.stderr, (ahead_s, done.returncode, done.stderr)
    clock.set(0)
    assert node.look_by_tls().returncode == 0


def unused_extents(node, clock):
    """Those that nobody used for long are freed; but a clock that is set forward does not end all at once."""
    with Holder(LIBRARY, node.near, b"holder") as holder:
        holder.flash(1 << 20, FLASH_DURABLE)
        (extent,) = node.extents()
        # Until extents may be freed; this one is in use.
        time.sleep(max(0.0, node.began + UNUSED_S + 2 - time.monotonic()))
        assert node.extents()[0]["extent_id"] == extent["extent_id"]
    clock.set(30 * DAY_S)
    node.until(lambda: "the clock was set forward" in node.log.read_text(), "nobody noticed that the clock was set")
    assert [one["extent_id"] for one in node.extents()] == [extent["extent_id"]], node.log.read_text()[-2000:]
    clock.set(-DAY_S)
    assert [one["extent_id"] for one in node.extents()] == [extent["extent_id"]]
    clock.set(30 * DAY_S)
    node.until(lambda: node.extents() == [], "an extent that nobody uses stays")
    assert "freed a flash extent that was not used" in node.log.read_text()
    clock.set(0)


if FAKETIME is None:
    needs.missing("libfaketime", "faketime")
with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ho-clock-") as top:  # /tmp may be memory
    system_clock = Clock(top)
    with Node(top, system_clock) as daemon:
        leases_and_steps(daemon, system_clock)
        certificates(daemon, system_clock)
        unused_extents(daemon, system_clock)
print("leases, steps and flash do not depend on the system's clock")
