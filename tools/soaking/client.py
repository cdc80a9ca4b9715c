"""A job of a soak: moves bytes through the pool and compares each of them.

Usage: client.py KIND POOL TRANSPORT SEED SECONDS FOLDER. The package is found by PYTHONPATH, the library by
HYPEROFFLOAD_LIBRARY. Writes "working" to stdout once it holds what it needs, and a JSON object with its counts at its
end. Exits with 0; with 4 where the pool failed it; with 9 where bytes were wrong.
"""
import ctypes
import json
import os
import pathlib
import random
import sys
import time

import hyperoffload
from hyperoffload._pool import blocks as _blocks, library as _library
from nodes import EVENTS_KEPT, LAPSES

KIB, MIB = 1 << 10, 1 << 20
FLASH_SCRATCH, FLASH_DURABLE = 0, 1
PATIENCE_S = 20  # for a daemon that is restarted under a job
counts = {}


class Wrong(Exception):
    pass


def count(name, more=1):
    counts[name] = counts.get(name, 0) + more


def pattern(*words, size):
    """Bytes that follow from the words alone."""
    return random.Random(":".join(map(str, words))).randbytes(size)


def compare(got, wanted, what):
    if got == wanted:
        return count("bytes_checked", len(wanted))
    at = next(i for i in range(len(wanted)) if got[i] != wanted[i])
    wrong = sum(a != b for a, b in zip(got, wanted))
    raise Wrong(f"{what}: {wrong} of {len(wanted)} bytes are wrong, the first at {at}")


class Pool:
    """The C API's plain calls, with transfers of one registered buffer."""

    def __init__(self, address, transport, buffer_bytes, name=b"soak"):
        self.lib, check = _library.library(), _library._check
        options = _library._ConnectOptions(struct_bytes=ctypes.sizeof(_library._ConnectOptions), pool=address.encode(),
                                           name=name, transport=transport.encode())
        self.handle = ctypes.c_void_p()
        check(self.lib.ho_connect(ctypes.byref(options), ctypes.byref(self.handle)))
        self.buffer = ctypes.create_string_buffer(buffer_bytes)
        self.base = ctypes.addressof(self.buffer)
        check(self.lib.ho_register(self.handle, self.base, buffer_bytes))

    def call(self, name, *arguments):
        _library._check(getattr(self.lib, name)(self.handle, *arguments))

    def handle_of(self, name, *arguments):
        out = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(out))
        return out

    def move(self, name, *arguments):
        """One transfer, to its end."""
        ticket = ctypes.c_uint64()
        self.call(name, *arguments, ctypes.byref(ticket))
        self.call("ho_wait", ticket)

    def put(self, memory, offset, data):
        ctypes.memmove(self.base, data, len(data))
        self.move("ho_put", memory, ctypes.c_uint64(offset), ctypes.c_void_p(self.base), ctypes.c_size_t(len(data)))

    def get(self, memory, offset, size):
        ctypes.memset(self.base, 0xa5, size)
        self.move("ho_get", memory, ctypes.c_uint64(offset), ctypes.c_void_p(self.base), ctypes.c_size_t(size))
        return self.buffer.raw[:size]

    def stage(self, name, first, second, size):
        self.move(name, first, ctypes.c_uint64(0), second, ctypes.c_uint64(0), ctypes.c_size_t(size))


