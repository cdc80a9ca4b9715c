"""hyperoffload objects reshard: a version of eight ranks, published anew for others, which read it from the command.

Usage: reshard_test.py CLI DAEMON LIBRARY PACKAGE
"""
import array
import contextlib
import json
import os
import pathlib
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

CLI, DAEMON, LIBRARY, PACKAGE = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
os.environ["HYPEROFFLOAD_LIBRARY"] = LIBRARY
sys.path[:0] = [PACKAGE]
import hyperoffload  # noqa: E402

ROWS, COLUMNS = 301, 1000
SHAPES = {"weight": (ROWS, COLUMNS), "up": (64, 40), "bias": (37,), "scale": (1,)}
SOURCE = {"weight": "dp;tp", "up": "-;tp", "bias": "tp", "scale": ""}  # over a mesh 4x2
SEED = {name: 7 * i for i, name in enumerate(SHAPES)}


def interval(size, parts, position):
    """What one of `parts` has of a dimension: ceil(size / parts), the last ones fewer."""
    each = -(-size // parts) if size else 0
    return range(min(size, position * each), min(size, position * each + each))


def sides(name, layout, axes):
    """The indices that a rank has along each dimension. @param axes  its position and the size, by axis"""
    words = layout.split(";") if layout else ["-"] * len(SHAPES[name])
    return [range(size) if word == "-" else interval(size, axes[word][1], axes[word][0]) for size, word in zip(SHAPES[name], words)]


def tile_of(name, layout, axes, version):
    found = sides(name, layout, axes)
    places = [()]
    for side in found:
        places = [(*place, i) for place in places for i in side]
    out = array.array("H")
    for place in places:
        at = 0
        for i, size in zip(place, SHAPES[name]):
            at = at * size + i
        out.append((at + SEED[name] + version) % 65521)
    return out


def ranks_of(first, second, names=("dp", "tp")):
    """By rank of a mesh with two axes: the position and size along each."""
    return [{names[0]: (i // second, first), names[1]: (i % second, second)} for i in range(first * second)]


class Reshard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ho-reshard-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.address = cls.start("sock", "256MiB")

    @classmethod
    def start(cls, socket, ddr, node=0, others=()):
        """@param others  the sockets of the pool's other nodes"""
        config = cls.folder / f"{socket}.config"
        nodes = "".join(f'nodes {{ node_id: {i} control_addresses: "unix:{cls.folder}/{other}" }}\n' for i, other in others)
        config.write_text(f'node_id: {node} ddr_bytes: "{ddr}" segment_bytes: "2MiB" unix_socket: "{cls.folder}/{socket}"\n{nodes}')
        with open(cls.folder / f"{socket}.log", "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([DAEMON, "--config", str(config)], stderr=log)
        cls.addClassCleanup(lambda: (daemon.terminate(), daemon.wait()))
        end = time.monotonic() + 60
        while "serving" not in (cls.folder / f"{socket}.log").read_text():
            assert time.monotonic() < end and daemon.poll() is None
            time.sleep(0.05)
        return f"unix:{cls.folder}/{socket}"

    def publish(self, name, version=5, address=None):
        """The eight ranks of a program. @return what ends it."""
        with contextlib.ExitStack() as stack:
            for rank, axes in enumerate(ranks_of(4, 2)):
                tensors = {one: hyperoffload.Tile(tile_of(one, layout, axes, version), layout, SHAPES[one])
                           for one, layout in SOURCE.items()}
                stack.enter_context(hyperoffload.Publisher(address or self.address, name, tensors, mesh="4x2:dp,tp", rank=rank,
                                                           run=9, versions=1)).publish(version)
            ends = stack.pop_all()
        self.addCleanup(ends.close)
        return ends

    def command(self, name, new, *words, pool=None):
        return [CLI, "objects", "reshard", name, "--as", new, "--pool", pool or self.address, *words]

    @contextlib.contextmanager
    def held(self, name, new, *words, pool=None, logs="^$"):
        """The command while it holds the new version, and what it has said. It ends by Ctrl-C.
        @param logs  what the library says of it meanwhile"""
        with subprocess.Popen([*self.command(name, new, *words, pool=pool), "-o", "json"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            line = process.stdout.readline()
            try:
                self.assertNotEqual(line, "", process.stderr.read() if not line else "")
                yield process, json.loads(line)
            finally:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (130, ""))
            self.assertRegex(err, logs)

    def refused(self, name, new, *words, code, pool=None):
        done = subprocess.run([*self.command(name, new, *words, pool=pool), "-o", "json"], capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, code, done)
        self.assertEqual(set(json.loads(done.stdout)) if code == 1 else done.stdout, {"object", "error"} if code == 1 else "")
        return done.stderr

    def nodes(self, address=None):
        done = subprocess.run([CLI, "objects", "ls", "--pool", address or self.address, "-o", "json"], capture_output=True, text=True,
                              check=True)
        return json.loads(done.stdout)["nodes"]

    def objects(self, address=None):
        return [one for node in self.nodes(address) for one in node["objects"]]

    def parts_by_node(self, address):
        return {node["node_id"]: sorted(one["part"] for one in node["objects"]) for node in self.nodes(address)}

    def named(self, new):
        return [one for one in self.objects() if one["object"].endswith(f"/{new}")]

    def granted(self):
        done = subprocess.run([CLI, "status", "--pool", self.address, "-o", "json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["nodes"][0]["ddr_granted_bytes"]

    def check(self, new, mesh, axes_of_ranks, layouts, version=5, names=tuple(SHAPES), address=None):
        """Each rank of another program, in a session of its own, reads its tiles."""
        for rank, axes in enumerate(axes_of_ranks):
            wanted = {name: tile_of(name, layouts[name], axes, version) for name in names}
            got = {name: array.array("H", bytes(2 * len(tile))) for name, tile in wanted.items()}
            tiles = {name: hyperoffload.Tile(got[name], layouts[name], SHAPES[name]) for name in names}
            with hyperoffload.Subscriber(address or self.address, new, tiles, mesh=mesh, rank=rank) as reader:
                self.assertEqual(reader.acquire(timeout=20), version)
                reader.read()
                self.assertEqual(got, wanted)
                described = reader.describe()
            self.assertEqual(described["mesh"], mesh)
            self.assertEqual({one["name"]: one["layout"] for one in described["tensors"]}, {name: layouts[name] for name in names})

    def wait_for(self, holds):
        end = time.monotonic() + 60
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_saved_on_4x2_and_needed_on_2x4(self):
        ends = self.publish("policy")
        before = self.granted()
        with self.held("policy", "policy-2x4", "--mesh", "2x4:dp,tp") as (_, said):
            self.assertEqual((said["object"], said["version"], said["as"]), ("policy", 5, "policy-2x4"))
            # Each tile once: 2 and 4 parts of the weight, 4 of the others.
            self.assertEqual(said["stored_bytes"], 2 * (ROWS * COLUMNS + 64 * 40 + 37 + 1))
            self.assertEqual(said["memory_bytes"], 2 * 151 * 250)
            self.assertEqual([one["rank"] for one in said["ranks"]], list(range(8)))
            self.assertEqual(sorted(one["part"] for one in self.named("policy-2x4")), list(range(8)))
            self.check("policy-2x4", "2x4:dp,tp", ranks_of(2, 4), SOURCE)
            ends.close()  # the trainer is gone
            self.assertEqual(self.named("policy"), [])
            self.check("policy-2x4", "2x4:dp,tp", ranks_of(2, 4), SOURCE)
            self.publish("policy", 6)  # another one goes on
            self.check("policy-2x4", "2x4:dp,tp", ranks_of(2, 4), SOURCE)
        self.assertEqual((self.named("policy-2x4"), self.granted()), ([], before))

    def test_layouts_of_ones_own(self):
        self.publish("own")
        named = self.folder / "tensors.json"
        named.write_text(json.dumps({"tensors": [{"name": "up", "shape": [64, 40], "elementBytes": 2, "to": "b;a"}]}))
        layouts = {"weight": "-;b", "up": "b;a", "bias": "a", "scale": "a"}  # which one rank has
        with self.held("own", "own-3x2", "--mesh", "3x2:a,b", "--layout", "-;b", "--layout", "a", "--tensors", str(named),
                       "--version", "5"):
            self.check("own-3x2", "3x2:a,b", ranks_of(3, 2, ("a", "b")), layouts)
        with self.held("own", "own-some", "--mesh", "1x64:dp,tp", "--only", "b*"):  # more ranks than elements
            self.check("own-some", "1x64:dp,tp", ranks_of(1, 64), SOURCE, names=("bias",))

    def test_what_is_refused(self):
        self.publish("here")
        mesh = ("--mesh", "2x4:dp,tp")
        self.assertIn("not-found", self.refused("nowhere", "new", *mesh, "--timeout", "0.2", code=1))
        self.assertIn("not-found", self.refused("here", "new", *mesh, "--version", "4", "--timeout", "0.2", code=1))
        self.assertIn("version 5 of here is there already", self.refused("here", "here", *mesh, code=2))
        with self.held("here", "here-2x4", *mesh):
            self.assertIn("version 5 of here-2x4 is there already", self.refused("here", "here-2x4", *mesh, code=2))
        with self.held("here", "here-2x4", *mesh):
            pass
        # The object's own layouts have axes that this mesh lacks.
        said = self.refused("here", "new", "--mesh", "8:x", code=2)
        self.assertIn('tensor "weight" over --mesh 8:x: layout "dp;tp": the mesh has no axis "dp"; --layout', said)
        self.assertIn("partial", self.refused("here", "new", *mesh, "--layout", "dp;-+sum:tp", code=2))
        self.assertIn("no tensor of 3 dimensions", self.refused("here", "new", *mesh, "--layout", "dp;-;-", code=2))
        self.assertIn("--mesh", self.refused("here", "new", "--mesh", "two", code=2))
        self.assertIn("UTF-8", self.refused("here", b"\xff", *mesh, code=2))
        self.refused("here", "new", *mesh, pool="unix:/nowhere", code=4)
        self.assertEqual(self.named("new"), [])

    def test_a_pool_that_is_too_full(self):
        small = self.start("small", "20MiB")  # ten segments: eight are taken
        self.publish("large", address=small)
        said = self.refused("large", "new", "--mesh", "2x4:dp,tp", pool=small, code=4)
        self.assertRegex(said, "new: no node .* gives memory")
        self.assertEqual([one["object"].endswith("large") for one in self.objects(small)], [True] * 8)
        with self.held("large", "whole", "--mesh", "1x1:dp,tp", pool=small):  # one part has room
            self.assertEqual(len(self.objects(small)), 9)

    def test_more_ranks_than_a_node_can_have(self):
        self.publish("wide")
        said = self.refused("wide", "new", "--mesh", "1025x1:dp,tp", code=4)
        self.assertIn("1025 ranks; a node has at most 1024 parts of a version, and the pool 1 node", said)

    def test_the_new_version_leaves_a_drained_node(self):
        pool = self.start("first", "64MiB", 0, [(1, "second")])
        self.start("second", "64MiB", 1, [(0, "first")])
        ends = self.publish("drained", address=pool)
        with self.held("drained", "drained-2x4", "--mesh", "2x4:dp,tp", pool=pool, logs="has moved off"):
            ends.close()
            self.assertEqual(self.parts_by_node(pool), {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]})
            subprocess.run([CLI, "drain", "0", "--wait", "--timeout", "60", "--pool", pool], check=True, capture_output=True,
                           timeout=120)
            self.assertEqual(self.parts_by_node(pool), {0: [], 1: list(range(8))})
            self.check("drained-2x4", "2x4:dp,tp", ranks_of(2, 4), SOURCE, address=pool)

    def test_it_ends_after_the_time_of_hold(self):
        self.publish("timed")
        done = subprocess.run(self.command("timed", "timed-2x4", "--mesh", "2x4:dp,tp", "--hold", "0.2"), capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertIn("version 5 of timed as timed-2x4", done.stdout)
        self.assertEqual(self.named("timed-2x4"), [])

    def test_ctrl_c_at_work_leaves_nothing(self):
        """On a terminal, where it says how far it is."""
        tensors = {f"t{i}": array.array("H", [i] * 64) for i in range(3000)}
        self.addCleanup((writer := hyperoffload.Publisher(self.address, "many", tensors)).close)
        writer.publish(1)
        before = self.granted()
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        with subprocess.Popen(self.command("many", "many-anew", "--mesh", "64:x", "--layout", "x"), stdout=subprocess.PIPE,
                              stderr=theirs) as process:
            os.close(theirs)
            said = b""
            while b"rank 1, 2 of 64" not in said:
                said += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the terminal's end
                while os.read(ours, 4096):
                    pass
            out = process.stdout.read()
        self.assertEqual((process.returncode, out), (130, b""))
        self.assertIn(b" written, t", said)
        # It has ended in order, and given back all that it held.
        self.assertEqual((self.named("many-anew"), self.granted()), ([], before))

    def test_ctrl_c_stops_a_large_tile(self):
        """At a rate at which it takes minutes."""
        with hyperoffload.Publisher(self.address, "slow", {"t": array.array("B", [1]) * (30 << 20)}, versions=1) as writer:
            writer.publish(1)
            before = self.granted()
            with subprocess.Popen(self.command("slow", "slow-anew", "--mesh", "1:x", "--link", "200KB/s"), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as process:
                self.wait_for(lambda: self.granted() > before)
                process.send_signal(signal.SIGTERM)
                said = process.communicate(timeout=60)
            self.assertEqual((process.returncode, said), (130, ("", "")))
            self.assertEqual(self.granted(), before)

    def test_memory_is_for_one_tile(self):
        tensors = {f"t{i}": array.array("B", [i] * (8 << 20)) for i in range(9)}
        with hyperoffload.Publisher(self.address, "big", tensors, versions=1) as writer:
            writer.publish(1)
            with self.held("big", "big-anew", "--mesh", "1:x") as (process, said):
                self.assertEqual((said["stored_bytes"], said["memory_bytes"]), (72 << 20, 8 << 20))
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                own = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
                self.assertLess(own, 48 << 20)
                got = {name: bytearray(8 << 20) for name in tensors}
                with hyperoffload.Subscriber(self.address, "big-anew", got) as reader:
                    reader.acquire(timeout=20)
                    reader.read()
                self.assertEqual(got, {name: one.tobytes() for name, one in tensors.items()})

    def test_ctrl_c_is_heard_while_it_looks_for_what_it_published(self):
        """Another run has a part of that version on another node: it is not found until that one ends."""
        pool = self.start("left", "64MiB", 0, [(1, "right")])
        right = self.start("right", "64MiB", 1, [(0, "left")])
        self.publish("twice", address=pool)
        tile = hyperoffload.Tile(bytes(8), "x", (16,))
        other = hyperoffload.Publisher(right, "twice-anew", {"t": tile}, mesh="2:x", rank=1, run=8)
        self.addCleanup(other.close)
        other.publish(5)
        self.assertIn(1, self.parts_by_node(right)[1])
        with subprocess.Popen(self.command("twice", "twice-anew", "--mesh", "1x1:dp,tp", "--timeout", "300", pool=pool),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self.wait_for(lambda: len([one for one in self.objects(pool) if one["object"].endswith("/twice-anew")]) == 2)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)
        self.assertEqual((process.returncode, said), (130, ("", "")))
        # In order, not as a process that waits too long: its session has ended, too.
        self.assertEqual([one["part"] for one in self.objects(pool) if one["object"].endswith("/twice-anew")], [1])

    def test_one_ranks_reader_has_memory_at_a_time(self):
        """Each that fetches parts of rows takes 16 MiB for them; the new parts are 16 segments."""
        tensor = {"t": hyperoffload.Tile(bytes(64 * 4096), "", (64, 4096))}
        self.addCleanup((writer := hyperoffload.Publisher(self.address, "columns", tensor)).close)
        writer.publish(1)
        peaks = []
        for ranks in 1, 16:
            with self.held("columns", f"columns-{ranks}", "--mesh", f"{ranks}:x", "--layout", "-;x") as (process, said):
                self.assertEqual(said["stored_bytes"], 64 * 4096)
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                peaks.append(next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")))
        self.assertLess(peaks[1] - peaks[0], 128 << 20)

    def test_a_tile_that_this_machine_has_no_memory_for(self):
        def limited():
            resource.setrlimit(resource.RLIMIT_DATA, (90 << 20, 90 << 20))

        if subprocess.run([CLI, "--version"], capture_output=True, preexec_fn=limited, check=False).returncode != 0:
            self.skipTest("the command does not run with so little memory, as with a sanitizer")
        self.addCleanup((writer := hyperoffload.Publisher(self.address, "vast", {"small": bytes(8), "large": bytes(100 << 20)},
                                                          versions=1)).close)
        writer.publish(1)
        done = subprocess.run([*self.command("vast", "vast-anew", "--mesh", "1:x"), "-o", "json"], capture_output=True, text=True,
                              preexec_fn=limited, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stdout), (4, ""), done)
        self.assertRegex(done.stderr, 'exhausted: no memory for the largest tile: 100 MiB, of tensor "large"')

    def test_ranks_that_store_nothing_do_not_read(self):
        self.publish("idle")
        with self.held("idle", "idle-8x2", "--mesh", "8x2:tp,dp", "--only", "bias") as (_, said):
            self.assertEqual([one["stored_bytes"] for one in said["ranks"]], [10, 0] * 7 + [4, 0])
            self.assertEqual(said["stored_bytes"], 74)
            # Chunks are fetched whole: the source's tiles have 19 and 18 elements.
            fetched = [one["fetched_bytes"] for one in said["ranks"]]
            self.assertEqual((fetched, said["fetched_bytes"]), ([38, 0] * 3 + [74, 0] + [36, 0] * 4, 38 * 3 + 74 + 36 * 4))
            self.check("idle-8x2", "8x2:tp,dp", ranks_of(8, 2, ("tp", "dp")), SOURCE, names=("bias",))

    def test_a_version_that_is_lost_ends_the_command(self):
        """While it is held, and at the end of that time."""
        self.publish("lost")
        for hold in ((), ("--hold", "10")):
            with subprocess.Popen([*self.command("lost", "lost-2x4", "--mesh", "2x4:dp,tp", *hold), "-o", "json"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                self.assertNotEqual(process.stdout.readline(), "")
                session, = {one["session_id"] for one in self.named("lost-2x4")}
                subprocess.run([CLI, "evict", f"0:{session}", "--pool", self.address], check=True, capture_output=True)
                out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (4, ""), err)
            self.assertIn("the version is gone", err)


if __name__ == "__main__":
    unittest.main()
