"""Runs the commands of client/docs/copies.md, as they stand: plans with two homes, and trains on three real daemons of which
one is killed.

Usage: copies_test.py SOURCE CLI DAEMON GPT
"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

SOURCE, CLI, DAEMON, GPT = sys.argv[1:5]
sys.path.insert(0, f"{SOURCE}/tests/integration/copies")
from one_node import Node  # noqa: E402
from pages import blocks, command  # noqa: E402
from pool import Pool  # noqa: E402

PAGE = f"{SOURCE}/client/docs/copies.md"
SMALL = "--layers 2 --dim 64 --heads 2 --seq 32 --batch 2 --device-memory 40% --steps 400 -o json"


def plan():
    """The page's plan has two homes for all that leaves the device, and is proved."""
    link = {"bytesPerS": "20000000000", "latencyNs": "5000"}
    hardware = {"name": "page", "deviceBytes": str(1 << 36), "remoteDdr": {"capacityBytes": str(1 << 40), "read": link, "write": link}}
    with Node(CLI, DAEMON) as node:
        (node.folder / "hw.json").write_text(json.dumps(hardware))
        node.run("hyperoffload model llama-like --phase train --layers 2 --hidden 64 --heads 2 --kv-heads 2 --context 64 --out step.json")
        said = node.run("".join(blocks(PAGE)))
        assert " storages have two homes, on different nodes" in said, said
        moved = node.json("hyperoffload verify step.hos")
        assert moved["legal"], moved


def losses(pool, victim=None):
    """Trains at the first node, and loses another one meanwhile."""
    out, err = pool.folder / f"out{victim}", pool.folder / f"err{victim}"
    words = [GPT, *shlex.split(command(PAGE, "hyperoffload-gpt --copies"))[1:], *SMALL.split(), "--pool", pool.address(0)]
    with open(out, "w") as to, open(err, "w") as says:
        job = subprocess.Popen(words, stdout=to, stderr=says)
    if victim is not None:
        end = time.monotonic() + 120
        while "step 10:" not in err.read_text():
            assert time.monotonic() < end and job.poll() is None, err.read_text()[-2000:]
            time.sleep(0.005)
        pool.kill(victim)
    assert job.wait(400) == 0, err.read_text()[-2000:]
    assert victim is None or "a node is lost to this job" in err.read_text(), "it ended before"
    return json.loads(out.read_text())["losses"]


def main():
    plan()
    with tempfile.TemporaryDirectory(prefix="ho-page-") as top, Pool(pathlib.Path(top), DAEMON) as pool:
        assert losses(pool) == losses(pool, victim=2)
    print("the page's plan has two homes, and its job outlives a node")


main()
