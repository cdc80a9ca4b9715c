"""Users who share a link that tc limits: rows for RESULTS.md. With and without `link_bytes_per_s` of the daemon. And one user's
job beside readers of what another job of that user has published.

Usage: shares_perf.py CLI DAEMON LIBRARY PACKAGE
Fails where a user gets less than its part, or one that is alone again less than 0.95 of the link. Needs the right to make
network namespaces and to be other users.
"""
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

CLI, DAEMON, LIBRARY, PACKAGE = sys.argv[1:5]
ENVIRONMENT = dict(os.environ, HYPEROFFLOAD_LIBRARY=LIBRARY, PYTHONPATH=PACKAGE)
LINK_BITS_PER_S = 1_000_000_000
# TCP's bytes of a link: of a frame's 1514 that tc counts, 1448.
LINK_BYTES_PER_S = LINK_BITS_PER_S / 8 * 1448 / 1514
LIMIT_BYTES_PER_S = int(0.95 * LINK_BYTES_PER_S)
ALICE, BOB, GREEDY = 61001, 61002, 4
ROUNDS = 3

# Moves blocks of its own again and again, in two requests at a time.
JOB = """
import ctypes, os, sys, threading
from hyperoffload._pool import blocks as _blocks
pool, user, op, count, name = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
os.setgroups([0]), os.setgid(user), os.setuid(user)
store, data = _blocks.Blocks(pool), ctypes.create_string_buffer(2 * count << 20)
def again(first):
    items = [(f"{name} {i}", ctypes.addressof(data) + (i << 20), 1 << 20) for i in range(first, first + count)]
    store.run(_blocks.PUT, items)
    while True:
        if op == "put":
            store.run(_blocks.REMOVE, [key for key, _, _ in items])
        store.run(_blocks.PUT if op == "put" else _blocks.GET, items)
threading.Thread(target=again, args=(0,)).start()
again(count)
"""

# Reads a published object again and again, one of 64 MiB.
READER = """
import os, sys
from hyperoffload._pool import objects as _objects
pool, user, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.setgroups([0]), os.setgid(user), os.setuid(user)
weights = {"weights": bytearray(64 << 20)}
if name == "publisher":
    publisher = _objects.Publisher(pool, "policy", weights)
    publisher.publish(1)
    print("published", flush=True)
    sys.stdin.read()
else:
    subscriber = _objects.Subscriber(pool, "policy", weights)
    subscriber.acquire(timeout=30)
    while True:
        subscriber.read()
"""


def ip(*words, inside=()):
    subprocess.run([*inside, "ip", *words], check=True)


