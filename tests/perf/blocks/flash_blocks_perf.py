"""Puts and gets of KV blocks that do not fit DDR, beside fio on the same flash: a row for RESULTS.md.

Usage: flash_blocks_perf.py CLI DAEMON LIBRARY PACKAGE
Fails where a block that was found on flash has other bytes, or where less than half of the gets came from there.
"""
import contextlib
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

CLI, DAEMON, LIBRARY, PACKAGE = sys.argv[1:5]
os.environ["HYPEROFFLOAD_LIBRARY"] = LIBRARY
sys.path.insert(0, PACKAGE)
from hyperoffload._pool import blocks as _blocks  # noqa: E402

BLOCK, BATCH, ROUNDS = 256 << 10, 64, 5
TURNS, PAUSE_S = 8, 0.05
DDR, FLASH, STORED = 256 << 20, 2 << 30, 1 << 30
BLOCKS = STORED // BLOCK


def fio(path, way):
    words = ["fio", "--name=limit", f"--filename={path}", "--direct=1", f"--rw=rand{way}", f"--bs={BLOCK}", "--iodepth=32",
             "--ioengine=io_uring", f"--size={STORED}", "--runtime=5", "--time_based", "--output-format=json"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["jobs"][0][way]["bw_bytes"] / 1e9


def address_of(memory):
    return _blocks.ctypes.addressof(_blocks.ctypes.c_char.from_buffer(memory))


def rate(blocks, op, keys, address, check):
    """GB/s of requests over keys, two at a time."""
    begin, open_, served = time.monotonic(), [], 0
    for at in range(0, len(keys) + 2 * BATCH, BATCH):
        if len(open_) == 2 or at >= len(keys):
            ticket, half, batch = open_.pop(0)
            outcomes = blocks.wait(ticket)
            served += outcomes.count(_blocks.OK)
            if check:
                check(outcomes, half, batch)
        if at < len(keys):
            half, batch = at // BATCH % 2, keys[at:at + BATCH]
            items = [(key, address + (half * BATCH + i) * BLOCK, BLOCK) for i, key in enumerate(batch)]
            open_.append((blocks.submit(op, items), half, batch))
        if not open_:
            break
    return served * BLOCK / (time.monotonic() - begin) / 1e9, served


def first_gets(blocks, keys, address):
    """Medians, in ms, for batches that are on flash only: without a match, and with one before."""
    stored = [key for key, found in zip(keys, blocks.run(_blocks.EXISTS, keys)) if found]
    took = ([], [])
    for turn, at in enumerate(range(0, min(len(stored) - BATCH, 2 * TURNS * BATCH), BATCH)):
        batch = stored[at:at + BATCH]
        pin = blocks.match(batch)[1] if turn % 2 else 0
        time.sleep(PAUSE_S)
        begin = time.monotonic()
        assert all(blocks.run(_blocks.GET, [(key, address + i * BLOCK, BLOCK) for i, key in enumerate(batch)]))
        took[turn % 2].append(1000 * (time.monotonic() - begin))
        blocks.unpin(pin)
    return [statistics.median(one) for one in took]


def main():
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder, contextlib.ExitStack() as stack:
        flash, limit, config = (pathlib.Path(folder, name) for name in ("flash", "limit", "config"))
        subprocess.run(["fallocate", "-l", str(FLASH + (256 << 20)), flash], check=True)
        flash.chmod(0o600)
        subprocess.run(["fio", "--name=fill", f"--filename={limit}", "--rw=write", "--bs=1M", f"--size={STORED}"], check=True,
                       capture_output=True)
        config.write_text(f'node_name: "n" ddr_bytes: "512MiB" unix_socket: "{folder}/sock" flash {{ path: "{flash}" }}\n'
                          f"blocks {{ ddr_bytes: {DDR} flash_bytes: {FLASH} }} drain_ms: 1\n")
        daemon = subprocess.Popen([DAEMON, "--config", config], stderr=subprocess.DEVNULL)
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)
        pool = f"unix:{folder}/sock"
        while subprocess.run([CLI, "status", "--pool", pool], check=False, capture_output=True).returncode != 0:
            assert daemon.poll() is None
            time.sleep(0.1)
        blocks = _blocks.Blocks(pool, tenant="perf", deadline_ms=20_000)
        memory = mmap.mmap(-1, 2 * BATCH * BLOCK)
        address = address_of(memory)
        blocks.register(address, len(memory))
        keys = [str(number) for number in range(BLOCKS)]
        stamps = [number.to_bytes(8, "little") * (BLOCK // 8) for number in range(2 * BATCH)]
        for slot, stamp in enumerate(stamps):
            memory[slot * BLOCK:(slot + 1) * BLOCK] = stamp  # by slot: a block's stamp is its number's rest

        def check(outcomes, half, batch):
            for i, key in enumerate(batch):
                slot = half * BATCH + i
                assert int(key) % (2 * BATCH) == slot
                if outcomes[i] == _blocks.OK:
                    assert memory[slot * BLOCK:slot * BLOCK + 64] == stamps[slot][:64], key

        put, _ = rate(blocks, _blocks.PUT, keys, address, None)
        rows = {"get": [], "fio read": [], "fio write": [fio(limit, "write")]}
        for _ in range(ROUNDS):
            memory[:] = bytes(len(memory))
            got, served = rate(blocks, _blocks.GET, keys, address, check)
            rows["get"].append(got)
            rows["fio read"].append(fio(limit, "read"))
        done = subprocess.run([CLI, "blocks", "ls", "--pool", pool, "-o", "json"], check=True, capture_output=True, text=True)
        (model,) = json.loads(done.stdout)["nodes"][0]["tenants"][0]["models"]
        got, read = statistics.median(rows["get"]), statistics.median(rows["fio read"])
        print(f"| put of {BLOCKS} blocks without a pause | {put:.2f} GB/s | fio write {rows['fio write'][0]:.2f} GB/s | "
              f"{served} of {BLOCKS} kept |")
        print(f"| get from flash | {got:.2f} GB/s | fio read {read:.2f} GB/s | {got / read:.2f} |")
        assert model["flash_hits"] > model["hits"] / 2, model
        asked, matched = first_gets(blocks, keys, address)
        print(f"| first get of {BATCH} blocks, {1000 * PAUSE_S:.0f} ms after nothing, and after a match | {asked:.1f} ms | "
              f"{matched:.1f} ms | {asked / matched:.1f} |")
        blocks.close()


main()
