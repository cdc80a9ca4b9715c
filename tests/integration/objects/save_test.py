"""hyperoffload objects save: a version that two ranks published, read into files under other layouts.

Usage: save_test.py CLI DAEMON LIBRARY PACKAGE
"""
import array
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

CLI, DAEMON, LIBRARY, PACKAGE = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
os.environ["HYPEROFFLOAD_LIBRARY"] = LIBRARY
sys.path[:0] = [PACKAGE, str(pathlib.Path(__file__).resolve().parents[2] / "support")]
import hyperoffload  # noqa: E402
import needs  # noqa: E402

ROWS, COLUMNS = 301, 1000  # 2 ranks have 151 and 150 rows, 3 have 334, 334 and 332 columns


def number(row, column, version=1):
    return (row * COLUMNS + column + version) % 65521


def read_file(path):
    """Name: (type, shape, bytes), and the texts about the file."""
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    assert size % 8 == 0
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    notes = header.pop("__metadata__")
    ends = sorted(end for one in header.values() for end in one["data_offsets"])
    assert ends[0] == 0 and ends[-1] == len(data)
    return {name: (one["dtype"], one["shape"], data[slice(*one["data_offsets"])]) for name, one in header.items()}, notes


class Save(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ho-save-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.address = f"unix:{cls.folder}/sock"
        cls.start("sock")

    @classmethod
    def start(cls, socket, more=""):
        config = cls.folder / f"{socket}.config"
        config.write_text(f'node_id: 0 ddr_bytes: "64MiB" segment_bytes: "2MiB" unix_socket: "{cls.folder}/{socket}"\n{more}')
        with open(cls.folder / f"{socket}.log", "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([DAEMON, "--config", str(config)], stderr=log)
        cls.addClassCleanup(lambda: (daemon.terminate(), daemon.wait()))
        end = time.monotonic() + 60
        while "serving" not in (cls.folder / f"{socket}.log").read_text():
            assert time.monotonic() < end and daemon.poll() is None
            time.sleep(0.05)

    def publish(self, name, versions=(1,), **more):
        """The two ranks of a program that has rows each."""
        writers = []
        for rank, (begin, end) in enumerate(((0, 151), (151, ROWS))):
            weight, bias = array.array("H", [0] * (end - begin) * COLUMNS), array.array("f", [0.5, -2.0])
            tensors = {"weight": hyperoffload.Tile(weight, "dp;-", (ROWS, COLUMNS)), "bias": bias}
            writer = hyperoffload.Publisher(self.address, name, tensors, mesh="2:dp", rank=rank, run=9, **more)
            self.addCleanup(writer.close)
            writers.append((writer, weight, begin))
        for version in versions:
            for writer, weight, begin in writers:
                weight[:] = array.array("H", [number(begin + i // COLUMNS, i % COLUMNS, version) for i in range(len(weight))])
                writer.publish(version)
        return [writer for writer, *_ in writers]

    def save(self, name, *words, code=0, out=None, pool=None):
        out = out or pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "saved"
        done = subprocess.run([CLI, "objects", "save", name, "--out", str(out), "--pool", pool or self.address, *words, "-o", "json"],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual([one.name for one in out.parent.iterdir()], ["saved"] if out.exists() else [])
        if code != 0:
            self.assertEqual(set(json.loads(done.stdout)) if code == 1 else done.stdout, {"object", "error"} if code == 1 else "")
            self.assertNotEqual(done.stderr, "")
            return out, done.stderr
        return out, json.loads(done.stdout)

    def check_weight(self, got, rows, columns, version=1):
        kind, shape, data = got
        self.assertEqual((kind, shape), ("U16", [len(rows), len(columns)]))
        wanted = array.array("H", [number(row, column, version) for row in rows for column in columns])
        self.assertEqual(data, wanted.tobytes())

    def test_everything_in_one_file(self):
        self.publish("whole", (1, 2))
        out, result = self.save("whole")
        self.assertEqual([one.name for one in out.iterdir()], ["rank-0.safetensors"])
        tensors, notes = read_file(out / "rank-0.safetensors")
        self.check_weight(tensors["weight"], range(ROWS), range(COLUMNS), version=2)
        self.assertEqual(tensors["bias"], ("F32", [2], struct.pack("<ff", 0.5, -2.0)))
        self.assertEqual((notes["object"], notes["version"], result["version"]), ("whole", "2", 2))
        self.assertEqual(result["bytes"], 2 * ROWS * COLUMNS + 8)
        _, first = self.save("whole", "--version", "1")
        self.assertEqual(first["version"], 1)

    def test_another_mesh(self):
        self.publish("meshes")
        out, result = self.save("meshes", "--mesh", "3x2:tp,dp", "--layout", "dp;tp", "--layout", "dp")
        self.assertEqual(len(result["ranks"]), 6)
        for rank in range(6):
            tensors, notes = read_file(out / f"rank-{rank}.safetensors")
            tp, dp = divmod(rank, 2)
            self.check_weight(tensors["weight"], range(dp * 151, min(ROWS, dp * 151 + 151)),
                              range(tp * 334, min(COLUMNS, tp * 334 + 334)))
            self.assertEqual(tensors["bias"], ("F32", [1], struct.pack("<f", (0.5, -2.0)[dp])))
            self.assertEqual((notes["layout:weight"], notes["rank"], notes["mesh"]), ("dp;tp", str(rank), "3x2:tp,dp"))

    def test_layouts_by_name_and_ranks_without_a_part(self):
        self.publish("names")
        named = self.folder / "tensors.json"
        named.write_text(json.dumps({"tensors": [{"name": "bias", "shape": [2], "elementBytes": 4, "to": "x"}]}))
        out, _ = self.save("names", "--mesh", "4:x", "--tensors", str(named))
        self.assertEqual(read_file(out / "rank-1.safetensors")[0]["bias"][2], struct.pack("<f", -2.0))
        self.assertEqual(read_file(out / "rank-3.safetensors")[0]["bias"], ("F32", [0], b""))
        self.check_weight(read_file(out / "rank-3.safetensors")[0]["weight"], range(ROWS), range(COLUMNS))
        for wrong in ({"shape": [3], "elementBytes": 4}, {"shape": [2], "elementBytes": 2}, {"shape": [2, 1], "elementBytes": 4}):
            named.write_text(json.dumps({"tensors": [{"name": "bias", "to": "x", **wrong}]}))
            self.assertIn('"bias" is of another shape', self.save("names", "--mesh", "4:x", "--tensors", str(named), code=2)[1])
        named.write_text(json.dumps({"tensors": [{"name": "scale", "shape": [2], "elementBytes": 4, "to": "x"}]}))
        self.assertIn('no tensor "scale"', self.save("names", "--mesh", "4:x", "--tensors", str(named), code=2)[1])

    def test_a_tensor_without_elements(self):
        given = array.array("f", [1.5, 2.5])
        tensors = {"none": hyperoffload.Tile(bytearray(0), "-;x", (0, 5)), "some": given}
        for chunks in ("rows", "grid"):
            with hyperoffload.Publisher(self.address, f"none-{chunks}", tensors, chunks=chunks, mesh="1:x") as writer, \
                    hyperoffload.Subscriber(self.address, f"none-{chunks}", {**tensors, "some": (got := array.array("f", [0, 0]))},
                                            mesh="1:x") as reader:
                writer.publish(1)
                self.assertEqual(reader.acquire(timeout=20), 1)
                reader.read()
                self.assertEqual(got, given)
                self.assertEqual([one["shape"] for one in reader.describe()["tensors"]], [[0, 5], [2]])
                out, _ = self.save(f"none-{chunks}", "--mesh", "2:x", "--layout", "-;x")
                self.assertEqual(read_file(out / "rank-1.safetensors")[0]["none"], ("U8", [0, 2], b""))
        with hyperoffload.Publisher(self.address, "nothing", {"none": bytearray(0)}) as writer:
            writer.publish(1)
            out, result = self.save("nothing")
            self.assertEqual(result["bytes"], 0)

    def test_secret(self):
        self.publish("hidden", secret="0123456789abcdef")
        secret = self.folder / "secret"
        secret.write_text("0123456789abcdef\n")
        self.save("hidden", "--timeout", "0.2", code=1)
        self.save("hidden", "--secret-file", str(secret))

    def test_what_is_refused(self):
        self.publish("here")
        self.assertIn("not-found", self.save("nowhere", "--timeout", "0.2", code=1)[1])
        self.assertIn('what follows "uid 0/": here', self.save("uid 0/here", "--timeout", "0.2", code=1)[1])
        self.assertIn("not-found", self.save("here", "--version", "7", "--timeout", "0.2", code=1)[1])
        for words, said in ((("--mesh", "two"), "--mesh"), (("--layout", "tp;-"), "tp"),
                            (("--mesh", "2:x", "--layout", "x;-", "--layout", "-;x"), "two for tensors of 2 dimensions"),
                            (("--tensors", "/nowhere.json"), "/nowhere.json"), (("--secret-file", "/nowhere"), "/nowhere")):
            self.assertIn(said, self.save("here", *words, code=2)[1])
        self.assertIn("can be neither published nor read",
                      self.save("here", "--mesh", "2x2:dp,tp", "--layout", "dp;-+sum:tp", code=2)[1])
        self.assertIn("no tensor of 3 dimensions", self.save("here", "--mesh", "2:x", "--layout", "x;-;-", code=2)[1])
        done = subprocess.run([CLI, "objects", "save", "here", "--out", str(self.folder / "unused"), "--pool", "unix:/nowhere"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 4, done)
        full = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "saved"
        full.mkdir()
        (full / "mine").write_text("stays")
        self.assertIn("not an empty folder", self.save("here", out=full, code=2)[1])
        self.assertEqual((full / "mine").read_text(), "stays")
        link, file = full.parent / "link", full.parent / "file"
        link.symlink_to(tempfile.mkdtemp(dir=self.folder))
        file.write_text("")
        for target, said in ((link, "not an empty folder"), (file, "not an empty folder"), (f"{full.parent}/.", "not the name"),
                             ("/proc", "not an empty folder"), (full.parent / "absent/saved", "No such file")):
            done = subprocess.run([CLI, "objects", "save", "here", "--out", str(target),
                                   "--pool", self.address], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(said, done.stderr)
        self.assertIn("UTF-8", self.save(b"\xff\xfe", code=2)[1])
        odd = hyperoffload.Publisher(self.address, "odd", {"x": memoryview(bytearray(8)).cast("P")})
        self.addCleanup(odd.close)
        odd.publish(1)
        self.assertIn('tensor "x" is of type "P"', self.save("odd", code=1)[1])

    def test_only_some_tensors(self):
        """One of a type that the format lacks does not keep the others from being saved."""
        names = ("a.weight", "a.bias", "b[0].weight", "z")
        tensors = {name: array.array("f", [i]) for i, name in enumerate(names)} | {"odd": memoryview(bytearray(8)).cast("P")}
        writer = hyperoffload.Publisher(self.address, "some", tensors)
        self.addCleanup(writer.close)
        writer.publish(1)
        self.assertIn("--only", self.save("some", code=1)[1])
        for only, saved in ((("a.*",), names[:2]), (("b[0].weight", "z"), names[2:]), (("*.weight", "a.weight"), names[0:3:2])):
            out, result = self.save("some", *(word for one in only for word in ("--only", one)))
            self.assertEqual({name: got for name, (_, _, got) in read_file(out / "rank-0.safetensors")[0].items()},
                             {name: tensors[name].tobytes() for name in saved})
            self.assertEqual(result["bytes"], 4 * len(saved))
        # A list of the whole model names more than these.
        listed = self.folder / "listed.json"
        listed.write_text(json.dumps({"tensors": [{"name": name, "shape": [1], "elementBytes": 4, "to": "x"} for name in names]}))
        self.save("some", "--only", "z", "--mesh", "1:x", "--tensors", str(listed))
        self.assertIn("--only y: the object has no such tensor", self.save("some", "--only", "z", "--only", "y", code=2)[1])

    def test_a_node_that_cannot_be_asked_may_have_it(self):
        self.start("near", f'nodes {{ node_id: 1 control_addresses: "unix:{self.folder}/nobody" }}')
        self.assertIn("nobody", self.save("nowhere", "--timeout", "0.2", code=4, pool=f"unix:{self.folder}/near")[1])

    def test_full_disk(self):
        disk = tempfile.mkdtemp(dir=self.folder)
        mount = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=128k none {disk} && "$@"; code=$?; ls {disk}; exit $code', "sh"]
        if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode != 0:
            needs.skip_case("mounting a small disk is not permitted")
        self.publish("large")
        done = subprocess.run([*mount, CLI, "objects", "save", "large", "--out", f"{disk}/saved", "--pool", self.address],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("No space left", done.stderr)

    def test_what_ends_it_leaves_nothing(self):
        for signal_number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
            out = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "saved"
            with subprocess.Popen([CLI, "objects", "save", "nowhere", "--out", str(out), "--pool", self.address, "--timeout", "60"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                self.wait_for(lambda: list(out.parent.iterdir()))  # it waits for a version
                process.send_signal(signal_number)
                said = process.communicate(timeout=60)
            self.assertEqual((process.returncode, said[0]), (code, ""), said)
            self.wait_for(lambda: not list(out.parent.iterdir()))

    def wait_for(self, holds):
        end = time.monotonic() + 60
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
