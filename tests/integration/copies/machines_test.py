"""Two homes of a value lie in different racks, or on different machines, where a pool has several: two daemons of one rack
or machine, which are lost together, cost a job nothing. A job reports the values that have one home to its daemons.

Usage: machines_test.py DAEMON EXAMPLE_JOB CLI. Skipped where the kernel does not allow to mount."""
import json
import re
import subprocess
import sys
import tempfile
import time

from pool import ELSEWHERE, Pool, train  # first: it finds needs
import needs

daemon, gpt, cli = sys.argv[1:4]
STEPS = 60


def missing(pool, node):
    """What the job has reported to a node."""
    done = subprocess.run([cli, "sessions", "--pool", pool.address(node), "-o", "json"], capture_output=True, text=True,
                          timeout=60)
    counts = [int(one) for one in re.findall(r'"copies_missing": ?(\d+)', done.stdout)]
    return max(counts, default=0)


def survives(**where):
    with tempfile.TemporaryDirectory() as folder, Pool(folder, daemon, **where) as pool:
        status = subprocess.run([cli, "status", "--pool", pool.address(0), "-o", "json"], capture_output=True, timeout=60)
        racks = [node["rack"] or "-" for node in json.loads(status.stdout)["nodes"]]
        assert "".join(racks) == where.get("racks", "---"), racks
        expected = train(pool, gpt, "tcp", STEPS).result()
        job = train(pool, gpt, "tcp", STEPS)
        assert job.wait_for(f"step {STEPS // 4}:")
        for node in (0, 1):
            pool.kill(node)
        run = job.result()
        assert run["losses"] == expected["losses"], (run["losses"][-3:], expected["losses"][-3:])


def counts_what_is_missing():
    with tempfile.TemporaryDirectory() as folder, Pool(folder, daemon, machines="112") as pool, \
            train(pool, gpt, "tcp", 1_000_000) as job:
        assert job.wait_for("step 5:")
        assert missing(pool, 0) == 0
        pool.kill(2)
        end = time.monotonic() + 60
        while missing(pool, 0) == 0:
            assert time.monotonic() < end and not job.ended(), job.said()[-2000:]
            time.sleep(0.1)
        # All of them had one home there, and nodes of the other machine are not apart.
        assert missing(pool, 1) == missing(pool, 0) > 10, (missing(pool, 0), missing(pool, 1))


survives(racks="aab")
with tempfile.NamedTemporaryFile("w") as elsewhere:
    if subprocess.run([*ELSEWHERE, elsewhere.name, "true"], check=False, capture_output=True).returncode != 0:
        needs.skip("no right to mount")
survives(machines="112")
counts_what_is_missing()
print(json.dumps({"ok": True}))
