"""An upgrade that would cost jobs something is refused, and names the sessions and what they would lose; --force does it
all the same."""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

from node import SEGMENT, Node, cli  # first: it finds needs
import needs

library, package = sys.argv[5:7]
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
from hyperoffload._pool import blocks as _blocks, library as _library  # noqa: E402

MIB = 1 << 20
SCRATCH, DURABLE = 0, 1


class Job:
    """A session with flash."""

    def __init__(self, pool, name):
        self.pool = _library.Pool(pool, name)
        self.library = _library.library()
        for function in ("ho_flash_allocate", "ho_flash_free"):
            getattr(self.library, function).restype = ctypes.c_int
        self.library.ho_flash_allocate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p]
        self.library.ho_flash_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def flash(self, size, policy):
        held = ctypes.c_void_p()
        assert self.library.ho_flash_allocate(self.pool.handle, size, policy, ctypes.byref(held)) == 0
        return held

    def memory(self, size):
        held = ctypes.c_void_p()
        assert self.library.ho_allocate(self.pool.handle, ctypes.c_uint64(size), ctypes.byref(held)) == 0
        return held

    def free(self, held):
        assert self.library.ho_flash_free(self.pool.handle, held) == 0

    def end(self):
        self.pool.close()


def with_node(test, **options):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # /tmp may be memory
        flash = pathlib.Path(folder) / "flash"
        os.close(os.open(flash, os.O_CREAT | os.O_RDWR, 0o600))
        os.truncate(flash, 64 * MIB)
        with Node(folder, more=f'flash {{ path: "{flash}" }} blocks {{ ddr_bytes: 8388608 }}',
                  **options) as node:
            node.start()
            if node.ask("status")["flash_off"]:
                needs.skip("no io_uring")
            test(node)
    print("ok:", test.__name__)


def refused(node, *words):
    exits = len(node.exits)
    done = node.cli("upgrade", "3")
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    for word in words:
        assert word in done.stderr, (word, done.stderr)
    assert len(node.exits) == exits and node.ask("status")["draining"] is False