def patiently(act, *arguments):
    """Does it; again for a while where a daemon that is restarted may be the cause that it fails."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act(*arguments)
        except hyperoffload.Error as error:
            count(f"retried: {error.name}")
            if time.monotonic() > end or error.name not in ("unavailable", "deadline", "busy"):
                raise
            time.sleep(0.02)


def memory(pool_address, transport, seed, end, _):
    """Chunks of an allocation, written and read in any order."""
    chance = random.Random(seed)
    chunk, chunks = chance.choice([(4 * KIB, 512), (64 * KIB, 64), (1 * MIB, 8)])
    pool = Pool(pool_address, transport, chunk)
    held = pool.handle_of("ho_allocate", ctypes.c_uint64(chunk * chunks))
    if pool.get(held, 0, chunk) != bytes(chunk):
        raise Wrong("granted memory is not zeroed")
    print("working", flush=True)
    versions = {}

    def check(at):
        compare(patiently(pool.get, held, at * chunk, chunk), pattern(seed, at, versions[at], size=chunk), f"chunk {at}")

    while time.monotonic() < end:
        at = chance.randrange(chunks)
        if at in versions and chance.random() < 0.5:
            check(at)
            continue
        versions[at] = versions.get(at, 0) + 1
        patiently(pool.put, held, at * chunk, pattern(seed, at, versions[at], size=chunk))
    for at in versions:
        check(at)
    pool.lib.ho_free(pool.handle, held)
    pool.call("ho_disconnect")


def flash(pool_address, transport, seed, end, folder):
    """Extents: each durable one is written once, told in a ledger when it is safe, and read by jobs to come."""
    chance = random.Random(seed)
    size = chance.choice([64 * KIB, 512 * KIB, 1 * MIB])
    pool = Pool(pool_address, transport, MIB)
    ledger = pathlib.Path(folder)

    def read(extent, beside, wanted, what):
        pool.stage("ho_stage_in", extent, beside, len(wanted))
        compare(pool.get(beside, 0, len(wanted)), wanted, what)

    scratch = pool.handle_of("ho_flash_allocate", ctypes.c_uint64(size), FLASH_SCRATCH)
    beside = pool.handle_of("ho_allocate_beside", scratch, ctypes.c_uint64(MIB))
    print("working", flush=True)
    version = 0
    while time.monotonic() < end:
        version += 1
        data = pattern(seed, version, size=size)
        pool.put(beside, 0, data)
        pool.stage("ho_stage_out", scratch, beside, size)
        pool.put(beside, 0, bytes(size))
        read(scratch, beside, data, f"scratch extent, version {version}")
        old = sorted(one for one in ledger.iterdir() if one.suffix == ".safe")
        if len(old) < 24 and chance.random() < 0.5:
            extent = pool.handle_of("ho_flash_allocate", ctypes.c_uint64(size), FLASH_DURABLE)
            name = ctypes.create_string_buffer(48)
            pool.call("ho_flash_name", extent, name, ctypes.c_size_t(48))
            pool.put(beside, 0, data)
            pool.stage("ho_stage_out", extent, beside, size)
            told = ledger / f"{seed}-{version}-{size}"
            told.write_text(name.value.decode())
            told.rename(told.with_suffix(".safe"))
            pool.lib.ho_flash_close(extent)
            count("durable_written")
        elif old:
            one = chance.choice(old)
            taken = one.with_suffix(f".{os.getpid()}")
            try:
                one.rename(taken)  # no other job frees it under this one
            except FileNotFoundError:
                continue
            name, words = taken.read_text(), taken.stem.split("-")
            try:
                extent = pool.handle_of("ho_flash_open", name.encode())
            except hyperoffload.Error as error:
                if error.name == "not-found":
                    raise Wrong(f"a durable extent is gone: {taken.name}: {error}") from error
                taken.rename(one)
                raise
            read(extent, beside, pattern(words[0], words[1], size=int(words[2])), f"durable extent {taken.name}")
            count("durable_read")
            if len(old) > 16:
                taken.rename(taken.with_suffix(".freed"))
                pool.call("ho_flash_free", extent)
                taken.with_suffix(".freed").unlink()
            else:
                pool.lib.ho_flash_close(extent)
                taken.rename(one)
        time.sleep(0.005)
    pool.lib.ho_free(pool.handle, beside)
    pool.call("ho_flash_free", scratch)
    pool.call("ho_disconnect")


def blocks(pool_address, _, seed, end, __):
    """A cache: what is there has the right bytes. All jobs of this kind share the keys."""
    chance = random.Random(seed)
    size = 64 * KIB
    store = _blocks.Blocks(pool_address, tenant="soak", model="soak")
    memory_ = ctypes.create_string_buffer(8 * size)
    base = ctypes.addressof(memory_)
    store.register(base, 8 * size)
    print("working", flush=True)
    while time.monotonic() < end:
        keys = chance.sample(range(400), 8)
        items = [(f"key {key}", base + i * size, size) for i, key in enumerate(keys)]
        if chance.random() < 0.4:
            for i, key in enumerate(keys):
                ctypes.memmove(base + i * size, pattern("block", key, size=size), size)
            count("blocks_put", sum(store.run(_blocks.PUT, items)))
            continue
        ctypes.memset(base, 0xa5, 8 * size)
        for i, found in enumerate(store.run(_blocks.GET, items)):
            count("blocks_hit" if found else "blocks_missed")
            if found:
                compare(memory_.raw[i * size:(i + 1) * size], pattern("block", keys[i], size=size), f"block {keys[i]}")
    store.close()


def objects(pool_address, _, seed, end, __):
    """Versions of an object, read by its publisher's neighbour in the same process, which has sessions of its own."""
    words = 40_000
    data, mine = (memoryview(bytearray(8 * words)).cast("Q") for _ in range(2))
    with hyperoffload.Subscriber(pool_address, f"soak {seed}", {"weight": mine}) as reader, \
            hyperoffload.Publisher(pool_address, f"soak {seed}", {"weight": data}, versions=2) as publisher:
        print("working", flush=True)
        version = 0

        def publish():
            data[:] = memoryview(pattern(seed, version, size=8 * words)).cast("Q")
            publisher.publish(version)
            published.append(version)

        def read():
            got = reader.acquire(version, most=version)
            reader.read()
            compare(bytes(mine), pattern(seed, got, size=8 * words), f"version {got}")
            reader.release()
            seen.append(got)

        while time.monotonic() < end:
            version += 1
            for act, done in ((publish, published := []), (read, seen := [])):
                failing = time.monotonic()
                while not done:
                    try:
                        act()
                    except hyperoffload.Error as error:
                        count(f"retried: {error.name}")
                        # The publisher names it again at a daemon that was restarted, a little later.
                        again = ("unavailable", "deadline", "busy", "not-found", "already-exists")
                        if error.name == "already-exists" and act is publish:
                            done.append(version)  # the answer was lost, not the version
                        elif error.name in ("unavailable", "deadline") and act is publish:
                            version += 1  # the number may be used up
                        if time.monotonic() - failing > PATIENCE_S or error.name not in again:
                            raise
                        reader.release()
                        time.sleep(0.02)


