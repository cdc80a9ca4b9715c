"""Where a daemon's stderr is the journal, its lines go there with their fields; elsewhere they are plain.

The journal is a socket of this test, in a mount namespace of its own. Skipped where the kernel does not allow that."""
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402

SOCKET = pathlib.Path("/run/systemd/journal/socket")
cli, daemon = sys.argv[1:3]
if len(sys.argv) == 3:
    enter = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*enter, "mount", "-t", "tmpfs", "tmpfs", "/run"], check=False, capture_output=True).returncode != 0:
        needs.skip("no right to mount")
    sys.exit(subprocess.run([*enter, sys.executable, __file__, cli, daemon, "inside"], check=False).returncode)


def fields_of(message):
    """The native protocol: KEY=value, or KEY, a length of 8 bytes and the value."""
    fields = {}
    while message:
        line, _, rest = message.partition(b"\n")
        if b"=" in line:
            key, value = line.split(b"=", 1)
            message = rest
        else:
            key, length = line, struct.unpack("<Q", rest[:8])[0]
            value, message = rest[8:8 + length], rest[8 + length + 1:]
        fields.setdefault(key.decode(), []).append(value.decode())
    return fields


subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
SOCKET.parent.mkdir(parents=True)
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind(str(SOCKET))
journal.settimeout(60)


def run_daemon(folder, stream, work):
    """Runs a daemon while `work` does. @return what it wrote to stderr."""
    config, log = folder / "config.textproto", folder / "log"
    config.write_text(f'node_name: "n7" ddr_bytes: "64MiB" segment_bytes: "2MiB" unix_socket: "{folder}/c.sock"')
    with open(log, "wb") as out:
        there = os.fstat(out.fileno())
        environment = dict(os.environ, JOURNAL_STREAM=f"{there.st_dev}:{there.st_ino}" if stream else "1:2")
        process = subprocess.Popen([daemon, "--config", str(config)], stderr=out, env=environment)
        try:
            work(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    return log.read_text()


def ask(folder, *words):
    end = time.monotonic() + 60
    while True:
        done = subprocess.run([cli, *words, "--pool", f"unix:{folder}/c.sock", "-o", "json"], capture_output=True, text=True,
                              timeout=60)
        if done.returncode != 4 or time.monotonic() > end:
            return done
        time.sleep(0.05)


def work(folder):
    assert ask(folder, "evict", "0:99").returncode == 1
    assert ask(folder, "bench", "transport", "--transport", "local", "--op", "put", "--size", "4KiB", "--inflight", "1",
               "--seconds", "0.1").returncode == 0


with tempfile.TemporaryDirectory() as name:
    here = pathlib.Path(name)
    text = run_daemon(here, True, lambda process: work(here))
    assert text == "", text
    entries = []
    while not entries or entries[-1]["MESSAGE"] != ["stopped"]:
        entries.append(fields_of(journal.recv(1 << 20)))
    for one in entries:
        assert one["HO_NODE"] == ["n7"] and one["SYSLOG_IDENTIFIER"] == ["hyperoffloadd"], one
        assert one["MESSAGE"][0].startswith(one["HO_EVENT"][0]), one
        assert one["PRIORITY"][0] in "3467", one
    by_event = {one["HO_EVENT"][0]: one for one in entries}
    opened = by_event["session opened"]
    assert opened["HO_SESSION"] == ["1"] and opened["HO_KIND"] == ["session"] and opened["PRIORITY"] == ["6"], opened
    assert f"uid={os.getuid()}" in opened["HO_PEER"][0], opened
    granted = by_event["granted"]
    assert granted["HO_KIND"] == ["grant"] and granted["HO_SESSION"] == ["1"], granted
    assert granted["HO_BYTES"][0].endswith("MiB") and granted["HO_PEER"] == opened["HO_PEER"], granted
    refused = by_event["refused"]
    assert refused["HO_CAUSE"] and refused["HO_KIND"] == ["refusal"], refused
    assert f"uid={os.getuid()}" in refused["HO_PEER"][0], refused
    # Elsewhere they are lines, as ever; also where the journal has no socket.
    text = run_daemon(here, False, lambda process: work(here))
    assert "session opened session=1" in text and "kind=session" in text, text
    journal.close()
    SOCKET.unlink()
    text = run_daemon(here, True, lambda process: work(here))
    assert "session opened session=1" in text, text
print(json.dumps(opened))
