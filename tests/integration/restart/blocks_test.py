"""A job with KV blocks open goes on when its daemon is killed or upgraded: its memory is as it was, requests meanwhile
are misses, and afterwards it puts and gets blocks again. An upgrade keeps those that are stored. A hit has the bytes
that were put, at any time."""
import ctypes
import os
import sys
import tempfile
import threading
import time

from node import Node  # first: it finds patience
from patience import within

library, package = sys.argv[5:7]
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
from hyperoffload._pool import blocks as _blocks, library as _library  # noqa: E402

BLOCK, COUNT = 65536, 40
SEGMENT = 2097152


class OnePathPool(_library.Pool):
    """Over one transport."""
    transport = ""

    def __init__(self, address, name):
        options = _library._ConnectOptions(struct_bytes=ctypes.sizeof(_library._ConnectOptions), pool=address.encode(),
                                           name=name.encode(), transport=self.transport.encode())
        self.handle = ctypes.c_void_p()
        _library._check(_library.library().ho_connect(ctypes.byref(options), ctypes.byref(self.handle)))


class Server:
    """A job with blocks, and with memory of the pool beside them."""

    def __init__(self, node):
        self.blocks = _blocks.Blocks(node.pool, tenant="chat", name="server", deadline_ms=2000)
        self.lib = _library.library()
        self.memory = ctypes.create_string_buffer(COUNT * BLOCK)
        self.blocks.register(ctypes.addressof(self.memory), COUNT * BLOCK)
        self.held = ctypes.c_void_p()
        _library._check(self.lib.ho_allocate(self.blocks._pool.handle, SEGMENT, ctypes.byref(self.held)))
        self.fill(0)
        self.move(self.lib.ho_put)

    @staticmethod
    def content(number):
        return number.to_bytes(8, "little") * (BLOCK // 8)

    def fill(self, first):
        self.memory[:COUNT * BLOCK] = b"".join(self.content(first + i) for i in range(COUNT))

    def items(self, first):
        base = ctypes.addressof(self.memory)
        return [(f"block {first + i}", base + i * BLOCK, BLOCK) for i in range(COUNT)]

    def put(self, first):
        """@return how many are stored."""
        self.fill(first)
        return sum(self.blocks.run(_blocks.PUT, self.items(first)))

    def get(self, first):
        """@return how many are found."""
        ctypes.memset(self.memory, 0xee, COUNT * BLOCK)
        found = self.blocks.run(_blocks.GET, self.items(first))
        for i, hit in enumerate(found):
            if hit:
                assert self.memory[i * BLOCK:(i + 1) * BLOCK] == self.content(first + i), "wrong bytes"
        return sum(found)

    def move(self, how):
        """Between its memory in the pool and its own."""
        ticket = ctypes.c_uint64()
        pool = self.blocks._pool.handle
        _library._check(how(pool, self.held, 0, ctypes.addressof(self.memory), SEGMENT, ctypes.byref(ticket)))
        _library._check(self.lib.ho_wait(pool, ticket))

    def check_memory(self):
        ctypes.memset(self.memory, 0xee, COUNT * BLOCK)
        self.move(self.lib.ho_get)
        assert self.memory[:SEGMENT] == b"".join(self.content(i) for i in range(SEGMENT // BLOCK))

    def busy_until(self, thread, first):
        """Puts and gets until `thread` has ended. @return how many requests failed."""
        failed = turn = 0
        while thread.is_alive():
            begin = time.monotonic()
            failed += self.put(first + turn % 3 * COUNT) < COUNT  # few enough that none is evicted
            failed += self.get(first + turn % 3 * COUNT) < COUNT
            assert time.monotonic() - begin < within(6), "requests wait for the daemon"
            turn += 1
        return failed

    def until_stored(self, first):
        end = time.monotonic() + 20
        while self.put(first) < COUNT:
            assert time.monotonic() < end, "the store does not come back"
            time.sleep(0.05)

    def close(self):
        self.lib.ho_free(self.blocks._pool.handle, self.held)
        self.blocks.close()


def upgrade(node):
    assert node.ask("upgrade", "3")["upgraded"]


def goes_on(transport, ways):
    OnePathPool.transport = transport
    _library.Pool = OnePathPool
    with tempfile.TemporaryDirectory() as folder, Node(folder, more="blocks { ddr_bytes: 33554432 }") as node:
        node.start()
        server = Server(node)
        failed = []
        for turn, restart in enumerate(ways):
            first = 100_000 * turn
            assert server.put(first) == COUNT and server.get(first) == COUNT
            _, pin = server.blocks.match([f"block {first}"])
            assert pin != 0
            thread = threading.Thread(target=restart, args=[node])
            thread.start()
            failed.append(server.busy_until(thread, first + 1000))
            thread.join()
            server.until_stored(first + 50_000)
            server.blocks.unpin(pin)  # the last daemon's
            assert server.get(first + 50_000) == COUNT
            assert server.blocks.match([f"block {first + 50_000}"])[0] == 1
            assert server.get(first) == (COUNT if restart == upgrade else 0)
            server.check_memory()
        server.close()
        assert len(node.sessions()) <= 1, node.sessions()  # the store's own
        print(f"ok: {transport}, failed requests while restarted: {failed}")


if __name__ == "__main__":
    for way in ("local", "tcp"):
        goes_on(way, [Node.kill, upgrade] * 2)
