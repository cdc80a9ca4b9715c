"""Runs `hyperoffload import` and `export` as people and scripts do, on the small inputs of the fuzz targets.

Usage: import_cli_test.py PATH_OF_HYPEROFFLOAD FOLDER_OF_THE_CORPORA [unittest arguments]
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
CORPUS = os.path.abspath(sys.argv.pop(1))

HARDWARE = {"name": "test", "deviceBytes": "4096",
            "localDdr": {"capacityBytes": str(1 << 30),
                         "read": {"bytesPerS": "10000000000", "latencyNs": "0"},
                         "write": {"bytesPerS": "10000000000", "latencyNs": "0"}}}


class Import(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-import-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_it(self, *arguments, code=0):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def read_corpus(self, kind, name):
        with open(os.path.join(CORPUS, kind, name), encoding="utf-8") as text:
            return text.read()

    def run_import(self, kind, name, *more, out="g.json", code=0):
        return self.run_it("import", kind, os.path.join(CORPUS, kind, name), "--out",
                           self.path(out), *more, code=code)

    def test_every_format_gives_a_graph_that_is_planned(self):
        with open(self.path("hw.json"), "w", encoding="utf-8") as out:
            json.dump(HARDWARE, out)
        for kind, name in [("chakra", "stg"), ("chakra", "pytorch"), ("onnx", "small"),
                           ("pytorch", "training.json"), ("pytorch", "v11.json")]:
            with self.subTest(kind=kind, name=name):
                answer = json.loads(self.run_import(kind, name, "-o", "json").stdout)
                self.assertGreater(answer["ops"], 0)
                self.assertEqual(answer["ops"], answer["measured_ops"] + answer["derived_ops"])
                self.run_it("analyze", self.path("g.json"), "--hardware", self.path("hw.json"),
                            "--device-memory", "400%", "--out", self.path("p.hos"))
                self.run_it("verify", self.path("p.hos"), "--graph", self.path("g.json"))

    def test_says_how_durations_were_derived(self):
        result = self.run_import("chakra", "stg", "--device-flops", "140e12",
                                 "--device-bandwidth", "1.4e12")
        self.assertEqual(result.stderr, "")
        table = " ".join(result.stdout.split())
        self.assertIn("8 of 8 durations are not measured", table)
        self.assertIn("140 TFLOP/s", table)
        self.assertIn("1.40 TB/s", table)
        answer = json.loads(self.run_import("chakra", "stg", "-o", "json", "--device-flops", "1e12",
                                            "--device-bandwidth", "1e9").stdout)
        self.assertEqual(answer["derived_ops"], 8)
        self.assertEqual(answer["device_flops_per_s"], 1e12)
        self.assertEqual(answer["device_bytes_per_s"], 1e9)
        self.assertNotIn("network_bytes_per_s", answer)
        kinds = {k["kind"]: k["bytes"] for k in answer["kinds"]}
        self.assertEqual((kinds["WEIGHT"], kinds["OPTIMIZER_STATE"]), (256, 1024))
        self.assertEqual({p["phase"] for p in answer["phases"]},
                         {"forward", "backward", "optimizer"})

    def test_kinds_that_are_missing_and_inputs_of_half_the_peak_are_doubted(self):
        def doubts(kind, name):
            answer = json.loads(self.run_import(kind, name, "-o", "json").stdout)
            return [line for line in answer["remarks"] if "No storage" in line or "INPUT" in line]
        self.assertEqual(doubts("pytorch", "training.json"), [])
        self.assertEqual(doubts("onnx", "small"), [
            "No storage of kind GRADIENT, OPTIMIZER_STATE: right for inference only."])
        self.assertEqual(doubts("chakra", "converted"), [
            "No storage of kind OPTIMIZER_STATE: right for optimizers without state only."])
        self.assertEqual(doubts("chakra", "memory"), [
            "No storage of kind WEIGHT, GRADIENT, OPTIMIZER_STATE: weights may have another kind."])
        # The first operand, an INPUT of 800 bytes, gets 8,000 bytes.
        text = self.read_corpus("pytorch", "v11.json")
        self.assertIn("[1, 1, 0, 200, 4,", text)
        with open(self.path("large.json"), "w", encoding="utf-8") as out:
            out.write(text.replace("[1, 1, 0, 200, 4,", "[1, 1, 0, 2000, 4,"))
        text = " ".join(self.run_it("import", "pytorch", self.path("large.json"), "--out",
                                    self.path("g.json")).stdout.split())
        self.assertRegex(text, "INPUT storage#[0-9]+ holds 7.81 KiB of the peak of 11.3 KiB: is it a weight[?]")

    def test_communication_takes_the_time_of_the_network(self):
        # 64 bytes, read and written; its kernel was not measured.
        linked = json.loads(self.read_corpus("pytorch", "linked.json"))
        for node in linked["nodes"]:
            node.pop("exclusive_dur", None)
            node.pop("inclusive_dur", None)
            node.pop("dur", None)
        with open(self.path("l.json"), "w", encoding="utf-8") as out:
            json.dump(linked, out)
        result = self.run_it("import", "pytorch", self.path("l.json"), "--out", self.path("g.json"),
                             "--network-bandwidth", "1e6")
        self.assertIn("1 of the derived are communication, its bytes at 1.00 MB/s", " ".join(result.stdout.split()))
        with open(self.path("g.json"), encoding="utf-8") as graph:
            ops = {op["name"]: op["durationNs"] for op in json.load(graph)["ops"]}
        self.assertEqual(ops["record_param_comms"], "64000")
        answer = json.loads(self.run_it("import", "pytorch", self.path("l.json"), "--out",
                                        self.path("g.json"), "-o", "json", "--network-bandwidth",
                                        "1e6").stdout)
        self.assertEqual(answer["network_bytes_per_s"], 1e6)
        self.assertEqual(answer["derived_by_network_ops"], 1)

    def test_output_encodings_and_packed_input(self):
        with open(os.path.join(CORPUS, "pytorch", "v11.json"), "rb") as plain:
            with gzip.open(self.path("v11.json.gz"), "wb") as packed:
                packed.write(plain.read())
        sizes = set()
        for out in ("g.json", "g.textproto", "g.pb"):
            self.run_it("import", "pytorch", self.path("v11.json.gz"), "--out", self.path(out))
            sizes.add(os.path.getsize(self.path(out)))
        self.assertEqual(len(sizes), 3)
        self.run_import("pytorch", "v11.json", out="g.xyz", code=2)

    def test_a_trace_of_more_than_512_mib_is_read(self):
        # Members of a gzip file follow one another: white space between the nodes, 544 MiB of it.
        space = gzip.compress(b" " * (32 << 20), 1)
        before, after = self.read_corpus("pytorch", "v11.json").encode().split(b"[", 1)
        with open(self.path("large.json.gz"), "wb") as out:
            out.write(gzip.compress(before + b"[") + space * 17 + gzip.compress(after))
        self.run_it("import", "pytorch", self.path("large.json.gz"), "--out", self.path("g.json"))

    def test_bad_input_and_usage_exit_2_with_the_reason(self):
        for kind, name, reason in [("chakra", "cut", "truncated"), ("chakra", "cycle", "cycle"),
                                   ("onnx", "named", "--dim"), ("onnx", "huge", "size of tensor x"),
                                   ("pytorch", "deep.json", "64 levels"),
                                   ("pytorch", "cut.json", "ends")]:
            with self.subTest(kind=kind, name=name):
                result = self.run_import(kind, name, code=2)
                self.assertIn(reason, result.stderr)
                self.assertIn(name, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertFalse(os.path.exists(self.path("g.json")))
        self.run_import("onnx", "named", "--dim", "batch=4")
        self.run_import("onnx", "named", "--dim", "batch=x", code=2)
        zero = self.run_import("onnx", "named", "--dim", "batch=0", code=2)
        self.assertIn("SIZE 1 to 999999999", zero.stderr)
        slip = self.run_import("onnx", "named", "--dim", "batch=4", "--dim", "bach=4", code=2)
        self.assertIn("--dim bach: no dimension has this name; the model names batch", slip.stderr)
        self.assertIn("--dim is for onnx", self.run_import("chakra", "stg", "--dim", "batch=4", code=2).stderr)
        for rate in ("0", "-1", "nan", "inf", "fast"):
            done = self.run_import("chakra", "stg", "--device-flops", rate, code=2)
            self.assertIn("is not a rate of at least 1.00 FLOP/s\n", done.stderr)
            self.run_import("chakra", "stg", "--device-bandwidth", rate, code=2)
            self.run_import("chakra", "stg", "--network-bandwidth", rate, code=2)
        self.run_it("import", "tensorflow", "x", "--out", self.path("g.json"), code=2)
        self.run_it("import", "onnx", self.path("absent"), "--out", self.path("g.json"), code=2)

    def test_control_characters_reach_neither_terminal_nor_graph(self):
        result = self.run_import("chakra", "numbers", code=2)
        self.assertNotIn("\x1b", result.stderr)
        self.assertNotIn("\x01", result.stderr)

    def test_export_is_imported_again(self):
        with open(self.path("hw.json"), "w", encoding="utf-8") as out:
            json.dump(HARDWARE, out)
        before = json.loads(self.run_import("chakra", "stg", "-o", "json").stdout)
        self.run_it("analyze", self.path("g.json"), "--hardware", self.path("hw.json"),
                    "--device-memory", "95%", "--out", self.path("p.hos"))
        answer = json.loads(self.run_it("export", self.path("p.hos"), "--format", "chakra", "--out",
                                        self.path("p.et"), "-o", "json").stdout)
        self.assertEqual(answer["compute_nodes"], before["ops"])
        self.assertGreater(answer["cache_op_nodes"], 0)
        after = json.loads(self.run_it("import", "chakra", self.path("p.et"), "--out",
                                       self.path("again.json"), "-o", "json").stdout)
        for field in ("ops", "storages", "kinds", "phases"):
            self.assertEqual(after[field], before[field])
        self.assertEqual(after["measured_ops"], after["ops"])
        self.run_it("export", self.path("p.hos"), "--format", "csv", "--out", self.path("x"), code=2)
        self.run_it("export", self.path("g.json"), "--out", self.path("x"), code=2)


if __name__ == "__main__":
    unittest.main(verbosity=1)