@contextlib.contextmanager
def node(folder, limit):
    """A daemon behind a link of its own. Yields its address."""
    config, address = folder / "config", f"unix:{folder}/sock"
    rate = f"link_bytes_per_s: {LIMIT_BYTES_PER_S}" if limit else ""
    config.write_text(f'ddr_bytes: "1GiB" segment_bytes: "8MiB" insecure: true unix_socket: "{folder}/sock" '
                      f'transport: "tcp" blocks {{ ddr_bytes: "512MiB" }} tcp {{ address: "10.9.1.2" {rate} }} lease_ms: 600000\n')
    daemon = subprocess.Popen(["unshare", "--net", "sh", "-c", 'read -r go; exec "$0" --config "$1"', DAEMON, config],
                              stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        while os.readlink(f"/proc/{daemon.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        inside = ("nsenter", "-t", str(daemon.pid), "-n")
        ip("link", "add", "ho-shares", "type", "veth", "peer", "name", "far", "netns", str(daemon.pid))
        for prefix, device, own in (((), "ho-shares", "10.9.1.1"), (inside, "far", "10.9.1.2")):
            ip("addr", "add", f"{own}/24", "dev", device, inside=prefix)
            ip("link", "set", device, "up", inside=prefix)
            subprocess.run([*prefix, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{LINK_BITS_PER_S}bit",
                            "burst", "256k", "latency", "20ms"], check=True)
        print("go", file=daemon.stdin, flush=True)
        end = time.monotonic() + 30
        while subprocess.run([CLI, "nodes", "--pool", address], capture_output=True, check=False).returncode != 0:
            assert time.monotonic() < end
            time.sleep(0.05)
        yield address
    finally:
        subprocess.run(["ip", "link", "del", "ho-shares"], check=False)
        daemon.terminate()
        daemon.wait()
        daemon.stdin.close()


def job(address, user, op, count, name):
    return subprocess.Popen([sys.executable, "-c", JOB, address, str(user), op, str(count), name], env=ENVIRONMENT)


def reader(address, user, name):
    return subprocess.Popen([sys.executable, "-c", READER, address, str(user), name], env=ENVIRONMENT, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def measure_classes():
    """The part of the link that one job's gets have beside four readers of objects, all of one user; and alone."""
    with tempfile.TemporaryDirectory(prefix="ho-", dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        with node(folder, True) as address:
            running = [reader(address, ALICE, "publisher")]
            assert running[0].stdout.readline() == "published\n"
            alone = large_part(address)
            running += [reader(address, ALICE, f"reader {i}") for i in range(GREEDY)]
            time.sleep(5)
            beside = large_part(address)
            for one in reversed(running):
                one.kill()
                one.wait()
                one.stdin.close()
                one.stdout.close()
    return alone, beside


def large_part(address):
    """The part of the link that gets of 1 MiB have, 16 in flight."""
    return bench(address, "1MiB", 16)["bytes_per_s"] / LINK_BYTES_PER_S


def moved(address):
    """Bytes of each user, both ways."""
    out = subprocess.run([CLI, "status", "-o", "json", "--pool", address], capture_output=True, check=True).stdout
    return {int(one["owner"].split()[1]): one["link_in_bytes"] + one["link_out_bytes"]
            for one in json.loads(out)["nodes"][0]["users"]}


def part(address, user, seconds):
    before, start = moved(address).get(user, 0), time.monotonic()
    time.sleep(seconds)
    after, took = moved(address).get(user, 0), time.monotonic() - start
    return (after - before) / took / LINK_BYTES_PER_S


def measure(limit, op):
    """Parts of the link: Alice's beside Bob's jobs, 200 ms after these ended; and her small gets beside them, in us."""
    with tempfile.TemporaryDirectory(prefix="ho-", dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        with node(folder, limit) as address:
            quiet = small_latency(address)
            greedy = [job(address, BOB, op, 16, f"bob {i}") for i in range(GREEDY)]
            time.sleep(6)
            beside = small_latency(address)
            alice = job(address, ALICE, op, 8, "alice")
            time.sleep(3)
            together = part(address, ALICE, 3)
            for one in greedy:
                one.kill()
                one.wait()
            time.sleep(0.2)
            alone = part(address, ALICE, 1)
            alice.kill()
            alice.wait()
    return together, alone, quiet, beside


def small_latency(address):
    """The median of gets of 4 KiB, one at a time, in us."""
    return bench(address, "4KiB", 1)["p50_us"]


def bench(address, size, inflight):
    done = subprocess.run([CLI, "bench", "transport", "--transport", "tcp", "--size", size, "--inflight", str(inflight),
                           "--seconds", "2", "--pool", address, "-o", "json"], user=ALICE, group=ALICE, extra_groups=[0],
                          check=True, text=True, capture_output=True)
    return json.loads(done.stdout)


def main():
    alone, beside = (statistics.median(column) for column in zip(*[measure_classes() for _ in range(ROUNDS)]))
    print(f"gets of a job: {alone:.2f} of the link, {beside:.2f} beside {GREEDY} readers of the same user")
    # 16 parts of 20, of what the daemon gives out.
    failed = beside < 0.9 * 0.8 * alone
    for op in ("get", "put"):
        rows = {limit: [measure(limit, op) for _ in range(ROUNDS)] for limit in (False, True)}
        for limit, row in rows.items():
            together, alone, quiet, beside = (statistics.median(column) for column in zip(*row))
            print(f"{op}, {'with' if limit else 'without'} link_bytes_per_s: beside {GREEDY} jobs {together:.2f} of the link, "
                  f"alone again {alone:.2f}; get of 4 KiB {quiet:.0f} us, beside them {beside:.0f} us")
            # Alice's part is a half of what the daemon gives out.
            failed = failed or (limit and (together < 0.9 * 0.5 * 0.95 or alone < 0.9 * 0.95))
    sys.exit(1 if failed else 0)


main()
