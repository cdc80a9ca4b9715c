"""The example of a learner and actors, on two and three ranks, over a real daemon: as it comes, and by a plan."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from with_torch import torch  # noqa: E402, F401

cli, daemon, library, package, example = sys.argv[1:6]
environment = dict(os.environ, HYPEROFFLOAD_LIBRARY=library, PYTHONPATH=package)



def run(*words):
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
        run(sys.executable, example, "--describe", folder / "described")
        link = {"bytesPerS": "1000000000", "latencyNs": "10000"}
        (folder / "node.json").write_text(json.dumps({"name": "node", "localDdr": {"capacityBytes": str(1 << 30), "read": link,
                                                                                   "write": link}}))
        run(cli, "analyze-programs", folder / "described/programs.textproto", "--hardware", folder / "node.json",
            "--out", folder / "plan")
        for planned in ([], ["--plan", folder / "plan"]):
            said = run(sys.executable, example, "--pool", f"unix:{folder}/c.sock", "--versions", "3", *planned)
            assert "2 learners, 3 actors: all versions are the same on both sides" in said, said
            assert said.count("version 3 ") == 4, said  # a learner and three actors
    finally:
        process.kill()
        process.wait()
print("actors act on what the learner published")