def scratch_flash_holds_it_up(node):
    job = Job(node.pool, "trainer")
    kept = job.flash(2 * MIB, DURABLE)
    assert node.ask("upgrade", "3")["upgraded"]  # durable flash is found again
    scratch = job.flash(4 * MIB, SCRATCH)
    refused(node, "session 1 (trainer): 4.00 MiB of scratch flash", "--force")
    assert node.ask("drain", "3")["scratch_flash_bytes"] == 4 * MIB
    with subprocess.Popen([cli, "drain", "3", "--wait", "--pool", node.pool], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as drain:
        assert "waits, 1 session holds 4.00 MiB of scratch flash" in drain.stderr.readline()
        job.free(scratch)
        assert drain.communicate(timeout=60)[0] == "node 3: drained, empty\n"
    assert node.ask("undrain", "3")["undrained"]
    assert node.ask("upgrade", "3")["upgraded"]
    job.free(kept)
    job.flash(4 * MIB, SCRATCH)
    answer = node.ask("upgrade", "3", "--force")
    assert answer["upgraded"] and node.exits == [75] * 3, (answer, node.exits)


def a_drain_names_what_stays(node):
    job = Job(node.pool, "trainer")
    job.flash(4 * MIB, SCRATCH)
    job.memory(3 * MIB)
    data = ctypes.create_string_buffer(65536)
    blocks = _blocks.Blocks(node.pool, tenant="chat", name="server")
    assert blocks.run(_blocks.PUT, [("key", ctypes.addressof(data), 65536)]) == [True]
    blocks.close()
    with subprocess.Popen([cli, "drain", "3", "--wait", "--pool", node.pool], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as drain:
        lines = [drain.stderr.readline() for _ in range(3)]
        number = next(one["session_id"] for one in node.ask("sessions")["sessions"] if one["name"] == "trainer")
        mine = f"session 3:{number} (trainer) has 4.00 MiB of memory, 4.00 MiB of scratch flash: to free it, end the job, " \
               f"or hyperoffload evict 3:{number}"
        assert any(mine in line for line in lines), lines
        assert any("has 2.00 MiB of KV blocks: to free it, hyperoffload blocks clear --tenant" in line for line in lines), lines
        assert node.cli("evict", f"3:{number}").returncode == 0
        tenant = node.ask("blocks", "ls")["tenants"][0]["tenant"]
        assert node.cli("blocks", "clear", "--tenant", tenant).returncode == 0
        assert drain.communicate(timeout=60)[0] == "node 3: drained, empty\n"


def what_the_next_daemon_cannot_start_with_holds_it_up(node):
    job = Job(node.pool, "trainer")
    flash = node.text.split('flash { path: "')[1].split('"')[0]
    for text, *words in (
            (node.text.replace("ddr_bytes: 67108864", f"ddr_bytes: {1 << 50}"), "ddr_bytes"),
            (node.text + 'tls { certificate: "/none/crt" key: "/none/key" authority: "/none/ca" }\n', "tls", "/none/"),
            (node.text.replace("/control.sock", "/none/control.sock"), "unix_socket", "/none"),
            (node.text.replace('tcp { address: "127.0.0.1" }', 'tcp { address: "192.0.2.7" }'), "192.0.2.7"),
            (node.text.replace(flash, flash + ".none"), "flash has other paths"),
            (node.text + 'access { jobs: "@nobody-has-this-name" }\n', "nobody-has-this-name"),
            (node.text.replace(f"segment_bytes: {SEGMENT}", f"segment_bytes: {2 * SEGMENT}"), "segment_bytes", "stop the daemon")):
        node.file.write_text(text)
        refused(node, *words)
    node.file.write_text(node.text)
    os.chmod(flash, 0o644)
    refused(node, "flash", "other users can read")
    os.chmod(flash, 0o600)
    assert node.ask("upgrade", "3")["upgraded"]
    job.end()


def blocks_outlive_it(node):
    data = ctypes.create_string_buffer(b"b" * 65536, 65536)
    blocks = _blocks.Blocks(node.pool, tenant="chat", name="server")
    assert blocks.run(_blocks.PUT, [("key", ctypes.addressof(data), 65536)]) == [True]
    blocks.close()
    figures = node.ask("blocks", "ls")["tenants"]
    for turn in range(3):
        answer = node.ask("upgrade", "3")
        counts = [answer[of] for of in ("sessions", "taken_sessions", "segments", "taken_segments")]
        assert answer["upgraded"] and counts == [1] * 4, answer  # the store's own session, with its segment
        assert node.ask("blocks", "ls")["tenants"] == figures
        assert [name[0] for name in node.names()] == ["c", "m"], node.names()  # a crash leaves no blocks
        blocks = _blocks.Blocks(node.pool, tenant="chat", name="reader")
        ctypes.memset(data, 0, 65536)
        assert blocks.run(_blocks.GET, [("key", ctypes.addressof(data), 65536)]) == [True]
        assert data.raw == b"b" * 65536
        blocks.close()
        figures = node.ask("blocks", "ls")["tenants"]
        assert figures[0]["models"][0]["hits"] == turn + 1, figures
    node.kill()
    assert node.ask("blocks", "ls")["tenants"] == [] and node.segments() == []


def blocks_without_room_hold_it_up(node):
    data = ctypes.create_string_buffer(2 * MIB)
    blocks = _blocks.Blocks(node.pool, tenant="chat", name="server")
    assert all(blocks.run(_blocks.PUT, [(f"key {i}", ctypes.addressof(data), 2 * MIB)]) == [True] for i in range(4))
    refused(node, "/chat: 8.00 MiB of KV blocks: the descriptor store has no room for them")
    blocks.close()
    assert node.ask("upgrade", "3", "--force")["upgraded"]
    assert node.ask("blocks", "ls")["tenants"] == []
    assert node.cli("blocks", "ls").returncode == 0


with_node(scratch_flash_holds_it_up)
with_node(a_drain_names_what_stays)
with_node(what_the_next_daemon_cannot_start_with_holds_it_up)
with_node(blocks_outlive_it)
with_node(blocks_without_room_hold_it_up, descriptors_max=9)
