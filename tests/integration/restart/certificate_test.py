"""A daemon whose certificate has expired while it ran: the next one takes its memory over, and goes on serving the Unix
socket; nor does it end for files of etcd that are missing. Without memory to take over a start fails, and is tried again."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from node import Node, cli  # first: it finds needs
import needs

FAKETIME = next(iter(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)


def issue(ca, name, *more, clock=None):
    environment = {**os.environ, "LD_PRELOAD": str(FAKETIME), "FAKETIME": clock} if clock else None
    subprocess.run([cli, "ca", "issue", ca, "--name", name, *more], check=True, capture_output=True, env=environment)
    return ca / name


class Pool:
    """A node with TLS. use(folder) gives it other files."""

    def __init__(self, folder):
        self.tls = folder / "tls"
        ca = folder / "ca"
        subprocess.run([cli, "ca", "init", ca], check=True, capture_output=True)
        daemon = ("--role", "daemon", "--address", "127.0.0.1")
        self.valid = issue(ca, "n3", *daemon)
        self.expired = issue(ca, "old", *daemon, clock="-400d")
        self.etcd = issue(ca, "etcd", "--role", "reader")
        self.reader = issue(ca, "reader", "--role", "reader")
        more = (f'tcp_listen: "127.0.0.1:0" tls {{ certificate: "{self.tls}/node.crt" key: "{self.tls}/node.key" '
                f'authority: "{self.tls}/ca.crt" }} '
                f'etcd {{ endpoints: "https://127.0.0.1:1" machine_id: "m" certificate: "{self.etcd}/node.crt" '
                f'key: "{self.etcd}/node.key" authority: "{self.etcd}/ca.crt" }}')
        self.node = Node(folder, more=more)

    def use(self, certificates):
        shutil.rmtree(self.tls, ignore_errors=True)
        shutil.copytree(certificates, self.tls)

    def dial(self):
        """Over TCP."""
        address = self.node.ask("nodes")["control_addresses"][1]
        return subprocess.run([cli, "status", "--pool", address], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "HYPEROFFLOAD_TLS": str(self.reader)})

    def says(self, words):
        self.node.wait_until(lambda: words in self.node.errors.read_text(), words)


def one_that_takes_over_goes_on(pool):
    node = pool.node
    pool.use(pool.valid)
    node.start()
    client = node.hold(2)
    try:
        before = node.segments()
        assert pool.dial().returncode == 0
        pool.use(pool.expired)
        (pool.etcd / "node.key").unlink()
        node.kill()
        assert node.exits == [-signal.SIGKILL], node.exits
        assert node.segments() == before and len(node.sessions()) == 1
        pool.says("peers refuse this node until its certificates are valid")
        pool.says("the list of nodes waits for the files of etcd to be mended")
        told = pool.dial()
        assert told.returncode == 4 and "has expired" in told.stderr, told
        pool.use(pool.valid)
        os.kill(node.pid, signal.SIGHUP)
        pool.says("certificates reloaded")
        assert pool.dial().returncode == 0
        assert node.segments() == before
    finally:
        client.kill()
        client.wait()
        client.stdout.close()
    assert node.stop() == 0


def another_one_tries_again(pool):
    node = pool.node
    pool.use(pool.expired)
    node.before_next = lambda _: pool.use(pool.valid)
    node.start()
    assert node.exits == [1], node.exits
    pool.says("has expired")
    pool.says("systemd tries again")
    assert node.stop() == 0


if FAKETIME is None:
    needs.missing("libfaketime", "faketime")
for case in (one_that_takes_over_goes_on, another_one_tries_again):
    with tempfile.TemporaryDirectory() as name:
        tried = Pool(pathlib.Path(name))
        with tried.node:
            case(tried)
    print("ok:", case.__name__)
