"""KV blocks on flash outlive an upgrade of their daemon: they are hits with the bytes that were put, go on to be evicted,
and count for their owner. After a crash, after a stop, and where somebody else used the flash in between they are misses,
and all flash is free."""
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from node import Node  # first: it finds needs
import needs
import takeover
from patience import within

library, package = sys.argv[5:7]
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
from hyperoffload._pool import blocks as _blocks  # noqa: E402

MIB = 1 << 20
BLOCK, COUNT, BATCH = 65536, 256, 8  # 16 MiB; DDR has 4 MiB
DDR, FLASH, QUOTA = 4 * MIB, 32 * MIB, 12 * MIB
ALICE = 61001  # a number that no user of this machine needs to have


def content(number):
    return number.to_bytes(8, "little") * (BLOCK // 8)


class Job:
    """Puts and gets blocks of one tenant."""

    def __init__(self, pool):
        self.blocks = _blocks.Blocks(pool, tenant="chat", name="server", deadline_ms=20_000)
        self.memory = ctypes.create_string_buffer(BATCH * BLOCK)

    def items(self, numbers):
        return [(f"block {number}", ctypes.addressof(self.memory) + i * BLOCK, BLOCK) for i, number in enumerate(numbers)]

    def put(self, first, count, fails=False):
        """Some may fail if `fails`. Blocks that flash is too slow for are lost."""
        for begin in range(first, first + count, BATCH):
            numbers = range(begin, begin + BATCH)
            self.memory[:BATCH * BLOCK] = b"".join(content(number) for number in numbers)
            assert all(self.blocks.run(_blocks.PUT, self.items(numbers))) or fails

    def until_back(self):
        """After a restart, until the job has opened the node's blocks again: the last block is stored."""
        self.memory[:BLOCK] = content(COUNT - 1)
        end = time.monotonic() + within(20)
        while self.blocks.run(_blocks.PUT, self.items([COUNT - 1])) != [True]:
            assert time.monotonic() < end, "the store does not come back"
            time.sleep(0.02)

    def put_slowly(self, node, first, count):
        """All that DDR has no room for is saved first."""
        end = time.monotonic() + within(60)
        for begin in range(first, first + count, BATCH):
            self.put(begin, BATCH)
            figures = node.figures()
            while figures["bytes"] - figures["flash_bytes"] > DDR - BATCH * BLOCK:
                assert time.monotonic() < end, figures
                figures = node.figures()

    def get(self, first=0, count=COUNT):
        """@return which are found. They have their bytes."""
        found = []
        for begin in range(first, first + count, BATCH):
            numbers = range(begin, begin + BATCH)
            ctypes.memset(self.memory, 0xee, BATCH * BLOCK)
            hits = self.blocks.run(_blocks.GET, self.items(numbers))
            for i, number in enumerate(numbers):
                assert not hits[i] or self.memory[i * BLOCK:(i + 1) * BLOCK] == content(number), f"wrong bytes: {number}"
            found += [number for number, hit in zip(numbers, hits) if hit]
        return found

    def close(self):
        self.blocks.close()


class FlashNode(Node):
    kill_at = None  # the name of a descriptor: when it is stored, the process dies

    def __init__(self, folder, more="", **options):
        self.paths = [pathlib.Path(folder) / f"flash{i}" for i in range(2)]
        for path in self.paths:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            os.truncate(path, 64 * MIB)
        flash = " ".join(f'flash {{ path: "{path}" }}' for path in self.paths)
        super().__init__(folder, more=f"{flash} blocks {{ ddr_bytes: {DDR} flash_bytes: {FLASH} }} {more}", **options)

    def take(self, said, descriptors):
        super().take(said, descriptors)
        if self.kill_at is not None and said.get("FDSTORE") == "1" and said.get("FDNAME") == self.kill_at:
            self.kill_at = None
            os.kill(self.pid, signal.SIGKILL)

    def upgrade(self):
        assert self.ask("upgrade", "3")["upgraded"]

    def figures(self):
        """What the tenant has."""
        (tenant,) = self.ask("blocks", "ls")["tenants"]
        (model,) = tenant["models"]
        return model | {"held": tenant["held_bytes"], "held_flash": tenant["held_flash_bytes"]}

    def settled(self):
        """What the tenant has, once nothing moves between the tiers any more."""
        end = time.monotonic() + within(20)
        before, now = None, self.figures()
        while now != before:
            assert time.monotonic() < end, (before, now)
            time.sleep(0.05)
            before, now = now, self.figures()
        return now

    def free(self):
        return sum(path["free_bytes"] for path in self.ask("status")["flash"])

    def until_all_free(self):
        end = time.monotonic() + within(20)
        while self.free() != self.all:
            assert time.monotonic() < end, (self.free(), self.all)
            time.sleep(0.05)

    def clear_tenant(self):
        (tenant,) = self.ask("blocks", "ls")["tenants"]
        assert self.cli("blocks", "clear", "--tenant", tenant["tenant"]).returncode == 0
        self.until_all_free()

    def log(self):
        return self.errors.read_text()


def with_node(test, **options):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # /tmp may be memory
        with FlashNode(folder, **options) as node:
            node.start()
            if node.ask("status")["flash_off"]:
                needs.skip("no io_uring")
            node.all = node.free()
            test(node)
    print("ok:", test.__name__)


def filled(node):
    job = Job(node.pool)
    job.put_slowly(node, 0, COUNT)
    figures = node.settled()
    assert figures["evictions"] == 0 and figures["ddr_bytes"] <= DDR, figures
    assert figures["bytes"] == COUNT * BLOCK and figures["flash_bytes"] >= COUNT * BLOCK - DDR, figures
    return job


def they_outlive_upgrades(node):
    job = filled(node)
    for turn in range(3):
        figures = node.settled()
        free = node.free()
        node.upgrade()
        assert node.figures() == figures, (node.figures(), figures)
        assert node.free() == free == node.all - figures["held_flash"]
        assert [name[0] for name in node.names()] == ["c", "m"], node.names()
        job.until_back()
        assert job.get() == list(range(COUNT))
        assert node.figures()["flash_hits"] > figures["flash_hits"]
    job.put_slowly(node, 1000, 2 * COUNT)  # more than there is room for
    figures = node.figures()
    assert figures["evictions"] > 0 and figures["held_flash"] == FLASH, figures
    kept = job.get(1000, 2 * COUNT)
    node.upgrade()
    job.until_back()
    again = job.get(1000, 2 * COUNT)
    assert len(again) > len(kept) // 2 > COUNT // 4, (len(again), len(kept))
    job.close()
    node.clear_tenant()


def an_upgrade_in_the_middle_of_moves_breaks_nothing(node):
    job = filled(node)
    other = Job(node.pool)
    ended = threading.Event()
    rounds, failures = [], []

    def work():  # blocks go to flash and come from it, and others are evicted
        first = COUNT
        try:
            while not ended.is_set():
                other.put(first, BATCH, fails=True)
                if other.get(first - COUNT, BATCH):
                    rounds.append(len(node.exits))
                first = (first + BATCH) % (4 * COUNT) + COUNT
        except Exception as error:  # wrong bytes, or a call that failed
            failures.append(error)

    def wait_for_rounds(exits):
        """Until the job has found some blocks after so many upgrades."""
        end = time.monotonic() + within(20)
        while rounds.count(exits) < 10:
            assert not failures and time.monotonic() < end, (failures, len(rounds))
            time.sleep(0.02)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for turn in range(4):
            wait_for_rounds(turn)
            node.upgrade()
            assert len(node.log().split("took blocks over")) > len(node.exits)
        wait_for_rounds(4)
    finally:
        ended.set()
        worker.join()
    assert not failures, failures
    assert node.exits == [75] * 4, node.exits
    job.until_back()
    job.put(0, BATCH)
    assert job.get(0, BATCH) == list(range(BATCH))
    for one in (job, other):
        one.close()
    node.clear_tenant()


def a_crash_and_a_stop_leave_none(node):
    job = filled(node)
    node.upgrade()
    node.kill()
    assert node.free() == node.all
    job.until_back()
    assert job.get() == [COUNT - 1]
    job.put(0, COUNT)
    job.close()
    assert node.stop() == 0
    assert "blocks" not in node.left and "extents" not in node.left, node.left
    node.stopping, node.ready = False, 0
    node.start()
    assert node.ask("blocks", "ls")["tenants"] == [] and node.free() == node.all


def changed_bytes_are_a_miss(node):
    job = filled(node)
    changed = set()

    def change(_):
        for path in node.paths:
            data = path.read_bytes()
            for number in (1, 2, 3, 4):
                at = data.find(content(number)[:4096])
                if at < 0 or number in changed:
                    continue
                with path.open("r+b") as file:
                    file.seek(at + 1000)
                    file.write(b"\x55")
                changed.add(number)

    node.before_next = change
    node.upgrade()
    assert changed == {1, 2, 3, 4}  # the oldest, which are on flash only
    job.until_back()
    found = job.get()
    assert found == [0, *range(5, COUNT)], (sorted(set(range(COUNT)) - set(found)), node.figures())
    job.close()


def only_ddr_is_left(node, job, in_ddr):
    assert node.figures()["blocks"] == in_ddr
    job.until_back()
    assert len(job.get()) == in_ddr
    job.close()
    node.clear_tenant()


def flash_that_others_used_is_free(node):
    job = filled(node)
    in_ddr = node.settled()["ddr_bytes"] // BLOCK

    def use(_):
        other = node.folder / "other.textproto"
        other.write_text(node.text.replace("control.sock", "other.sock"))
        environment = {key: value for key, value in os.environ.items() if key != "NOTIFY_SOCKET"}
        daemon = subprocess.Popen([node.command[0], "--config", str(other)], env=environment, stderr=subprocess.PIPE)
        assert any(b"serving" in line for line in daemon.stderr)
        daemon.terminate()
        daemon.communicate(timeout=within(20))

    node.before_next = use
    node.upgrade()
    assert 'are lost why="the paths were used since' in node.log()
    only_ddr_is_left(node, job, in_ddr)


def extents_without_an_index_are_free(node):
    job = filled(node)
    node.before_next = lambda store: takeover.replace(store, "blocks", os.memfd_create("none"))
    node.upgrade()
    node.before_next = None
    node.until_all_free()
    job.until_back()
    assert job.get() == [COUNT - 1]
    job.close()


def a_smaller_store_takes_what_it_has_room_for(node):
    job = filled(node)
    before = node.settled()
    node.file.write_text(node.text.replace(f"flash_bytes: {FLASH}", f"flash_bytes: {DDR}"))
    node.upgrade()
    assert 'why="the store has less flash now"' in node.log()
    after = node.figures()
    assert after["held_flash"] == DDR and after["ddr_bytes"] == before["ddr_bytes"], (after, before)
    assert node.free() == node.all - DDR
    job.until_back()
    assert len(job.get()) >= after["blocks"] // 2 > 0
    job.close()
    node.clear_tenant()


def without_room_for_both_the_index_is_left(node):
    job = filled(node)
    in_ddr = node.settled()["ddr_bytes"] // BLOCK
    assert node.ask("upgrade", "3", "--force")["upgraded"]
    assert "blocks" in node.left and "extents" not in node.left, node.left
    only_ddr_is_left(node, job, in_ddr)


def a_kill_before_flash_has_ended_costs_what_is_only_there(node):
    job = filled(node)
    in_ddr = node.settled()["ddr_bytes"] // BLOCK
    node.kill_at = "blocks"
    node.upgrade()
    assert node.exits == [-signal.SIGKILL], node.exits
    assert "blocks" in node.left and "extents" not in node.left, node.left
    only_ddr_is_left(node, job, in_ddr)


def quotas_hold_for_them(node):
    node.folder.chmod(0o755)
    for _ in range(3):
        end = time.monotonic() + within(60)
        while True:  # until flash was fast enough
            assert subprocess.run([sys.executable, *sys.argv, node.pool], timeout=within(60)).returncode == 0
            if node.figures()["held_flash"] == QUOTA:
                break
            assert time.monotonic() < end, node.figures()
        for how in (node.free, node.upgrade):
            how()
            (user,) = [one for one in node.ask("status")["users"] if one["flash_bytes"] > 0]
            assert (user["owner"], user["flash_bytes"]) == (f"uid {ALICE}", QUOTA), user
            assert node.figures()["held_flash"] == QUOTA, node.figures()


if len(sys.argv) > 7:  # the job of quotas_hold_for_them(); others may not run this interpreter
    os.setgroups([0])
    os.setgid(ALICE)
    os.setuid(ALICE)
    limited = Job(sys.argv[7])
    limited.put(0, COUNT)
    limited.close()
    sys.exit()

with_node(they_outlive_upgrades)
with_node(an_upgrade_in_the_middle_of_moves_breaks_nothing)
with_node(a_crash_and_a_stop_leave_none)
with_node(changed_bytes_are_a_miss)
with_node(flash_that_others_used_is_free)
with_node(extents_without_an_index_are_free)
with_node(a_smaller_store_takes_what_it_has_room_for)
# Beside the socket, the manifest and two segments, with four reserved, there is room for one.
with_node(without_room_for_both_the_index_is_left, descriptors_max=9)
with_node(a_kill_before_flash_has_ended_costs_what_is_only_there)
if os.geteuid() != 0:
    needs.skip("needs root, to be another user")
with_node(quotas_hold_for_them, more=f"quotas {{ flash_bytes: {QUOTA} }}")
