"""Published objects over links limited by tc, and a trainer beside readers: rows for RESULTS.md.

Usage: objects_perf.py CLI DAEMON LIBRARY PACKAGE EXAMPLES [links] [relays] [trainer]
Fails where a reader gets other bytes, or far from the goals. "links" and "relays" need the right to make network namespaces,
"trainer" PyTorch.
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

CLI, DAEMON, LIBRARY, PACKAGE, EXAMPLES = sys.argv[1:6]
os.environ["HYPEROFFLOAD_LIBRARY"] = LIBRARY
sys.path[:0] = [PACKAGE, EXAMPLES, str(pathlib.Path(__file__).resolve().parents[2] / "support")]
import hyperoffload  # noqa: E402

MIB, BITS_PER_S, PORT = 1 << 20, 1_000_000_000, 7000
ROUNDS = 7


def ip(*words, inside=()):
    subprocess.run([*inside, "ip", *words], check=True)


def wait_for_pool(address):
    end = time.monotonic() + 30
    while subprocess.run([CLI, "nodes", "--pool", address], capture_output=True, check=False).returncode != 0:
        assert time.monotonic() < end, address
        time.sleep(0.05)


@contextlib.contextmanager
def node(folder, number, count=2):
    """One of the daemons of a pool, behind a link of its own of 1 Gbit/s each way. Yields its address and process."""
    ours, its = f"10.9.{number}.1", f"10.9.{number}.2"
    config, own = folder / f"node-{number}", folder / f"own-{number}"
    own.mkdir()  # a file system of the daemon's: its socket is out of reach
    others = "".join(f'nodes {{ node_id: {one} name: "n{one}" control_addresses: "tcp:10.9.{one}.2:{PORT}" }}\n'
                     for one in range(1, count + 1) if one != number)
    config.write_text(f'node_id: {number} node_name: "n{number}" ddr_bytes: "768MiB" segment_bytes: "8MiB" insecure: true '
                      f'unix_socket: "{own}/sock" tcp_listen: "{its}:{PORT}" tcp {{ address: "{its}" }} lease_ms: 600000\n'
                      + others)
    daemon = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c",
                               'read -r go; mount -t tmpfs none "$2"; exec "$0" --config "$1"', DAEMON, config, own],
                              stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        while os.readlink(f"/proc/{daemon.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        inside = ("nsenter", "-t", str(daemon.pid), "-n")
        ip("link", "add", f"near{number}", "type", "veth", "peer", "name", "far", "netns", str(daemon.pid))
        for prefix, device, address in (((), f"near{number}", ours), (inside, "far", its)):
            ip("addr", "add", f"{address}/24", "dev", device, inside=prefix)
            ip("link", "set", device, "up", inside=prefix)
            subprocess.run([*prefix, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{BITS_PER_S}bit",
                            "burst", "256k", "latency", "50ms"], check=True)
        ip("route", "add", "default", "via", ours, inside=inside)
        print("go", file=daemon.stdin, flush=True)
        yield f"tcp:{its}:{PORT}", daemon
    finally:
        daemon.terminate()
        daemon.wait()
        daemon.stdin.close()


def seconds(call):
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def links():
    """Two ranks publish the halves of 128 MiB on two nodes; one reader under each layout. Ratios are the bytes that the
    reader needs, over what the links carry in that time."""
    rows, columns = 32768, 4096
    whole = os.urandom(rows * columns)
    with tempfile.TemporaryDirectory(prefix="ho-objects-") as name, contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(node(pathlib.Path(name), number))[0] for number in (1, 2)]
        wait_for_pool(addresses[0])
        halves = [bytearray(whole[rank * len(whole) // 2:(rank + 1) * len(whole) // 2]) for rank in (0, 1)]
        for chunks, reads in (("rows", (("-;-", whole, 2), ("c;-", whole[:len(whole) // 2], 1))),
                              ("grid", (("-;c", b"".join(whole[at:at + columns // 2] for at in range(0, len(whole), columns)), 2),
                                        ("-;-", whole, 2)))):
            with contextlib.ExitStack() as open_ones:
                publishers = [open_ones.enter_context(hyperoffload.Publisher(
                    addresses[0], "w", {"w": hyperoffload.Tile(halves[rank], "r;-", (rows, columns))}, mesh="2:r", rank=rank,
                    run=7, chunks=chunks, secret="a secret of the bench")) for rank in (0, 1)]
                publish_and_read(addresses[0], publishers, (rows, columns), chunks, reads)


def publish_and_read(address, publishers, shape, chunks, reads):
    link, size = BITS_PER_S / 8, shape[0] * shape[1]
    sent = []
    for version in range(1, ROUNDS + 1):
        sent += [size / 2 / link / seconds(lambda one=one, version=version: one.publish(version)) for one in publishers]
    print(f"{chunks}: publish {size / 2 / MIB:.0f} MiB over one link: {statistics.median(sent):.3f} of it")
    assert statistics.median(sent) > 0.8  # the goal is 0.9
    for layout, tile, ways in reads:
        mine = bytearray(len(tile))
        with hyperoffload.Subscriber(address, "w", {"w": hyperoffload.Tile(mine, layout, shape)}, mesh="2:c", rank=0,
                                     secret="a secret of the bench") as reader:
            took = []
            for _ in range(ROUNDS):
                reader.acquire(timeout=10)
                took.append(seconds(reader.read))
            assert mine == tile, layout
            told = reader.describe()
            ratio = len(tile) / (link * ways) / statistics.median(took)
            assert ratio > 0.8, (layout, ratio)
            print(f"{chunks}: read {layout!r}, {len(tile) // MIB} MiB over {ways} links: {ratio:.3f} of them, "
                  f"fetched {told['fetched_bytes'] / told['needed_bytes']:.2f} of the bytes needed")


def layers_of(data):
    """The tensors of a model in `data`."""
    size = RELAYED // LAYERS
    whole = memoryview(data)
    return {f"layer {i}": hyperoffload.Tile(whole[i * size:(i + 1) * size], "-", (size,)) for i in range(LAYERS)}


def sampler(pool, rank):
    """Reads each version that its input names, alone or with the others, and prints when it had it."""
    mine = bytearray(RELAYED)
    readers = [hyperoffload.Subscriber(pool, "w", layers_of(mine), mesh=f"{SAMPLERS}:s", rank=int(rank),
                                       secret="a secret of the bench", relay=relay, run=5)
               for relay in ("", "s")]
    for line in sys.stdin:
        version, relayed = (int(word) for word in line.split())
        readers[relayed].acquire(version, timeout=10, most=version)
        readers[relayed].read()
        readers[relayed].release()
        assert mine == bytes([version]) * RELAYED, version
        print(time.monotonic(), flush=True)
    assert readers[1].describe()["relays"]["direct_reads"] == 0


SAMPLERS, RELAYED, LAYERS = 4, 64 * MIB, 16


def relays():
    """One rank publishes on its node; samplers on nodes of their own read all of it at once, in turns each from the
    publisher and with relays. The bound is what one link carries in that time."""
    with tempfile.TemporaryDirectory(prefix="ho-objects-") as name, contextlib.ExitStack() as stack:
        pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # in this namespace
        nodes = [stack.enter_context(node(pathlib.Path(name), number, SAMPLERS + 1)) for number in range(1, SAMPLERS + 2)]
        for address, _ in nodes:
            wait_for_pool(address)
        data = bytearray(RELAYED)
        publisher = stack.enter_context(hyperoffload.Publisher(
            nodes[0][0], "w", layers_of(data), run=7, secret="a secret of the bench"))
        readers = [subprocess.Popen(["nsenter", "-t", str(daemon.pid), "-n", "-m", "--", sys.executable,
                                     pathlib.Path(__file__).resolve(), *map(os.path.abspath, sys.argv[1:6]), "--sampler",
                                     f"unix:{name}/own-{rank + 2}/sock", str(rank)],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                   for rank, (_, daemon) in enumerate(nodes[1:])]
        took = {0: [], 1: []}
        try:
            for version in range(1, 2 * ROUNDS + 1):
                data[:] = bytes([version]) * RELAYED
                publisher.publish(version)
                begin = time.monotonic()
                for one in readers:
                    print(version, version % 2, file=one.stdin, flush=True)
                took[version % 2].append(max(float(one.stdout.readline()) for one in readers) - begin)
            for one in readers:
                one.stdin.close()
                assert one.wait() == 0
        finally:
            for one in readers:
                one.kill()
                one.wait()
        least = RELAYED / (BITS_PER_S / 8)
        alone, shared = (statistics.median(took[one][1:]) / least for one in (0, 1))
        print(f"{SAMPLERS} samplers read {RELAYED // MIB} MiB: {alone:.2f} times what one link takes for it; with relays {shared:.2f}")
        assert shared < 0.7 * alone


def make_model():
    import with_torch  # noqa: F401
    import actor_learner
    actor_learner.WIDTH, actor_learner.LAYERS, actor_learner.HEADS = 256, 6, 4
    return actor_learner.make_model()


def actor(pool, plan):
    """Reads each version at the planned rate until it is ended."""
    weights = {name: value.data for name, value in make_model().named_parameters()}
    with hyperoffload.Programs(plan).subscriber(pool, "policy", "actor", weights, rank=1) as reader:
        version = 0
        while True:
            try:
                version = reader.acquire(version + 1, timeout=1)
            except hyperoffload.Error as error:
                if error.name != "not-found":
                    raise
                continue
            reader.read()
            reader.release()
            print(version, flush=True)


def trainer():
    """Steps of a GPT alone, and while it publishes every few steps and another process reads each version, in turns."""
    from with_torch import torch
    import actor_learner
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {0})
    with tempfile.TemporaryDirectory(prefix="ho-objects-") as name:
        folder = pathlib.Path(name)
        model = make_model()
        tensors = [{"name": key, "shape": list(value.shape), "elementBytes": 4} for key, value in model.named_parameters()]
        (folder / "tensors.json").write_text(json.dumps({"tensors": tensors}))
        (folder / "programs.textproto").write_text('''
programs { name: "learner" mesh: "1:dp@0" period: "200ms" }
programs { name: "actor" mesh: "1:dp@1" period: "100ms" }
objects { name: "policy" from: "learner" to: "actor" tensors: "tensors.json" every: 5 versions: 3 }
''')
        link = {"bytesPerS": "5000000000", "latencyNs": "10000"}
        (folder / "node.json").write_text(json.dumps({"name": "n", "localDdr": {"capacityBytes": "1000000000", "read": link,
                                                                                "write": link}}))
        subprocess.run([CLI, "analyze-programs", folder / "programs.textproto", "--hardware", folder / "node.json", "--out",
                        folder / "plan"], check=True, capture_output=True)
        (folder / "config").write_text(f'ddr_bytes: "512MiB" segment_bytes: "2MiB" unix_socket: "{folder}/sock" lease_ms: 600000\n')
        daemon = subprocess.Popen(["taskset", "-c", "1", DAEMON, "--config", folder / "config"], stderr=subprocess.DEVNULL)
        pool = f"unix:{folder}/sock"
        reading = None
        try:
            wait_for_pool(pool)
            weights = {key: value.data for key, value in model.named_parameters()}
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            publisher = hyperoffload.Programs(folder / "plan").publisher(pool, "policy", "learner", weights, rank=0)
            reading = subprocess.Popen(["taskset", "-c", "1", sys.executable, __file__, *sys.argv[1:6], "--actor", pool,
                                        folder / "plan"], stdout=subprocess.PIPE, text=True)
            tokens = torch.randint(256, (8, actor_learner.LENGTH + 1))
            version, steps = 0, {False: [], True: []}

            def step(publishes):
                loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if publishes:
                    publisher.publish(version)

            for turn in range(80):
                beside = turn % 2 == 1
                version += beside
                begin = time.monotonic()
                for at in range(5):
                    step(beside and at == 0)
                steps[beside].append((time.monotonic() - begin) / 5)
            alone, both = (statistics.median(steps[one][2:]) for one in (False, True))
            ratios = statistics.median(b / a for a, b in zip(steps[False][1:], steps[True][1:]))
            size = sum(value.numel() * 4 for value in model.parameters())
            publisher.publish(version + 1)
            while (seen := int(reading.stdout.readline())) <= version:
                pass
            assert ratios < 1.1, (alone, both, ratios)  # the goal is 1.02
            print(f"trainer: {alone * 1e3:.1f} ms a step alone, {both * 1e3:.1f} ms with {size / MIB:.0f} MiB published every 5 steps "
                  f"and read: {ratios:.4f}; the reader saw version {seen}")
            publisher.close()
        finally:
            for process in (reading, daemon):
                if process is not None:
                    process.kill()
                    process.wait()


if sys.argv[6:7] == ["--actor"]:
    actor(*sys.argv[7:9])
elif sys.argv[6:7] == ["--sampler"]:
    sampler(*sys.argv[7:9])
elif "HO_OWN_NET" not in os.environ:
    for what in sys.argv[6:] or ["links", "relays", "trainer"]:
        own = ["unshare", "--net"] if what != "trainer" else []
        subprocess.run([*own, sys.executable, *sys.argv[:6], what], check=True, env={**os.environ, "HO_OWN_NET": "1"})
else:
    {"links": links, "relays": relays, "trainer": trainer}[sys.argv[6]]()
