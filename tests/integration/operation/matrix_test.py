"""hyperoffload bench matrix: two nodes at addresses of their own, each measured from either end."""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

cli, daemon = sys.argv[1:3]
SIZES = [4096, 65536, 1048576, 16777216, 67108864]


def start(folder, node):
    other = 1 - node
    config = folder / f"{node}.textproto"
    config.write_text(f"""
node_id: {node} node_name: "n{node}" ddr_bytes: 201326592 segment_bytes: 67108864
unix_socket: "{folder}/{node}.sock" tcp {{ address: "127.0.0.{node + 1}" }}
nodes {{ node_id: {other} name: "n{other}" control_addresses: "unix:{folder}/{other}.sock" }}
""")
    return subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)


def matrix(node, *words, code=0):
    done = subprocess.run([cli, "bench", "matrix", "--pool", f"unix:{folder}/{node}.sock", *words],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    return done


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    daemons = [start(folder, 0), start(folder, 1)]
    try:
        end = time.monotonic() + 20
        while subprocess.run([cli, "status", "--pool", f"unix:{folder}/0.sock"], capture_output=True).returncode != 0:
            assert time.monotonic() < end, "the daemons did not come up"
            time.sleep(0.1)

        # Every pair, between the nodes' addresses: a profile from either end, and of both together.
        seen = []
        for node in (0, 1):
            done = matrix(node, "--transport", "tcp", "--seconds", "1", "-o", "json", "--profile", f"{folder}/{node}.json")
            answer = json.loads(done.stdout)
            assert answer["from"] == f"n{node}", answer
            for one in answer["nodes"]:
                seen.append((answer["from"], one["name"]))
                assert one["driver"] == "tcp" and "between processes" in one["reason"], one
                assert [(r["op"], r["size"]) for r in one["rows"]] == [
                    (op, size) for op in ("get", "put") for size in SIZES], one
                assert all(r["bytes_per_s"] > 0 and r["alone_p50_us"] > 0 for r in one["rows"]), one
        assert sorted(seen) == [(a, b) for a in ("n0", "n1") for b in ("n0", "n1")], seen
        own = [json.loads((folder / f"{node}.json").read_text())["remoteDdr"] for node in (0, 1)]
        own[1]["read"] = {"bytesPerS": "1000", "latencyNs": "7000000000"}
        (folder / "slow.json").write_text(json.dumps({"name": "slow", "remoteDdr": own[1]}))
        done = matrix(0, "--transport", "tcp", "--seconds", "0.4", "--profile", f"{folder}/both.json",
                      "--with", f"{folder}/slow.json")
        assert re.search(r"^n0 +n1 +tcp +between processes", done.stdout, re.MULTILINE), done.stdout
        both = json.loads((folder / "both.json").read_text())
        assert "localDdr" not in both, both
        assert both["remoteDdr"]["read"] == {"bytesPerS": "1000", "latencyNs": "7000000000"}, both
        assert 1000 < int(both["remoteDdr"]["write"]["bytesPerS"]), both
        # A tier that one node lacks is none for a plan that may run on either.
        (folder / "near.json").write_text(json.dumps({"name": "near", "localDdr": own[0], "remoteDdr": own[0]}))
        matrix(0, "--transport", "tcp", "--seconds", "0.4", "--profile", f"{folder}/both.json", "--with", f"{folder}/near.json")
        both = json.loads((folder / "both.json").read_text())
        assert "localDdr" not in both and "remoteDdr" in both, both
        (folder / "alone.json").write_text(json.dumps({"name": "alone", "localDdr": own[0]}))
        done = matrix(0, "--transport", "tcp", "--seconds", "0.4", "--profile", f"{folder}/no.json", "--with",
                      f"{folder}/alone.json", code=2)
        assert "no tier in common" in done.stderr and not (folder / "no.json").exists(), done.stderr
        matrix(0, "--with", f"{folder}/none.json", "--profile", f"{folder}/x.json", code=2)
        matrix(0, "--with", f"{folder}/slow.json", code=2)  # with no profile to count it in

        for one in daemons:
            one.terminate()
            assert one.wait(20) == 0
    finally:
        for one in daemons:
            if one.poll() is None:
                one.send_signal(signal.SIGKILL)
                one.wait()
