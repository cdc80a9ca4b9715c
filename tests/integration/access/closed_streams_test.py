"""Programs that are started with descriptors 0 to 2 closed: no file of theirs takes these places, where a line of a log or a
table would be written into it. A command that has a result to print fails.

Usage: closed_streams_test.py CLI DAEMON GPT
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

CLI, DAEMON, GPT = sys.argv[1:4]
CLOSED = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
FLASH_BYTES = 64 << 20


def main():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ho-closed-") as top:  # /tmp may be memory
        flash, config, pool = pathlib.Path(top, "flash"), pathlib.Path(top, "config"), f"unix:{top}/sock"
        os.close(os.open(flash, os.O_CREAT | os.O_RDWR, 0o600))
        os.truncate(flash, FLASH_BYTES)
        config.write_text(f'node_name: "n" ddr_bytes: "64MiB" segment_bytes: "2MiB" unix_socket: "{top}/sock" '
                          f'tcp {{ address: "127.0.0.1" }} log_level: "debug" drain_ms: 500 flash {{ path: "{flash}" }}')

        def ask(*words):
            return subprocess.run([CLI, *words, "--pool", pool, "-o", "json"], capture_output=True, text=True, timeout=60)

        daemon = subprocess.Popen([*CLOSED, DAEMON, "--config", str(config)])
        try:
            end = time.monotonic() + 60
            while ask("status").returncode != 0:
                assert time.monotonic() < end and daemon.poll() is None, "the daemon did not come up"
                time.sleep(0.05)
            streams = [os.readlink(f"/proc/{daemon.pid}/fd/{i}") for i in range(3)]
            assert streams == ["/dev/null"] * 3, streams
            # This makes lines of the log.
            train = [GPT, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32", "--batch", "2", "--steps", "4",
                     "--device-memory", "40%", "--pool", pool]
            assert subprocess.run([*train, "-o", "json"], capture_output=True, timeout=120).returncode == 0
            assert ask("evict", "0:999").returncode == 1
            # A result that cannot be printed is an error.
            assert subprocess.run([*CLOSED, *train], timeout=120).returncode != 0
            for words in (["status"], ["status", "-o", "json"], ["nodes"], ["sessions"], ["flash", "ls"], ["events"]):
                done = subprocess.run([*CLOSED, CLI, *words, "--pool", pool], timeout=60)
                assert done.returncode != 0, words
            daemon.terminate()
            assert daemon.wait(60) == 0, daemon.returncode
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
        done = subprocess.run([CLI, "fsck", str(flash), "-o", "json"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert json.loads(done.stdout), done.stdout
        assert subprocess.run([*CLOSED, DAEMON, "--config", str(config), "--check-config"], timeout=60).returncode != 0


main()
print("no file takes the place of a closed stream")
