"""Three daemons, and GPTs that train on them with two homes for each value."""
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from gpt_job import Job  # noqa: E402

NODES = 3
ALL_TWICE = "2,ACTIVATION=2,GRADIENT=2,INPUT=2"
FAR = "10.99.9.2"
SKIPPED = 77
# Runs a program on what it takes for another machine: the kernel's id of the boot is from the first argument.
ELSEWHERE = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"']


class FarNode:
    """A network namespace with a link to this one, for one daemon. The caller is in a namespace of its own, so that
    nothing of it stays."""

    def __enter__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec sleep 1000000"],
                                       stdout=subprocess.PIPE)
        assert self.holder.stdout.read(1) == b"\n", "no second namespace"
        for words in (f"link add ho-near type veth peer name ho-far netns {self.holder.pid}",
                      "addr add 10.99.9.1/24 dev ho-near", "link set ho-near up"):
            subprocess.run(["ip", *words.split()], check=True)
        for words in (f"addr add {FAR}/24 dev ho-far", "link set ho-far up"):
            self.run("ip", *words.split())
        return self

    def words(self, *command):
        """A command line that runs there."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *command]

    def run(self, *command):
        subprocess.run(self.words(*command), check=True)

    def cut(self):
        """As a pulled cable: neither end hears of it."""
        self.run("ip", "link", "set", "ho-far", "down")

    def join(self):
        self.run("ip", "link", "set", "ho-far", "up")

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


def in_namespace():
    """Starts this script again in a network namespace of its own. @return false: it is there already."""
    if "--in-namespace" in sys.argv:
        sys.argv.remove("--in-namespace")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return False
    enter = ["unshare", "--map-root-user", "--net"]
    probe = "ip link add ho-probe type veth peer name ho-other"
    if not shutil.which("ip") or subprocess.run([*enter, *probe.split()], capture_output=True).returncode != 0:
        print("skipped: no network namespaces with veth links here")
        sys.exit(SKIPPED)
    sys.exit(subprocess.run([*enter, sys.executable, *sys.argv, "--in-namespace"], check=False).returncode)


class Pool:
    """The daemons. `far`: the last one is there, and reached over the link alone. `machines`: on which each one runs; 0 is
    this one. `racks`: where each one is; - is nowhere."""

    def __init__(self, folder, daemon, far=None, machines="0" * NODES, racks="-" * NODES):
        self.folder, self.far = pathlib.Path(folder), far
        self.commands, self.daemons = [], []
        for node in range(NODES):
            peers = "".join(f'nodes {{ node_id: {n} name: "n{n}" control_addresses: "{self.address(n)}" }}\n'
                            for n in range(NODES) if n != node)
            there = self.is_far(node)
            config = self.folder / f"n{node}.textproto"
            config.write_text(f"""
node_id: {node} node_name: "n{node}" ddr_bytes: 67108864 segment_bytes: 2097152 lease_ms: 600000 drain_ms: 500
{f'rack: "{racks[node]}"' if racks[node] != "-" else ""}
unix_socket: "{self.folder}/n{node}.sock" tcp {{ address: "{FAR if there else "127.0.0.1"}" }}
{f'insecure: true tcp_listen: "{FAR}:7700"' if there else ""}
{peers}""")
            command = [daemon, "--config", str(config)]
            if machines[node] != "0":
                boot = self.folder / f"boot{machines[node]}"
                boot.write_text(f"{machines[node]}0000000-0000-4000-8000-000000000000\n")
                command = [*ELSEWHERE, str(boot), *command]
            self.commands.append(far.words(*command) if there else command)
            self.daemons.append(self._start(node))
        for node in range(NODES):
            self._await(node)

    def _start(self, node):
        with open(self.folder / f"n{node}.err", "w") as errors:
            return subprocess.Popen(self.commands[node], stderr=errors)

    def _await(self, node):
        end = time.monotonic() + 60
        while " serving " not in (self.folder / f"n{node}.err").read_text():
            assert time.monotonic() < end, "a daemon did not start"
            time.sleep(0.02)

    def replace(self, node):
        """Kills it, and starts another in its place, which has nothing of what it held."""
        self.kill(node)
        self.daemons[node] = self._start(node)
        self._await(node)

    def is_far(self, node):
        return self.far is not None and node == NODES - 1

    def address(self, node):
        return f"tcp:{FAR}:7700" if self.is_far(node) else f"unix:{self.folder}/n{node}.sock"

    def kill(self, node):
        self.daemons[node].send_signal(signal.SIGKILL)
        self.daemons[node].wait(timeout=30)

    def stop(self, node):
        self.daemons[node].send_signal(signal.SIGSTOP)

    def go_on(self, node):
        self.daemons[node].send_signal(signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.daemons:
            process.kill()
            process.wait(timeout=30)


def train(pool, gpt, transport, steps, copies=ALL_TWICE, *more):
    return Job(gpt, pool.folder, pool.address(0), transport, steps, "--copies", copies, *more)
