"""The example of a learner and actors, on two and three ranks, over a real daemon."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from with_torch import torch  # noqa: E402, F401

daemon, library, package, example = sys.argv[1:5]
environment = dict(os.environ, HYPEROFFLOAD_LIBRARY=library, PYTHONPATH=package)

with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    config = folder / "config.textproto"
    config.write_text(f'''
node_id: 5 ddr_bytes: 67108864 segment_bytes: 2097152 unix_socket: "{folder}/c.sock" drain_ms: 500
lease_ms: 600000
''')
    process = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while not (folder / "c.sock").exists():
            assert time.monotonic() < end and process.poll() is None, "the daemon did not come up"
            time.sleep(0.1)
        done = subprocess.run([sys.executable, example, "--pool", f"unix:{folder}/c.sock", "--versions", "3"],
                              env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 learners, 3 actors: all versions are the same on both sides" in done.stdout, done.stdout
        assert done.stdout.count("version 3 ") == 4, done.stdout  # a learner and three actors
    finally:
        process.kill()
        process.wait()
print("actors act on what the learner published")
