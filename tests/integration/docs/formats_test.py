"""The files that proto/FORMATS.md shows are read by the commands they are for: hardware by analyze-ranks, tensors by reshard.

Usage: formats_test.py SOURCE CLI
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from pages import blocks

SOURCE, CLI = sys.argv[1:3]
# A first value that rests while two others are used.
STEP = {"version": 1, "name": "step", "storages": [{"id": i, "name": f"a{i}", "kind": "ACTIVATION", "bytes": 1 << 20} for i in range(4)],
        "ops": [{"id": i, "name": f"op{i}", "durationNs": 1_000_000, "reads": reads, "writes": writes} for i, (reads, writes) in
                enumerate([([], [0]), ([0], [1]), ([1], [2]), ([2], [3]), ([2], [3]), ([0], [3])])]}


def answer(*words):
    done = subprocess.run([CLI, *words, "-o", "json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return json.loads(done.stdout)


def main():
    hardware, tensors = blocks(f"{SOURCE}/proto/FORMATS.md", "json")
    with tempfile.TemporaryDirectory(prefix="ho-formats-") as top:
        node, model, step = (str(pathlib.Path(top, name)) for name in ("node.json", "model.json", "step.json"))
        pathlib.Path(node).write_text(hardware)
        pathlib.Path(model).write_text(tensors)
        pathlib.Path(step).write_text(json.dumps(STEP))
        ranks = answer("analyze-ranks", step, "--hardware", node, "--device-memory", "75%", "--out", str(pathlib.Path(top, "plans")))
        assert len(ranks["ranks"]) == len(json.loads(hardware)["paths"]), ranks
        answer("reshard", "--mesh-from", "4x2:dp,tp", "--from", "tp;-", "--mesh-to", "2x4:dp,tp", "--to", "-;tp", "--tensors", model)
    print("the page's hardware and tensors are right")


main()
