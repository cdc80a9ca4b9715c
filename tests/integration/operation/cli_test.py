"""hyperoffload status, nodes, sessions, segments and flash against two real daemons: answers and exit codes."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from patience import within  # noqa: E402

cli, daemon = sys.argv[1:3]


def forget_dialed(listening):
    """Connections that nobody has accepted."""
    listening.setblocking(False)
    try:
        while True:
            listening.accept()[0].close()
    except BlockingIOError:
        listening.setblocking(True)


def hang_up_on_all(listening):
    """Takes a connection of each, and only then closes them."""
    dialed = []
    for one in listening:
        one.settimeout(40)
        dialed.append(one.accept()[0])
    for one in dialed:
        one.close()


def run(*words, pool=None, meanwhile=lambda: None):
    environment = {k: v for k, v in os.environ.items() if k != "HYPEROFFLOAD_POOL"}
    if pool:
        environment["HYPEROFFLOAD_POOL"] = pool
    begin = time.monotonic()
    with subprocess.Popen([cli, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            meanwhile()
            out, err = process.communicate(timeout=60)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    done.seconds = time.monotonic() - begin
    return done


def start(folder, node, others, name=None):
    config = folder / f"{node}.textproto"
    config.write_text(f"""
node_id: {node} node_name: "{name or f'n{node}'}" ddr_bytes: 16777216 segment_bytes: 2097152
unix_socket: "{folder}/{node}.sock"
""" + "".join(f'nodes {{ node_id: {other} name: "n{other}" control_addresses: "unix:{folder}/{other}.sock" }}\n'
              for other in others))
    return subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)


def expect(done, code):
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    return done


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    pool = f"unix:{folder}/0.sock"
    daemons = [start(folder, 0, [1]), start(folder, 1, [0])]
    try:
        end = time.monotonic() + 20
        while run("status", "--pool", pool).returncode != 0:
            assert time.monotonic() < end, "the daemons did not come up"
            time.sleep(0.1)

        answer = json.loads(expect(run("status", "-o", "json", pool=pool), 0).stdout)
        assert [n["node_id"] for n in answer["nodes"]] == [0, 1], answer
        assert all(n["reachable"] and n["ddr_capacity_bytes"] == 16777216 for n in answer["nodes"]), answer
        assert all(n["page_kind"] in ("hugetlb-2M", "thp", "4K") for n in answer["nodes"]), answer
        assert all(n["path"] == "local" and n["path_reason"] == "same machine" for n in answer["nodes"]), answer
        for node in answer["nodes"]:  # none on a machine with one NUMA node
            shares = [share["capacity_bytes"] for share in node["numa"]]
            assert not shares or sum(shares) == 16777216, answer
        assert all(n["refusals"] == [] for n in answer["nodes"]), answer

        # Small pools have no room for 64 MiB; a profile is written of what was measured.
        profile = folder / "profile.json"
        done = expect(run("bench", "matrix", "--pool", pool, "--seconds", "0.3", "-o", "json",
                          "--profile", str(profile)), 0)
        answer = json.loads(done.stdout)
        assert [n["driver"] for n in answer["nodes"]] == ["local", "local"], answer
        for node in answer["nodes"]:
            assert [(r["op"], r["size"]) for r in node["rows"]] == [
                (op, size) for op in ("get", "put") for size in (4096, 65536, 1048576, 16777216)], node
            assert all(r["bytes_per_s"] > 0 and 0 < r["alone_p50_us"] <= r["alone_p99_us"] for r in node["rows"])
        assert int(json.loads(profile.read_text())["localDdr"]["read"]["bytesPerS"]) > 0, profile.read_text()
        assert expect(run("bench", "matrix", "--pool", pool, "--seconds", "0.2"), 0).stdout.startswith("FROM")
        expect(run("bench", "matrix", "--pool", pool, "--transport", "pigeon"), 2)
        # Neither node offers anything between nodes.
        assert "tcp: not offered" in expect(run("bench", "matrix", "--pool", pool, "--transport", "tcp"), 1).stderr

        for command in (["nodes"], ["sessions"], ["segments"], ["flash", "ls"]):
            done = expect(run(*command, "-o", "json", "--pool", "unix:/nowhere.sock," + pool), 0)
            assert len(json.loads(done.stdout)["nodes"]) == 2, done.stdout
            assert expect(run(*command, "--pool", pool), 0).stdout.startswith("NODE"), command
            assert done.stderr == "", done.stderr

        # A node that calls itself otherwise than the pool does is found by both names.
        daemons += [start(folder, 20, [21], name="other"), start(folder, 21, [20])]
        renamed = f"unix:{folder}/21.sock"
        end = time.monotonic() + 30
        while run("status", "--pool", renamed).returncode != 0:
            assert time.monotonic() < end, "the daemons did not come up"
            time.sleep(0.1)
        for command in ("status", "nodes"):
            assert ("node 20 has two names: n20 in nodes { } of n21, and other in its own configuration" in
                    expect(run(command, "--pool", renamed), 0).stderr), command
        for node in ("other", "n20", "20"):
            expect(run("drain", node, "--pool", renamed), 0)
            expect(run("undrain", node, "--pool", renamed), 0)
        assert ("the pool has no node n19; it has 21 (n21), 20 (n20, other)" in
                expect(run("drain", "n19", "--pool", renamed), 2).stderr)

        # A stopped node costs the deadline and no more; slack for a busy machine.
        daemons[1].send_signal(signal.SIGSTOP)
        done = expect(run("status", "-o", "json", "--pool", pool), 1)
        assert done.seconds < within(6), done.seconds
        answer = json.loads(done.stdout)
        assert [n["reachable"] for n in answer["nodes"]] == [True, False], answer
        assert "n1" in done.stderr, done.stderr
        daemons[1].send_signal(signal.SIGCONT)

        # Several cost as long as one, also before a measurement: all are asked before any has answered.
        silent = [socket.socket(socket.AF_UNIX) for _ in range(6)]
        for number, one in enumerate(silent):
            one.bind(f"{folder}/{10 + number}.sock")
            one.listen()
        alone = start(folder, 9, range(10, 16))
        daemons.append(alone)
        end = time.monotonic()
        while run("status", "--pool", f"unix:{folder}/9.sock").returncode == 4:
            assert time.monotonic() < end + 30, "the daemon did not come up"
            time.sleep(0.1)
        for one in silent:
            forget_dialed(one)
        done = expect(run("bench", "matrix", "--pool", f"unix:{folder}/9.sock", "--seconds", "0.2", "-o", "json", "--timeout", "50s",
                          meanwhile=lambda: hang_up_on_all(silent)), 1)
        answer = json.loads(done.stdout)
        assert (answer["from"], [n["name"] for n in answer["nodes"]]) == ("n9", ["n9"]), answer
        assert all(f"n{number}" in done.stderr for number in range(10, 16)), done.stderr

        # Nor does it where it is the first of several addresses.
        daemons[0].send_signal(signal.SIGSTOP)
        done = expect(run("status", "-o", "json", "--pool", f"{pool},unix:{folder}/1.sock"), 1)
        assert done.seconds < within(6), done.seconds
        answer = json.loads(done.stdout)
        assert [(n["node_id"], n["reachable"]) for n in answer["nodes"]] == [(1, True), (0, False)], answer
        daemons[0].send_signal(signal.SIGCONT)

        expect(run("flash", "free", "zebra", "--pool", pool), 2)
        assert "has no node 7" in expect(run("flash", "free", "7:1", "--pool", pool), 1).stderr
        assert "has no flash" in expect(run("flash", "free", "0:1", "--pool", pool), 1).stderr
        expect(run("status", "--pool", "nonsense"), 2)
        expect(run("status", "-o", "xml", "--pool", pool), 2)
        expect(run("status", "--pool", f"unix:{folder}/none.sock"), 4)
        # A daemon that answers later than the default is waited for when told so.
        daemons[0].send_signal(signal.SIGSTOP)
        expect(run("status", "--timeout", "100ms", "--pool", pool), 4)
        waiting = subprocess.Popen([cli, "nodes", "--timeout", "60s", "--pool", pool], stdout=subprocess.DEVNULL)
        time.sleep(2.5)
        daemons[0].send_signal(signal.SIGCONT)
        assert waiting.wait() == 0
        for one in daemons:
            one.terminate()
            assert one.wait(20) == 0
        assert expect(run("nodes", "--pool", pool), 4).stdout == ""
    finally:
        for one in daemons:
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.kill()
                one.wait()
