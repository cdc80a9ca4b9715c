"""Runs the commands of deploy/docs/upgrade.md, as they stand, on a pool of three daemons in which a GPT trains meanwhile:
every daemon is restarted, one also twice, and the losses stay the same, bit for bit.

Usage: upgrade_test.py SOURCE CLI DAEMON GPT
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE, CLI, DAEMON, GPT = sys.argv[1:5]
sys.path[:0] = [f"{SOURCE}/tools/soaking", f"{SOURCE}/tests/support"]
from gpt_job import Job  # noqa: E402
from pages import blocks  # noqa: E402
from service_manager import ServiceManager  # noqa: E402

NODES = (1, 2, 3)
SEGMENT = 2 << 20
UPGRADES = 4  # that the page makes
APT = "apt() { test $1 = install; }\n"  # packages_test installs packages


class Node(ServiceManager):
    def __init__(self, top, number):
        self.name, self.folder = f"node{number}", pathlib.Path(top, f"node{number}")
        self.folder.mkdir()
        self.pool = f"unix:{self.folder}/sock"
        peers = "".join(f'nodes {{ node_id: {n} name: "node{n}" control_addresses: "unix:{top}/node{n}/sock" }}\n'
                        for n in NODES if n != number)
        config = self.folder / "config.textproto"
        # So little that a job needs all of them.
        config.write_text(f"""node_id: {number} node_name: "{self.name}" ddr_bytes: {8 * SEGMENT} segment_bytes: {SEGMENT}
unix_socket: "{self.folder}/sock" tcp {{ address: "127.0.0.1" }} lease_ms: 600000 drain_ms: 500
{peers}""")
        super().__init__(self.folder, [DAEMON, "--config", str(config)])

    def granted_bytes(self):
        done = subprocess.run([CLI, "status", "--pool", self.pool, "-o", "json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["nodes"][0]["ddr_granted_bytes"]


def restart_all(top, nodes, transport, steps):
    """@return a line that says what happened, or None: the job ended too early."""
    quiet = Job(GPT, top, nodes[0].pool, transport, steps).result()
    with Job(GPT, top, nodes[0].pool, transport, steps) as job:
        assert job.wait_for("step 10:")
        granted = [node.granted_bytes() for node in nodes]
        if job.ended():
            return None
        assert min(granted) > 0, granted
        script = APT + "".join(blocks(f"{SOURCE}/deploy/docs/upgrade.md"))
        environment = {**os.environ, "PATH": f"{top}/bin:{os.environ['PATH']}", "HYPEROFFLOAD_POOL": nodes[0].pool}
        done = subprocess.run(["bash", "-eu", "-c", script], env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, (done.stdout, done.stderr)
        in_time = not job.ended()
        run = job.result()
    assert run["losses"] == quiet["losses"], (transport, run["losses"][-3:], quiet["losses"][-3:])
    assert done.stdout.count(", 1 of 1 sessions and ") == UPGRADES or not in_time, done.stdout
    if not in_time:
        return None
    assert len(job.gaps_ms()) == UPGRADES, job.gaps_ms()
    return (f"{transport}: {UPGRADES} restarts of {len(nodes)} daemons, without one for {min(job.gaps_ms())} to "
            f"{max(job.gaps_ms())} ms; longest step {max(run['step_ms']):.0f} ms, "
            f"mean {sum(run['step_ms']) / len(run['step_ms']):.1f} ms")


def main():
    with tempfile.TemporaryDirectory(prefix="ho-upgrade-") as top, contextlib.ExitStack() as stack:
        pathlib.Path(top, "bin").mkdir()
        pathlib.Path(top, "bin/hyperoffload").symlink_to(CLI)
        nodes = [stack.enter_context(Node(top, number)) for number in NODES]
        for node in nodes:
            node.start()
        for transport, steps in (("local", 2000), ("tcp", 400)):
            while (told := restart_all(top, nodes, transport, steps)) is None:
                steps *= 3
                assert steps < 1_000_000
            print(told)
        for node in nodes:
            assert set(node.exits) == {75}, node.exits  # it ended itself each time
            assert node.stop() == 0 and node.left == [], node.left


main()
