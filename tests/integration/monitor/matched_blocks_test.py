"""What a job matches in the KV block store comes from flash to memory before the job gets it.

Usage: matched_blocks_test.py CLI DAEMON LIBRARY PACKAGE
"""
import ctypes
import os
import sys
import time

from support import Daemon, needs, patience

PROGRAMS, LIBRARY, PACKAGE = sys.argv[1:3], sys.argv[3], sys.argv[4]
os.environ["HYPEROFFLOAD_LIBRARY"] = LIBRARY
sys.path.insert(0, PACKAGE)
from hyperoffload._pool import blocks as _blocks  # noqa: E402

MIB, BLOCK = 1 << 20, 64 << 10
MATCHED, OTHERS = 48, 256  # memory holds 128
AHEAD = 32  # a quarter of that memory
LOADS = 'hyperoffload_operations_total{driver="flash",tier="flash",direction="get"}'


def wait_for(holds):
    end = time.monotonic() + patience.within(3)
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def main():
    store = 'blocks { ddr_bytes: "8MiB" flash_bytes: "32MiB" }\n'
    with Daemon(PROGRAMS, store, flash_bytes=128 * MIB) as daemon:
        why = daemon.json("status")["nodes"][0]["flash_off"]
        if why:
            needs.skip(why)

        def loads():
            return daemon.metrics().get(LOADS, 0)

        blocks = _blocks.Blocks(daemon.pool, tenant="t", model="m")
        data = ctypes.create_string_buffer(16 * BLOCK)
        address = ctypes.addressof(data)

        stored = 0

        def put(prefix, count):
            """As fast as flash keeps up: of what is stored, some of memory's is saved before the next 16."""
            nonlocal stored
            for first in range(0, count, 16):
                for i in range(16):
                    ctypes.memset(address + i * BLOCK, (first + i) % 251, BLOCK)
                items = [(f"{prefix}{first + i}", address + i * BLOCK, BLOCK) for i in range(16)]
                assert all(blocks.run(_blocks.PUT, items)), (prefix, first)
                stored += 16 * BLOCK
                wait_for(lambda: stored - daemon.metrics()['hyperoffload_blocks_bytes{tier="flash"}'] <= 7 * MIB)

        put("matched", MATCHED)
        put("other", OTHERS)
        before = loads()
        keys = [f"matched{i}" for i in range(MATCHED)]
        found, pin = blocks.match(keys)
        assert found == MATCHED, found
        wait_for(lambda: loads() == before + AHEAD)
        others, other_pin = blocks.match([f"other{i}" for i in range(64)])
        assert others == 64, others
        put("new", 16)
        time.sleep(0.3)
        assert loads() == before + AHEAD, "more than the share of the memory that matches may pin"
        for first in range(0, MATCHED, 16):
            ctypes.memset(address, 255, len(data))
            assert all(blocks.run(_blocks.GET, [(key, address + i * BLOCK, BLOCK)
                                                for i, key in enumerate(keys[first:first + 16])])), first
            for i in range(16):
                assert data[i * BLOCK:(i + 1) * BLOCK] == bytes([(first + i) % 251]) * BLOCK
            if first < AHEAD:
                assert loads() == before + AHEAD, "a block was read twice"
        assert loads() == before + MATCHED
        blocks.unpin(pin)
        blocks.unpin(other_pin)
        assert blocks.match([f"other{i}" for i in range(16)])[0] == 16
        wait_for(lambda: loads() > before + MATCHED)  # others are pinned no more
        blocks.close()
    print(f"{AHEAD} of {MATCHED} matched blocks came to memory before they were asked for")


main()
