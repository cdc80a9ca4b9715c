"""Daemons that list themselves in a real etcd of three members. etcd comes, goes and forgets; sessions stay.

Usage: membership_test.py CLI DAEMON HOLDER GPT TEST [LIBRARY PACKAGE]
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from etcd import Etcd, free_ports, needed

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from gpt_job import Job  # noqa: E402
from patience import within  # noqa: E402

CLI, DAEMON, HOLDER, GPT, TEST = sys.argv[1:6]
WARNING_S = 5  # after etcd is lost
SEGMENT = 2097152
TROUBLE = "etcd: trouble; sessions go on, the list of nodes stays as it is"


def eventually(what, condition):
    """Waits for as long as a busy machine may take."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.05)


class Daemon:
    """A daemon. etcd gives its number, unless `more` has one."""

    def __init__(self, folder, etcd, name, machine=None, more="", metrics=False, tls=None):
        self.folder = pathlib.Path(folder) / name
        self.folder.mkdir()
        self.name, self.port = name, free_ports(1)[0] if metrics else 0
        self.pool = f"unix:{self.folder}/sock"
        tls = etcd.tls if tls is None else tls
        web = f'http_listen: "127.0.0.1:{self.port}"' if metrics else ""
        (self.folder / "node.textproto").write_text(f"""
node_name: "{name}" ddr_bytes: {16 * SEGMENT} segment_bytes: {SEGMENT} lease_ms: 600000 drain_ms: 500 {more} {web}
unix_socket: "{self.folder}/sock"
etcd {{ endpoints: {json.dumps(etcd.endpoints)} machine_id: "{machine or 'machine-' + name}"
        id_file: "{self.folder}/number" {tls} }}
""")
        self.clients = []
        self.start()

    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([DAEMON, "--config", str(self.folder / "node.textproto")], stderr=log)

        def serves():
            assert self.process.poll() is None, self.log()
            return subprocess.run([CLI, "status", "--pool", self.pool], capture_output=True).returncode in (0, 1)

        eventually(self.log, serves)

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=60)

    def close(self):
        for client in self.clients:
            client.kill()
            client.wait()
            client.stdout.close()
        if self.process.poll() is None:
            self.end(signal.SIGKILL)

    def log(self):
        return (self.folder / "log").read_text()

    def ask(self, *words):
        """What the daemons of its list answer; one that does not is in it all the same."""
        done = subprocess.run([CLI, *words, "--pool", self.pool, "-o", "json"], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode in (0, 1), (words, done.stderr)
        return json.loads(done.stdout)["nodes"]

    def nodes(self):
        """Number -> name of all it lists."""
        return {one["node_id"]: one["name"] for one in self.ask("nodes")}

    def own(self, *words):
        return self.ask(*words)[0]

    def trouble(self):
        return self.own("status")["membership"]["trouble"]

    def states(self):
        """Its events of the kind."""
        done = subprocess.run([CLI, "events", "--pool", self.pool, "--kind", "state", "-o", "json"], capture_output=True,
                              text=True, timeout=60)
        return [one["event"] for one in json.loads(done.stdout)["events"] if one["node"] == self.name]

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return float(re.search(rf"^hyperoffload_{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.M)[1])

    def hold(self):
        client = subprocess.Popen([HOLDER, self.pool, str(SEGMENT)], stdout=subprocess.PIPE)
        self.clients.append(client)
        assert client.stdout.read(1) == b"y", self.log()

    def held(self):
        one = self.own("status")
        return one["sessions"], one["ddr_granted_bytes"]


def nodes_join_and_the_dead_leave(folder, etcd, start):
    a, b = start("a"), start("b")
    both = {0: "a", 1: "b"}
    eventually(a.log, lambda: a.nodes() == both and b.nodes() == both)
    assert a.own("nodes")["membership"]["kind"] == "etcd"
    assert etcd.keys("/hyperoffload/ids/") == {"/hyperoffload/ids/0": "machine-a", "/hyperoffload/ids/1": "machine-b"}
    a.hold()
    b.end(signal.SIGKILL)
    eventually(a.log, lambda: a.nodes() == {0: "a"})
    assert a.held() == (1, SEGMENT)
    assert "etcd: trouble" not in a.log()


def numbers_stay_with_machines(folder, etcd, start):
    a, b = start("a"), start("b")
    both = {0: "a", 1: "b"}
    eventually(a.log, lambda: a.nodes() == both)
    assert b.end() == 0  # leaves the list at once, and keeps its number
    eventually(a.log, lambda: a.nodes() == {0: "a"})
    assert list(etcd.keys("/hyperoffload/alive/")) == ["/hyperoffload/alive/0"]
    start("c")
    b.start()
    eventually(a.log, lambda: a.nodes() == {**both, 2: "c"})
    b.end()
    (b.folder / "number").unlink()  # etcd knows it too
    b.start()
    eventually(a.log, lambda: a.nodes() == {**both, 2: "c"})
    thief = start("thief", more="node_id: 1")
    eventually(thief.log, lambda: "node 1 is the number of machine machine-b" in thief.trouble())
    assert a.nodes() == {**both, 2: "c"}


def lost_members_end_no_session(folder, etcd, start):
    a, b = start("a", metrics=True), start("b")
    both = {0: "a", 1: "b"}
    eventually(a.log, lambda: a.nodes() == both and b.nodes() == both)
    a.hold()
    b.hold()
    etcd.kill(0)
    # A majority is there: another node can join, though the first endpoint of its list is dead.
    start("c")
    everyone = {**both, 2: "c"}
    eventually(a.log, lambda: a.nodes() == everyone and b.nodes() == everyone)
    eventually(a.log, lambda: a.trouble() == "")
    etcd.kill(1)
    eventually(a.log, lambda: a.trouble() != "" and b.trouble() != "")
    eventually(a.log, lambda: "etcd: trouble" in a.log() and "etcd: trouble" in b.log())
    assert a.metric("membership_trouble") == 1 and a.metric("membership_nodes") == 3
    assert a.nodes() == everyone  # the list as it was
    wide = subprocess.run([CLI, "status", "--pool", a.pool, "-o", "wide"], capture_output=True, text=True).stdout
    assert "NO ETCD" in wide and "in trouble for" in wide, wide
    # The owner gives memory, without etcd too.
    a.hold()
    assert a.held() == (2, 2 * SEGMENT) and b.held() == (1, SEGMENT)
    etcd.start_one(1)
    eventually(a.log, lambda: a.trouble() == "" and b.trouble() == "")
    assert a.states()[-2:] == [TROUBLE, "etcd: in order again"], a.states()
    assert f"{TROUBLE} why=" in a.log() and "kind=state" in a.log().split(TROUBLE)[1].splitlines()[0], a.log()
    assert a.metric("membership_trouble") == 0
    eventually(a.log, lambda: a.nodes() == everyone)
    assert a.held() == (2, 2 * SEGMENT) and b.held() == (1, SEGMENT)


def a_stopped_member_is_done_without(folder, etcd, start):
    etcd.stop(0)  # connections to it are taken, and never answered
    a, b = start("a"), start("b")
    both = {0: "a", 1: "b"}
    eventually(a.log, lambda: a.nodes() == both and b.nodes() == both)
    a.hold()
    etcd.go_on(0)
    etcd.stop(1)
    c = start("c")
    eventually(a.log, lambda: a.nodes() == {**both, 2: "c"})
    c.end(signal.SIGKILL)
    eventually(a.log, lambda: a.nodes() == both)
    eventually(a.log, lambda: a.trouble() == "" and b.trouble() == "")
    assert a.held() == (1, SEGMENT)


def a_job_trains_while_etcd_is_lost(folder, etcd, start):
    tcp = 'tcp { address: "127.0.0.1" }'
    a, b = start("a", more=tcp), start("b", more=tcp)
    both = {0: "a", 1: "b"}
    eventually(a.log, lambda: a.nodes() == both and b.nodes() == both)

    def warned(lose):
        """Both daemons say so."""
        before, lost = [one.log().count("etcd: trouble") for one in (a, b)], time.monotonic()
        lose()
        eventually(a.log, lambda: all(one.log().count("etcd: trouble") > had for one, had in zip((a, b), before)))
        took = time.monotonic() - lost
        assert took < within(WARNING_S), took
        return took

    def in_order():
        eventually(a.log, lambda: a.trouble() == "" and b.trouble() == "" and a.nodes() == both and b.nodes() == both)

    def disturb():
        etcd.kill(0)
        in_order()
        stopped = warned(lambda: etcd.stop(1))
        etcd.go_on(1)
        in_order()
        killed = warned(lambda: etcd.kill(1))
        etcd.start_one(0)
        etcd.start_one(1)
        in_order()
        etcd.wipe()
        eventually(a.log, lambda: len(etcd.keys("/hyperoffload/alive/")) == 2)
        in_order()
        return stopped, killed

    steps = 600
    while True:
        with Job(GPT, folder, a.pool, "tcp", steps, "--link", "70MiB/s") as job:  # at most some 50 steps a second
            assert job.wait_for("step 10:")
            assert all(one.held()[1] > 0 for one in (a, b)), (a.held(), b.held())
            stopped, killed = disturb()
            in_time = not job.ended()
            run = job.result()
        if in_time:
            break
        steps *= 3
    assert job.gaps_ms() == [] and "lost" not in job.said(), job.said()[-2000:]
    quiet = Job(GPT, folder, a.pool, "tcp", steps).result()
    assert run["losses"] == quiet["losses"], (run["losses"][-3:], quiet["losses"][-3:])
    print(f"{steps} steps to the same bits; both daemons warned {stopped:.1f} s after the majority stood still, "
          f"{killed:.1f} s after it was killed; longest step {max(run['step_ms']):.0f} ms")


def wiped_data_change_no_number(folder, etcd, start):
    start("first").end()  # takes number 0
    a, b = start("a"), start("b", more="node_id: 7")
    both = {1: "a", 7: "b"}
    eventually(a.log, lambda: a.nodes() == both and b.nodes() == both)
    a.hold()
    etcd.wipe()
    eventually(a.log, lambda: len(etcd.keys("/hyperoffload/alive/")) == 2)
    assert etcd.keys("/hyperoffload/ids/") == {"/hyperoffload/ids/1": "machine-a", "/hyperoffload/ids/7": "machine-b"}
    eventually(a.log, lambda: a.trouble() == "" and b.trouble() == "")
    assert a.nodes() == both and b.nodes() == both
    assert a.held() == (1, SEGMENT)
    # Another cluster at the same place: its number tells, whatever its revision.
    etcd.wipe("--initial-cluster-token", "anew")
    eventually(a.log, lambda: len(etcd.keys("/hyperoffload/alive/")) == 2)
    eventually(a.log, lambda: a.trouble() == "" and b.trouble() == "")
    assert a.nodes() == both and b.nodes() == both
    start("c")
    eventually(a.log, lambda: a.nodes() == {**both, 0: "c"})


def a_copied_machine_is_noticed(folder, etcd, start):
    a = start("a")
    eventually(a.log, lambda: a.nodes() == {0: "a"} and len(etcd.keys("/hyperoffload/alive/")) == 1)
    a.hold()
    copy = start("copy", machine="machine-a")
    eventually(a.log, lambda: "another daemon runs as node 0" in a.trouble())
    assert a.states()[-1] == TROUBLE, a.states()
    assert a.held() == (1, SEGMENT)
    copy.end()
    eventually(a.log, lambda: a.trouble() == "")
    eventually(a.log, lambda: '"name":"a"' in etcd.keys("/hyperoffload/alive/").get("/hyperoffload/alive/0", ""))


def one_run_has_a_version(folder, etcd, start):
    os.environ["HYPEROFFLOAD_LIBRARY"] = sys.argv[6]
    sys.path.insert(0, sys.argv[7])
    import hyperoffload

    a, b = start("a"), start("b")
    eventually(a.log, lambda: a.nodes() == {0: "a", 1: "b"} and b.nodes() == {0: "a", 1: "b"})
    data = memoryview(bytearray(64)).cast("I")

    def publisher(daemon, run, **more):
        return hyperoffload.Publisher(daemon.pool, "policy", {"w": data}, run=run, exclusive=True, **more)

    def claims():
        return sorted(etcd.keys("/hyperoffload/claims/").values())

    def refusal(who, version):
        try:
            who.publish(version)
        except hyperoffload.Error as error:
            return error.name
        return None

    with publisher(a, 1) as first:
        with publisher(b, 2) as second, publisher(b, 2, secret="s" * 16) as other:
            first.publish(1)
            assert refusal(second, 1) == "already-exists"
            other.publish(1)  # another tenant's object
            second.publish(2)
            assert refusal(first, 2) == "already-exists"
            first.publish(3)
            listed = subprocess.run([CLI, "objects", "ls", "--pool", a.pool, "-o", "json"], capture_output=True, text=True,
                                    check=True)
            assert all(one["objects"] for one in json.loads(listed.stdout)["nodes"]), listed.stdout  # on both nodes
            assert claims() == ["run 1", "run 1", "run 2", "run 2"]
            first.publish(4)  # two are kept
            assert claims() == ["run 1", "run 1", "run 2", "run 2"]
            # Forgotten by etcd: each daemon takes its names again.
            etcd.wipe()
            eventually(a.log, lambda: claims() == ["run 1", "run 1", "run 2", "run 2"])
            assert refusal(second, 4) == "already-exists"
            # Without etcd nothing is reserved, and nothing published is lost.
            etcd.end_all()
            assert refusal(second, 5) in ("unavailable", "deadline")
            etcd.start_all()
            assert etcd.wait_healthy(range(3))
            eventually(a.log, lambda: a.trouble() == "" and b.trouble() == "")
            second.publish(6)
        # What a session had is free again.
        eventually(a.log, lambda: claims() == ["run 1", "run 1"])
    eventually(a.log, lambda: claims() == [])


def a_drained_node_is_shown(folder, etcd, start):
    a, b = start("a"), start("b")
    eventually(a.log, lambda: a.nodes() == {0: "a", 1: "b"})
    b.hold()

    def pool(*words):
        done = subprocess.run([CLI, *words, "--pool", a.pool, "-o", "json"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["nodes"]

    def states():
        return {one["name"]: one["drained"] for one in a.ask("nodes")}

    assert pool("drain", "b") == [{"node": "b", "drained": True, "sessions": 1, "granted_bytes": SEGMENT,
                                    "scratch_flash_bytes": 0}]
    assert states() == {"a": False, "b": True}
    waiting = subprocess.Popen([CLI, "drain", "1", "--wait", "--pool", a.pool], stdout=subprocess.PIPE, text=True)
    session = b.own("sessions")["sessions"][0]["session_id"]
    refused = subprocess.run([CLI, "evict", f"none:{session}", "--pool", a.pool], capture_output=True, text=True)
    assert refused.returncode == 1 and "the pool has no node none" in refused.stderr, refused
    assert subprocess.run([CLI, "evict", f"b:{session}", "--pool", a.pool]).returncode == 0
    assert waiting.communicate(timeout=60)[0] == "node 1: drained, empty\n" and waiting.returncode == 0
    assert subprocess.run([HOLDER, b.pool, str(SEGMENT)]).returncode == 1
    assert pool("undrain", "b") == [{"node": "b", "undrained": True}]
    assert states() == {"a": False, "b": False}
    b.hold()


def etcd_by_tls(folder, etcd, start):
    a, b = start("a"), start("b")
    eventually(a.log, lambda: a.nodes() == {0: "a", 1: "b"})
    stranger = start("stranger", more="node_id: 5", tls="")
    eventually(stranger.log, lambda: stranger.trouble() != "")
    assert a.nodes() == {0: "a", 1: "b"} and stranger.nodes() == {5: "stranger"}


def etcd_with_users(folder, etcd, start):
    # etcd refuses clients of its gateway that have certificates then, in plain text.
    a = start("a")
    eventually(a.log, lambda: a.nodes() == {0: "a"})
    for words in ("user add root:secret", "role add root", "user grant-role root root", "auth enable"):
        etcd.ctl(*words.split())
    eventually(a.log, lambda: "HTTP 400: CommonName of client" in a.trouble())
    assert a.trouble().isprintable() and "HTTP 400: CommonName of client" in a.log(), a.log()


def main():
    needed()
    by_tls = TEST in ("etcd_by_tls", "etcd_with_users")
    with tempfile.TemporaryDirectory() as folder, Etcd(folder, 1 if by_tls else 3, CLI if by_tls else None) as etcd:
        daemons = []

        def start(name, **options):
            daemons.append(Daemon(folder, etcd, name, **options))
            return daemons[-1]

        try:
            globals()[TEST](folder, etcd, start)
        except BaseException:
            for one in daemons:
                print(f"--- {one.name}\n{one.log()[-3000:]}", file=sys.stderr)
            raise
        finally:
            for one in daemons:
                one.close()
    print("ok:", TEST)
    return 0


sys.exit(main())
