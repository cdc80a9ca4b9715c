"""A cluster of real etcd members on loopback, with their data in a temporary folder."""
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402


def needed():
    """Ends the test where there is none."""
    needs.program("etcd", "etcd-server")


def free_ports(count):
    """Ports that nobody has now. They are tried again where somebody takes one meanwhile."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Etcd:
    """etcd by several members. start(), then kill() and start_one() as a test likes."""

    def __init__(self, folder, members=3, ca=None):
        """@param ca  the program that makes certificates: then clients need one."""
        self.folder = pathlib.Path(folder)
        self.tls, self.context, self.words, self.ctl_words = "", None, [], []
        if ca:
            self.make_certificates(ca)
        self.members = members
        self.running = {}

    def __enter__(self):
        for _ in range(5):
            self.ports = free_ports(2 * self.members)
            self.start_all()
            if self.wait_healthy(range(self.members)):
                return self
            self.end_all()
        raise AssertionError("etcd does not start:\n" + self.log(0)[-2000:])

    def __exit__(self, *_):
        self.end_all()

    def make_certificates(self, ca):
        tls = self.folder / "tls"
        for words in (["init", str(tls)], ["issue", str(tls), "--role", "daemon", "--name", "n", "--address", "127.0.0.1"]):
            subprocess.run([ca, "ca", *words], check=True, capture_output=True, timeout=60)
        crt, key, authority = tls / "n/node.crt", tls / "n/node.key", tls / "n/ca.crt"
        self.tls = f'certificate: "{crt}" key: "{key}" authority: "{authority}"'
        self.context = ssl.create_default_context(cafile=authority)
        self.context.load_cert_chain(crt, key)
        self.ctl_words = ["--cert", crt, "--key", key, "--cacert", authority]
        self.words = ["--cert-file", crt, "--key-file", key, "--trusted-ca-file", authority, "--client-cert-auth"]

    @property
    def endpoints(self):
        return [f"http{'s' if self.tls else ''}://127.0.0.1:{self.ports[2 * i]}" for i in range(self.members)]

    def log(self, i):
        return (self.folder / f"etcd{i}.log").read_text()

    def start_one(self, i):
        client, peer = self.endpoints[i], f"http://127.0.0.1:{self.ports[2 * i + 1]}"
        cluster = ",".join(f"e{k}=http://127.0.0.1:{self.ports[2 * k + 1]}" for k in range(self.members))
        with open(self.folder / f"etcd{i}.log", "ab") as log:
            self.running[i] = subprocess.Popen(
                ["etcd", "--name", f"e{i}", "--data-dir", str(self.folder / f"etcd{i}"), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", cluster, "--logger", "zap", *self.words], stdout=log, stderr=log)

    def start_all(self):
        for i in range(self.members):
            self.start_one(i)

    def wait_healthy(self, members):
        """@return whether all of them serve, with a leader."""
        end = time.monotonic() + 60
        left = list(members)
        while left:
            if time.monotonic() > end or any(self.running[i].poll() is not None for i in left):
                return False
            try:
                with urllib.request.urlopen(self.endpoints[left[0]] + "/health", timeout=2, context=self.context) as answer:
                    if b'"true"' in answer.read():
                        left.pop(0)
                        continue
            except OSError:
                pass
            time.sleep(0.05)
        return True

    def kill(self, i):
        process = self.running.pop(i)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, i):
        """A member that neither serves nor ends, as on a machine that hangs."""
        self.running[i].send_signal(signal.SIGSTOP)

    def go_on(self, i):
        self.running[i].send_signal(signal.SIGCONT)

    def end_all(self):
        for i in list(self.running):
            self.kill(i)

    def wipe(self, *words):
        """Ends all members, removes what they know, and starts them again, with these words for each."""
        self.words = [*self.words, *words]
        self.end_all()
        for i in range(self.members):
            shutil.rmtree(self.folder / f"etcd{i}")
        self.start_all()
        assert self.wait_healthy(range(self.members)), self.log(0)[-2000:]

    def ctl(self, *words):
        """What etcdctl says."""
        return subprocess.run(["etcdctl", "--endpoints", ",".join(self.endpoints), *self.ctl_words, *words],
                              env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
                              check=True, timeout=30).stdout

    def keys(self, prefix):
        """Key -> value, as etcdctl shows them."""
        lines = self.ctl("get", "--prefix", prefix).splitlines()
        return dict(zip(lines[::2], lines[1::2]))
