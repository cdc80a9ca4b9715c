"""Published objects from Python: programs of two and three ranks, each a process, over a real daemon; layouts of
other frameworks; what `hyperoffload objects ls` shows."""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types

cli, daemon, library, package = sys.argv[1:5]
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
import hyperoffload  # noqa: E402

ROWS, COLUMNS = 300, 1001


def run(*words):
    return subprocess.run([cli, *words], capture_output=True, text=True, timeout=60)


def chunk(size, parts):
    """As torch.chunk divides: by the ceiling; the last ones are smaller or empty."""
    most = -(-size // parts)
    return [(min(i * most, size), min((i + 1) * most, size)) for i in range(parts)]


def values(rows, columns, version):
    return [r * COLUMNS + c + version * 7 for r in range(*rows) for c in range(*columns)]


def buffer(rows, columns):
    count = (rows[1] - rows[0]) * (columns[1] - columns[0])
    return memoryview(bytearray(4 * count)).cast("I")


def wait_for(line):
    assert sys.stdin.readline().strip() == line


def publisher(pool, rank):
    """One of two ranks, which have rows each. Prints each version, and goes on after a line."""
    rows = chunk(ROWS, 2)[rank]
    data = buffer(rows, (0, COLUMNS))
    bias = memoryview(bytearray(8)).cast("d")
    tensors = {"weight": hyperoffload.Tile(data, "dp;-", (ROWS, COLUMNS)), "bias": bias}
    with hyperoffload.Publisher(pool, "policy", tensors, mesh="2:dp", rank=rank, run=77) as mine:
        for version in (1, 2):
            data[:] = memoryview(b"".join(x.to_bytes(4, "little") for x in values(rows, (0, COLUMNS), version))).cast("I")
            bias[0] = version + 0.5
            mine.publish(version)
            print(version, flush=True)
            wait_for("go on")


def subscriber(pool, rank):
    """One of three ranks, which have columns each."""
    columns = chunk(COLUMNS, 3)[rank]
    data = buffer((0, ROWS), columns)
    bias = memoryview(bytearray(8)).cast("d")
    tensors = {"weight": hyperoffload.Tile(data, "-;tp", (ROWS, COLUMNS)), "bias": bias}
    with hyperoffload.Subscriber(pool, "policy", tensors, mesh="3:tp", rank=rank) as mine:
        for expected in (1, 2):
            assert mine.acquire(expected, timeout=20) == expected
            mine.read()
            assert data.tolist() == values((0, ROWS), columns, expected), rank
            assert bias[0] == expected + 0.5
            print(json.dumps(mine.describe()), flush=True)
            wait_for("go on")
            mine.release()


class Process:
    def __init__(self, pool, what, rank, stderr=None):
        self.process = subprocess.Popen([sys.executable, *sys.argv[:5], pool, what, str(rank)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)

    def line(self):
        return self.process.stdout.readline().strip()

    def go_on(self):
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.communicate()


def programs(pool):
    learners = [Process(pool, "publisher", rank) for rank in range(2)]
    actors = [Process(pool, "subscriber", rank) for rank in range(3)]
    try:
        for version in ("1", "2"):
            assert [one.line() for one in learners] == [version] * 2
            described = [json.loads(one.line()) for one in actors]
            assert described[0]["mesh"] == "2:dp" and described[0]["tensors"][0]["dtype"] == "uint32"
            shown = run("objects", "ls", "--pool", pool, "-o", "json")
            assert shown.returncode == 0, shown
            parts = json.loads(shown.stdout)["nodes"][0]["objects"]
            now = [one for one in parts if str(one["version"]) == version]
            assert sorted(one["part"] for one in now) == [0, 1] and now[0]["object"].endswith("/policy"), parts
            assert all(one["readers"] == 3 and one["parts"] == 2 for one in now), parts
            assert "policy" in run("objects", "ls", "--pool", pool).stdout
            for one in actors + learners:
                one.go_on()
        assert [one.process.wait(20) for one in learners + actors] == [0] * 5
        assert json.loads(run("objects", "ls", "--pool", pool, "-o", "json").stdout)["nodes"][0]["objects"] == []
    finally:
        for one in learners + actors:
            one.end()


def refused(pool):
    tensor = memoryview(bytearray(8)).cast("d")
    with hyperoffload.Subscriber(pool, "nobody", {"x": tensor}) as reader:
        try:
            reader.acquire()
            raise AssertionError("acquired what nobody published")
        except hyperoffload.Error as error:
            assert error.name == "not-found", error
    for wrong in ({"mesh": "2:dp", "rank": 0}, {"mesh": "2:dp", "run": 1, "rank": 2}, {"secret": "short"}):
        try:
            hyperoffload.Publisher(pool, "x", {"x": tensor}, **wrong)
            raise AssertionError(f"opened with {wrong}")
        except hyperoffload.Error as error:
            assert error.name == "invalid-argument", error


def refuses(error, call):
    try:
        call()
    except error as caught:
        return str(caught)
    raise AssertionError(f"no {error.__name__}")


def numbers_and_texts(pool):
    """What a field of the library has no room for is refused, and not cut."""
    tensors = {"x": bytearray(8)}
    with hyperoffload.Publisher(pool, "numbers", tensors) as writer, \
            hyperoffload.Subscriber(pool, "numbers", {"x": bytearray(8)}) as reader:
        for version in (-1, 2 ** 64 + 5):
            assert str(version) in refuses(ValueError, lambda: writer.publish(version))
        writer.publish(7)
        for call in (lambda: reader.acquire(-1), lambda: reader.acquire(2 ** 64), lambda: reader.acquire(most=2 ** 64 + 7)):
            refuses(ValueError, call)
        refuses(TypeError, lambda: reader.acquire(7.0))
        for timeout in (-1, -1e30, 4294967.296, float("inf")):
            assert reader.acquire(7, timeout=timeout) == 7
        assert refuses(hyperoffload.Error, lambda: reader.acquire(8, timeout=-1)).startswith("not-found")
    for wrong in ({"rank": -1}, {"rank": 2 ** 32}, {"versions": -1}, {"versions": 2 ** 32 + 1}, {"run": -1}, {"run": 2 ** 64},
                  {"link": -1}, {"secret": "sixteen bytes and\0more"}, {"mesh": "1:a\0"}):
        assert next(iter(wrong)) in refuses(ValueError, lambda: hyperoffload.Publisher(pool, "numbers", tensors, **wrong)), wrong
    refuses(ValueError, lambda: hyperoffload.Publisher(pool, "num\0bers", tensors))
    with hyperoffload.Publisher(pool, "alone", tensors, exclusive=True) as one:
        assert "not listed in etcd" in refuses(hyperoffload.Error, lambda: one.publish(1))
    refuses(ValueError, lambda: hyperoffload.Publisher(pool, "numbers", {"x\0y": bytearray(8)}))
    refuses(ValueError, lambda: hyperoffload.Publisher(pool, "numbers", {"x": hyperoffload.Tile(bytearray(8), "-", (-1,))}))


def what_a_version_lacks(pool):
    """A reader that finds none hears why: ranks that are missing, or that do not belong together."""
    def rank(number, run=1, rows=4, chunks="rows"):
        tile = hyperoffload.Tile(bytearray(rows // 2), "dp", (rows,))
        return hyperoffload.Publisher(pool, "lacks", {"x": tile}, mesh="2:dp", rank=number, run=run, chunks=chunks)

    def said():
        with hyperoffload.Subscriber(pool, "lacks", {"x": bytearray(4)}) as reader:
            return refuses(hyperoffload.Error, reader.acquire)

    assert said() == "not-found: no version of lacks from 0 on is complete"
    with rank(0) as first:
        first.publish(3)
        assert said() == "not-found: no version of lacks from 0 on is complete: version 3 has 1 of 2 parts"
        for wrong in ({"rows": 6}, {"chunks": "grid"}):
            with rank(1, **wrong) as second:
                second.publish(3)
                assert said().endswith("version 3 has parts that differ in mesh, tensors or chunks"), said()
        with rank(1, run=2) as second:
            second.publish(4)
            assert said().endswith("version 4 has 1 of 2 parts"), said()
        with rank(1) as second:
            second.publish(3)
            with hyperoffload.Subscriber(pool, "lacks", {"x": bytearray(4)}) as reader:
                assert reader.acquire() == 3


def no_room(pool):
    """A rank's versions are on one node: the refusal says so, and how many there are."""
    said = refuses(hyperoffload.Error, lambda: hyperoffload.Publisher(pool, "large", {"x": bytearray(12 << 20)}, versions=3))
    assert said.startswith("exhausted: large: no node that answered gives memory for 3 versions of 12.0 MiB;"), said
    said = refuses(hyperoffload.Error, lambda: hyperoffload.Publisher(pool, "nameless", {"": bytearray(1)}))
    assert said == "invalid-argument: a tensor has no name", said


def described_after_release(pool):
    with hyperoffload.Publisher(pool, "described", {"x": bytearray(8)}) as writer, \
            hyperoffload.Subscriber(pool, "described", {"x": bytearray(8)}) as reader:
        assert reader.describe() is None
        writer.publish(1)
        reader.acquire()
        reader.release()
        assert reader.describe()["needed_bytes"] == 8


def waiting(pool, _):
    """Waits for what nobody publishes."""
    with hyperoffload.Subscriber(pool, "nobody", {"x": bytearray(8)}) as reader:
        print("waiting", flush=True)
        reader.acquire(timeout=float("inf"))


def waits(pool):
    """A wait finds what is published meanwhile, ends at once where waiting cannot help, and by Ctrl-C."""
    with hyperoffload.Publisher(pool, "late", {"x": bytearray(8)}) as writer, \
            hyperoffload.Subscriber(pool, "late", {"x": bytearray(8)}) as reader, \
            hyperoffload.Subscriber(pool, "late", {"y": bytearray(8)}) as misfit, concurrent.futures.ThreadPoolExecutor(1) as thread:
        found = thread.submit(reader.acquire, timeout=60)
        time.sleep(0.7)
        writer.publish(1)
        assert found.result(60) == 1
        begin = time.monotonic()
        assert 'no tensor "y"' in refuses(hyperoffload.Error, lambda: misfit.acquire(timeout=60))
        assert time.monotonic() - begin < 30
        begin = time.monotonic()
        assert "is complete" in refuses(hyperoffload.Error, lambda: reader.acquire(2, timeout=0.7))
        assert 0.7 <= time.monotonic() - begin < 30
    waiter = Process(pool, "waiting", 0, subprocess.PIPE)
    try:
        assert waiter.line() == "waiting"
        time.sleep(0.5)
        waiter.process.send_signal(signal.SIGINT)
        said = waiter.process.communicate(timeout=20)
        assert waiter.process.returncode == -signal.SIGINT and "KeyboardInterrupt" in said[1], said
    finally:
        waiter.end()


class Tensor:
    """The attributes of a torch tensor that are read. Its memory moves, as under fit()."""

    def __init__(self):
        self.places = [ctypes.create_string_buffer(8) for _ in range(2)]
        self.shape, self.dtype, self.device = (1,), "torch.float64", types.SimpleNamespace(type="cpu")

    def is_contiguous(self):
        return True

    def element_size(self):
        return 8

    def numel(self):
        return 1

    def data_ptr(self):
        return ctypes.addressof(self.places[0])


def moves(pool):
    """A tensor whose memory has moved is neither published nor written."""
    tensor = Tensor()
    with hyperoffload.Publisher(pool, "moves", {"x": tensor}) as writer, \
            hyperoffload.Subscriber(pool, "moves", {"x": tensor}) as reader:
        writer.publish(1)
        assert reader.acquire() == 1
        reader.read()
        tensor.places.reverse()
        for call in (lambda: writer.publish(2), reader.read):
            try:
                call()
                raise AssertionError("memory was used that is not the tensor's any more")
            except hyperoffload.Error as error:
                assert error.name == "conflict" and "x: its memory has moved" in str(error), error
        tensor.places.reverse()
        writer.publish(2)


def parts_of_rows(pool):
    """With tiles in a grid a reader of a few columns fetches about these, with tiles in rows everything."""
    rows, columns = 2048, 4096
    data = bytearray(os.urandom(rows * columns))
    mine = bytearray(rows * columns // 4)
    fetched = {}
    for chunks in ("rows", "grid"):
        with hyperoffload.Publisher(pool, chunks, {"w": hyperoffload.Tile(data, "-;-", (rows, columns))}, chunks=chunks) as writer, \
                hyperoffload.Subscriber(pool, chunks, {"w": hyperoffload.Tile(mine, "-;c", (rows, columns))}, mesh="4:c",
                                        rank=2) as reader:
            writer.publish(1)
            reader.acquire()
            mine[:] = bytes(len(mine))
            reader.read()
            assert mine == b"".join(data[at + columns // 2:at + columns // 4 * 3] for at in range(0, len(data), columns)), chunks
            fetched[chunks] = reader.describe()["fetched_bytes"]
    assert fetched == {"rows": len(data), "grid": len(mine)}, fetched
    try:
        hyperoffload.Publisher(pool, "x", {"x": bytearray(8)}, chunks="columns")
        raise AssertionError("opened with chunks that do not exist")
    except ValueError as error:
        assert "'columns'" in str(error), error


def shared_reading(pool):
    """Two ranks read the same tensor, half of it each from its publisher."""
    data, got = bytearray(os.urandom(4 << 20)), [bytearray(4 << 20) for _ in range(2)]
    with contextlib.ExitStack() as ends, concurrent.futures.ThreadPoolExecutor(2) as threads:
        writer = ends.enter_context(hyperoffload.Publisher(pool, "shared", {"x": data}))
        readers = [ends.enter_context(hyperoffload.Subscriber(pool, "shared", {"x": mine}, mesh="2:dp", rank=rank, relay="dp", run=9))
                   for rank, mine in enumerate(got)]
        writer.publish(3)
        for one in readers:
            assert one.acquire(3, most=3) == 3
        for done in [threads.submit(one.read) for one in readers]:
            done.result(timeout=60)
        assert got == [data, data]
        for one in readers:
            assert one.describe()["relays"] == {"fetched_bytes": 2 << 20, "relayed_reads": 1, "direct_reads": 0}, one.describe()
        shown = json.loads(run("objects", "ls", "--pool", pool, "-o", "json").stdout)["nodes"][0]["objects"]
        assert sum("/shared/relay-0-" in one["object"] for one in shown) == 2, shown


def held_to_a_rate(pool):
    """A reader and a publisher take as long as their rates say; the bytes are the same."""
    sent, got = bytearray(os.urandom(8 << 20)), bytearray(8 << 20)
    with hyperoffload.Publisher(pool, "slow", {"x": sent}, link=16 << 20) as writer, \
            hyperoffload.Subscriber(pool, "slow", {"x": got}, link=16 << 20) as reader:
        for move in (lambda: writer.publish(1), lambda: (reader.acquire(), reader.read())):
            begin = time.monotonic()
            move()
            assert time.monotonic() - begin > 0.4  # 8 MiB at 16 MiB/s take 0.5 s
        assert got == sent


class Mesh:
    """The attributes of torch's DeviceMesh that are read."""

    class Ranks(list):
        def flatten(self):
            return types.SimpleNamespace(tolist=lambda: [rank for row in self for rank in row])

    def __init__(self, rows, names):
        self.mesh = self.Ranks(rows)
        self.mesh.shape = (len(rows), len(rows[0]))
        self.mesh_dim_names = names


class Shard:
    def __init__(self, dim):
        self.dim = dim


class Replicate:
    pass


class Partial:
    reduce_op = "sum"


class DTensor:
    """The attributes of torch's DTensor that are read: a vector over a mesh of one dimension, of this process' rank."""

    def __init__(self, local, rank, count, size):
        self.device_mesh = types.SimpleNamespace(mesh=Mesh.Ranks([list(range(count))]), mesh_dim_names=("dp",), get_rank=lambda: rank)
        self.device_mesh.mesh.shape = (count,)
        self.placements, self.shape, self._local = (Shard(0),), (size,), local

    def dim(self):
        return 1

    def to_local(self):
        return self._local


def ranks_of_dtensors(pool):
    """A DTensor's rank comes from its mesh; where several ranks have none, it is not taken for rank 0."""
    with hyperoffload.Publisher(pool, "halves", {"x": bytearray(b"abcdefgh")}) as writer:
        writer.publish(1)
        for rank, half in enumerate((b"abcd", b"efgh")):
            got = bytearray(4)
            with hyperoffload.Subscriber(pool, "halves", {"x": DTensor(got, rank, 2, 8)}) as reader:
                reader.acquire(timeout=20)
                reader.read()
            assert got == half, (rank, got)
    with contextlib.ExitStack() as ends:
        for rank, half in enumerate((b"abcd", b"efgh")):
            ends.enter_context(hyperoffload.Publisher(pool, "parts", {"x": DTensor(bytearray(half), rank, 2, 8)}, run=3)).publish(1)
        got = bytearray(8)
        with hyperoffload.Subscriber(pool, "parts", {"x": got}) as reader:
            reader.acquire(timeout=20)
            reader.read()
        assert got == b"abcdefgh", got
    one = DTensor(bytearray(4), 1, 2, 8)
    assert "not rank 0" in refuses(ValueError, lambda: hyperoffload.Subscriber(pool, "halves", {"x": one}, rank=0))
    assert "not on 2:tp" in refuses(ValueError, lambda: hyperoffload.Subscriber(pool, "halves", {"x": one}, mesh="2:tp"))
    tile = hyperoffload.Tile(bytearray(4), "dp", (8,))
    for kind in (hyperoffload.Publisher, hyperoffload.Subscriber):
        assert "rank=" in refuses(ValueError, lambda: kind(pool, "halves", {"x": tile}, mesh="2:dp", run=3))
    hyperoffload.Subscriber(pool, "halves", {"x": hyperoffload.Tile(bytearray(8), "dp", (8,))}, mesh="1:dp").close()


def boxes(words, shape):
    mesh, layout = words
    done = run("layout", "--mesh", mesh, "--layout", layout, "--shape", ",".join(map(str, shape)), "-o", "json")
    assert done.returncode == 0, done
    return {one["rank"]: [(b["begin"], b["end"]) for b in one["boxes"]] for one in json.loads(done.stdout)["ranks"]}


def imports():
    mesh = Mesh([[8, 9], [10, 11], [12, 13]], ("dp", "tp"))
    words = hyperoffload.from_dtensor(mesh, (Shard(0), Shard(1)), 2)
    assert words == ("3x2:dp,tp@8,9,10,11,12,13", "dp;tp")
    found = boxes(words, (7, 5))
    for i, rows in enumerate(chunk(7, 3)):
        for j, columns in enumerate(chunk(5, 2)):
            box = found[8 + 2 * i + j]
            assert box == [([rows[0], columns[0]], [rows[1], columns[1]])], (box, rows, columns)
    # Both divide one dimension: torch divides by dp, then each part by tp.
    words = hyperoffload.from_dtensor(Mesh([[0, 1], [2, 3]], None), (Shard(0), Shard(0)), 1)
    assert words == ("2x2:m0,m1", "m0,m1")
    ends = [found[0][1][0] - found[0][0][0] for _, found in sorted(boxes(words, (9,)).items())]
    assert ends == [3, 2, 2, 2], ends
    assert hyperoffload.from_dtensor(mesh, (Replicate(), Partial()), 2)[1] == "-;-+sum:tp"
    try:
        hyperoffload.from_dtensor(mesh, (Replicate(), object()), 2)
        raise AssertionError("took an unknown placement")
    except ValueError:
        pass
    assert hyperoffload.from_dtensor(mesh, (Replicate(), Shard(-1)), 2)[1] == "-;tp"
    for dim in (2, -3):
        refuses(ValueError, lambda: hyperoffload.from_dtensor(mesh, (Replicate(), Shard(dim)), 2))
    for name in ("a,b", "a b", "a;b", "a+b", "a@b", "a:b", "-", ""):
        assert repr(name) in refuses(ValueError, lambda: hyperoffload.from_dtensor(Mesh([[0, 1]], (name, "tp")), (Replicate(),) * 2, 1))
    both = ("2x2x4:dp,sp,mp", "dp;-;sp,mp")
    assert hyperoffload.from_hypershard((2, 2, 4), ("dp", "sp", "mp"), ("dp", "None", ("sp", "mp"))) == both
    assert hyperoffload.from_hypershard((2, 2, 4), ("dp", "sp", "mp"), (2, -1, (1, 0))) == both  # from the right
    assert hyperoffload.from_hypershard((2,), ("mp",), (None,), [3, 1]) == ("2:mp@3,1", "-")
    class Number:  # as one of numpy
        def __init__(self, number):
            self.number = number

        def __index__(self):
            return self.number

    found = hyperoffload.from_hypershard((2, 2, 4), ("dp", "sp", "mp"), (Number(2), Number(-1), (Number(1), Number(0))))
    assert found == both
    for wrong in (((2,), ("mp",), (None,), [3, 3]), ((2, 2), ("dp", "dp"), ("dp",)), ((2, 2), ("dp", "tp"), ("dp", "dp")),
                  ((2, 2), ("dp", "tp"), (("dp", "dp"),)), ((2,), ("mp",), (None,), [-1, 0]), ((0,), ("mp",), (None,)),
                  ((2,), ("mp",), (1,)), ((2,), ("mp",), (-2,)), ((2,), ("mp",), ("tp",))):
        refuses(ValueError, lambda: hyperoffload.from_hypershard(*wrong))


if len(sys.argv) > 5:
    {"publisher": publisher, "subscriber": subscriber, "waiting": waiting}[sys.argv[6]](sys.argv[5], int(sys.argv[7]))
    sys.exit(0)

with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    address = f"unix:{folder}/c.sock"
    config = folder / "config.textproto"
    config.write_text(f'''
node_id: 5 ddr_bytes: 33554432 segment_bytes: 2097152 unix_socket: "{folder}/c.sock" drain_ms: 500
lease_ms: 600000
''')
    process = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while run("status", "--pool", address).returncode != 0:
            assert time.monotonic() < end and process.poll() is None, "the daemon did not come up"
            time.sleep(0.1)
        imports()
        refused(address)
        numbers_and_texts(address)
        ranks_of_dtensors(address)
        described_after_release(address)
        what_a_version_lacks(address)
        no_room(address)
        waits(address)
        moves(address)
        held_to_a_rate(address)
        parts_of_rows(address)
        shared_reading(address)
        programs(address)
    finally:
        process.kill()
        process.wait()
print("programs read what others publish")