def events(pool_address, transport, seed, end, _):
    """Sessions one after the other, of all kinds of jobs, with grants on every node: more than a daemon keeps events of."""
    for _ in range(EVENTS_KEPT):
        for driver, name in (("local", b"soak"), (transport, b"gpt")):
            pool = Pool(pool_address, driver, 4 * KIB, name)
            pool.lib.ho_free(pool.handle, pool.handle_of("ho_allocate", ctypes.c_uint64(8 * MIB)))
            pool.call("ho_disconnect")
        _blocks.Blocks(pool_address, tenant="soak", model="soak").close()
        weight = memoryview(bytearray(64)).cast("Q")
        with hyperoffload.Publisher(pool_address, f"soak {random.randrange(1 << 30)}", {"weight": weight}, versions=1):
            pass


def lapse(pool_address, transport, seed, end, _):
    """Many sessions at once, until it is killed: a daemon keeps how the last ones ended."""
    held = [Pool(pool_address, transport, 4 * KIB) for _ in range(LAPSES)]
    print("working", flush=True)
    time.sleep(600)
    del held


def main():
    kind, pool, transport, seed, seconds, folder = sys.argv[1:7]
    try:
        work = {"memory": memory, "flash": flash, "blocks": blocks, "objects": objects, "events": events, "lapse": lapse}
        work[kind](pool, transport, seed, time.monotonic() + float(seconds), folder)
    except Wrong as error:
        print(f"WRONG BYTES: {error}", file=sys.stderr)
        return 9
    except hyperoffload.Error as error:
        print(f"the pool failed: {error}", file=sys.stderr)
        return 4
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
