"""What a daemon takes over from the one before, under a stand-in for systemd: all of it, or nothing of what does not
fit together."""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time

from node import Node, SEGMENT, cli
from takeover import GROW, SEAL, SHRINK, flip_manifest, memory, replace


def with_node(test, **options):
    with tempfile.TemporaryDirectory() as folder, Node(folder, **options) as node:
        node.start()
        clients = []
        try:
            test(node, clients)
        finally:
            for client in clients:
                client.kill()
                client.wait()
                client.stdout.close()
    print("ok:", test.__name__)


def size(descriptor):
    return os.fstat(descriptor).st_size


def holds_memory_from_the_grant_on(node, clients):
    assert node.names() == ["control", "m1"], node.names()
    clients.append(node.hold(3))
    assert node.names() == ["control", "m1", "s1", "s2", "s3"], node.names()
    before = (node.sessions()[0]["session_id"], node.segments())
    instance = node.ask("status")
    node.kill()
    assert (node.sessions()[0]["session_id"], node.segments()) == before
    assert node.ask("status")["ddr_granted_bytes"] == instance["ddr_granted_bytes"] == 3 * SEGMENT
    # Numbers go on: none is given twice.
    clients.append(node.hold(1))
    assert [one["session_id"] for one in node.sessions()] == [1, 2]
    assert [one["segment_id"] for one in node.segments()] == [1, 2, 3, 4]
    assert len({one["address"] for one in node.segments()}) == 4, node.segments()


def a_real_stop_frees_everything(node, clients):
    clients.append(node.hold(2))
    kept = node.descriptor("s2")
    assert size(kept) == SEGMENT
    assert node.stop() == 0
    assert node.left == [], node.left
    assert size(kept) == 0
    os.close(kept)


def an_evicted_session_leaves_the_store(node, clients):
    clients.append(node.hold(2))
    assert node.cli("evict", "3:1").returncode == 0
    assert node.names() == ["control", "m1"], node.names()
    node.kill()
    assert node.sessions() == []


def a_damaged_manifest_is_not_believed(node, clients):
    clients.append(node.hold(2))
    kept = node.descriptor("s1")
    node.before_next = flip_manifest
    node.kill()
    assert node.sessions() == [] and node.segments() == []
    assert size(kept) == 0  # clients that still map it see that
    os.close(kept)
    assert node.names() == ["control", "m1"], node.names()
    assert "damaged" in node.errors.read_text()


