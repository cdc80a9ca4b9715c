"""A daemon whose log cannot be written, as on a full disk, works as ever: jobs, administrators, its end."""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

cli, daemon = sys.argv[1:3]

with tempfile.TemporaryDirectory() as name, open("/dev/full", "w", encoding="utf-8") as full:
    folder = pathlib.Path(name)
    config, pool = folder / "config.textproto", f"unix:{folder}/c.sock"
    config.write_text(f'node_name: "n" ddr_bytes: "64MiB" segment_bytes: "2MiB" unix_socket: "{folder}/c.sock" '
                      f'log_level: "debug" drain_ms: 500')
    process = subprocess.Popen([daemon, "--config", str(config)], stderr=full)

    def ask(*words):
        return subprocess.run([cli, *words, "--pool", pool, "-o", "json"], capture_output=True, text=True, timeout=60)

    def events():
        return [one["event"] for one in json.loads(ask("events").stdout)["events"]]

    try:
        end = time.monotonic() + 60
        while ask("status").returncode != 0:
            assert time.monotonic() < end and process.poll() is None, "the daemon did not come up"
            time.sleep(0.05)
        for _ in range(5):
            done = ask("bench", "transport", "--transport", "local", "--op", "put", "--size", "4KiB", "--inflight", "1",
                       "--seconds", "0.1")
            assert done.returncode == 0, done
        assert "session closed" in events(), events()
        config.write_text(config.read_text() + " nonsense: 1")
        process.send_signal(signal.SIGHUP)
        while not any("stays as it was" in one or "reload" in one for one in events()):
            assert time.monotonic() < end and process.poll() is None, events()
            time.sleep(0.05)
        assert ask("evict", "0:999").returncode == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.returncode
    finally:
        process.kill()
        process.wait()
print("a log that cannot be written costs nobody anything")