def what_is_foreign_is_not_believed(node, clients):
    clients.append(node.hold(1))
    segment, other = memory(SEGMENT, GROW | SEAL), memory(SEGMENT, 0)
    copies = [os.dup(segment), os.dup(other)]

    def add(store):
        replace(store, "s900", segment)
        replace(store, "s901", other)
        replace(store, "m900", memory(65536, GROW | SHRINK | SEAL))
        replace(store, "anything", os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    node.before_next = add
    node.kill()
    assert node.names() == ["control", "m2", "s1"], node.names()
    assert [one["segment_id"] for one in node.segments()] == [1]
    # Only what can have been a grant is cut to nothing.
    assert [size(copy) for copy in copies] == [0, SEGMENT], ([size(copy) for copy in copies], node.errors.read_text())
    for copy in copies:
        os.close(copy)


def loses_one_session(node, clients, wrong):
    """One whose second segment is `wrong`; the other session stays."""
    clients += [node.hold(2), node.hold(2)]
    first = node.descriptor("s1")
    node.before_next = lambda store: replace(store, "s2", wrong)
    node.kill()
    assert [one["session_id"] for one in node.sessions()] == [2]
    assert [one["segment_id"] for one in node.segments()] == [3, 4]
    assert node.names() == ["control", "m2", "s3", "s4"], node.names()
    assert size(first) == 0
    os.close(first)
    assert node.restart_status()["lost_sessions"] == 1
    assert node.restart_status()["taken_sessions"] == 1


def memory_of_a_wrong_size_is_not_believed(node, clients):
    loses_one_session(node, clients, memory(SEGMENT // 2, GROW | SEAL))


def memory_with_wrong_seals_is_not_believed(node, clients):
    loses_one_session(node, clients, memory(SEGMENT, GROW))


def another_file_is_not_believed(node, clients):
    loses_one_session(node, clients, memory(SEGMENT, GROW | SEAL))


def missing_memory_ends_its_session(node, clients):
    clients.append(node.hold(2))

    def drop(store):
        name, descriptor = next(one for one in store if one[0] == "s1")
        os.close(descriptor)
        store.remove((name, descriptor))

    node.before_next = drop
    node.kill()
    assert node.sessions() == [] and node.names() == ["control", "m2"], node.names()


def another_listener_is_not_believed(node, clients):
    clients.append(node.hold(1))
    wrong = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    wrong.bind(node.notify_path + ".other")
    wrong.listen()
    node.before_next = lambda store: replace(store, "control", wrong.detach())
    node.kill()
    assert len(node.sessions()) == 1
    assert node.names() == ["control", "m2", "s1"], node.names()


def time_without_a_daemon_does_not_count(node, clients):
    clients.append(node.hold(1))
    node.kill()  # starts after twice the lease
    assert len(node.sessions()) == 1
    end = time.monotonic() + 20
    while node.sessions():
        assert time.monotonic() < end, "a lease that nobody renews does not end"
        time.sleep(0.05)
    node.wait_until(lambda: node.names() == ["control", "m2"], "its memory is kept")


def kills_do_not_prolong_leases(node, clients):
    clients.append(node.hold(1))
    begin = time.monotonic()
    while node.sessions():
        assert time.monotonic() - begin < 60, "each kill gives a new lease"
        time.sleep(0.2)  # a daemon notes the time that it lived with each tick
        node.kill()


def a_full_store_is_noticed(node, clients):
    clients.append(node.hold(2))
    assert node.restart_status()["unkept_sessions"] == 0
    clients.append(node.hold(1))
    assert node.restart_status()["unkept_sessions"] == 1
    assert len(node.names()) <= 8, node.names()
    done = node.cli("upgrade", "3")
    assert done.returncode == 1 and "FileDescriptorStoreMax" in done.stderr, (done.returncode, done.stderr)
    node.kill()
    assert [one["session_id"] for one in node.sessions()] == [1]


def without_a_store_it_refuses_an_upgrade(node, clients):
    assert "FileDescriptorStoreMax" in node.restart_status()["reason"]
    done = node.cli("upgrade", "3")
    assert done.returncode == 1 and "FileDescriptorStoreMax" in done.stderr, (done.returncode, done.stderr)
    clients.append(node.hold(1))
    node.kill()
    assert node.sessions() == []


def what_the_next_would_refuse_is_refused(node, clients):
    clients.append(node.hold(1))
    for wrong in (node.text + "no_such_field: 1\n", node.text.replace(str(SEGMENT), str(2 * SEGMENT))):
        node.file.write_text(wrong)
        done = node.cli("upgrade", "3")
        assert done.returncode == 1 and "configuration" in done.stderr, (done.returncode, done.stderr)
    assert node.exits == [], node.exits
    node.file.write_text(node.text)
    answer = node.ask("upgrade", "3")
    assert (answer["taken_sessions"], answer["taken_segments"]) == (1, 1), answer
    assert node.exits == [75], node.exits


def a_start_that_fails_by_what_may_pass_keeps_all(node, clients):
    clients.append(node.hold(2))
    before = node.segments()
    # As with an interface that comes late.
    node.write(node.text.replace("127.0.0.1", "192.0.2.1") + "insecure: true")
    node.end_process()
    node.wait_until(lambda: len(node.exits) > 2, "it does not try again")
    node.write(node.text)
    node.wait_ready(2)
    assert set(node.exits[1:]) == {1}, node.exits
    assert "192.0.2.1" in node.errors.read_text() and "systemd tries again" in node.errors.read_text()
    assert node.segments() == before and len(node.sessions()) == 1


def a_smaller_pool_takes_what_fits(node, clients):
    clients += [node.hold(20), node.hold(10)]
    node.file.write_text(node.text.replace("ddr_bytes: 67108864", f"ddr_bytes: {20 * SEGMENT}"))
    node.kill()
    assert len(node.sessions()) == 1 and node.restart_status()["lost_sessions"] == 1
    assert node.ask("status")["ddr_granted_bytes"] <= 20 * SEGMENT
    assert len(node.names()) == 2 + len(node.segments()), node.names()


class StoppingRelay:
    """A socket before a daemon's: the daemon is stopped while a request arrives, and for so long that a tick is due, too."""

    STOPPED_S = 0.3  # longer than a tick's period
    NAMES = b"/control.sock", b"/relayed.sock"  # equally long: the daemon says where it listens

    UPGRADE = b"\xaa\x01"  # field 21 of control.proto's Request

    def __init__(self, node, term=False):
        """term: SIGTERM comes right after the request of an upgrade."""
        self.node, self.pid, self.term, self.address = node, node.pid, term, f"{node.folder}/relayed.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.address)
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(f"{self.node.folder}/control.sock")
                except OSError:  # between two daemons
                    client.close()
                    continue
                threading.Thread(target=self._carry, args=(client, server, self._stopped), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, client, contextlib.nullcontext), daemon=True).start()

    @contextlib.contextmanager
    def _stopped(self, data):
        """The first daemon alone: the next one runs on. Raises OSError where it is gone."""
        if self.node.pid != self.pid:
            yield
            return
        os.kill(self.pid, signal.SIGSTOP)
        try:
            end = time.monotonic() + 10
            while pathlib.Path(f"/proc/{self.pid}/stat").read_text().split(") ")[1][0] != "T":
                if time.monotonic() > end:
                    raise TimeoutError("it cannot be stopped")
                time.sleep(0.001)
            yield
            if self.term and self.UPGRADE in data:
                os.kill(self.pid, signal.SIGTERM)
            time.sleep(self.STOPPED_S)
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _carry(self, source, target, around):
        """Until an end closes, or the daemon is gone: then the client hears that, and may try again."""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with around(data):
                    target.sendall(data.replace(*self.NAMES))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def upgrade(self):
        return subprocess.run([cli, "upgrade", "3", "--pool", f"unix:{self.address}", "-o", "json", "--timeout", "5s"],
                              capture_output=True, text=True, timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


def a_tick_that_is_due_when_an_upgrade_begins_frees_nothing(node, clients):
    clients.append(node.hold(3))
    with StoppingRelay(node) as relay:
        done = relay.upgrade()
    assert done.returncode == 0, done.stderr
    assert node.ask("status")["ddr_granted_bytes"] == 3 * SEGMENT, node.errors.read_text()[-2000:]


def a_stop_beside_an_upgrade_frees_everything(node, clients):
    clients.append(node.hold(2))
    kept = node.descriptor("s2")
    with StoppingRelay(node, term=True) as relay:
        assert relay.upgrade().returncode != 0
    node.wait_until(lambda: node.exits, "it does not end")
    assert node.exits == [0] and size(kept) == 0, (node.exits, size(kept), node.errors.read_text()[-2000:])
    os.close(kept)


for case in (holds_memory_from_the_grant_on, a_real_stop_frees_everything, an_evicted_session_leaves_the_store,
             a_damaged_manifest_is_not_believed, what_is_foreign_is_not_believed,
             memory_of_a_wrong_size_is_not_believed, memory_with_wrong_seals_is_not_believed,
             another_file_is_not_believed, missing_memory_ends_its_session, another_listener_is_not_believed,
             what_the_next_would_refuse_is_refused, a_start_that_fails_by_what_may_pass_keeps_all,
             a_smaller_pool_takes_what_fits,
             a_tick_that_is_due_when_an_upgrade_begins_frees_nothing, a_stop_beside_an_upgrade_frees_everything):
    with_node(case)
with_node(time_without_a_daemon_does_not_count, lease_ms=1500, restart_after=3)
with_node(kills_do_not_prolong_leases, lease_ms=2000)
with_node(a_full_store_is_noticed, descriptors_max=8)
with_node(without_a_store_it_refuses_an_upgrade, descriptors_max=0)
