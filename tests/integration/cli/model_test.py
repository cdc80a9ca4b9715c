"""Graphs from descriptions of models, and the longest context that a plan of them reaches.

Usage: model_test.py HYPEROFFLOAD [unittest arguments]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))


class Context(unittest.TestCase):
    SIZES = ("--layers", "4", "--hidden", "256", "--heads", "4", "--kv-heads", "4", "--vocab", "512",
             "--device-flops", "1e12", "--device-bandwidth", "1e11")
    MODEL = ("--phase", "prefill", *SIZES)
    LINK = {"bytesPerS": "20000000000", "latencyNs": "5000"}
    DEVICE = 32 << 20

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-context-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.graph = os.path.join(self.folder, "graph.json")

    def hardware(self, name, ddr=256 << 20, device=DEVICE, link=None):
        path = os.path.join(self.folder, f"{name}.json")
        link = link or self.LINK
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"name": name, "deviceBytes": str(device),
                       "localDdr": {"capacityBytes": str(ddr), "read": link, "write": link}}, file)
        return path

    def run_it(self, *words):
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)

    def answer(self, *words):
        done = self.run_it(*words, "-o", "json")
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout)

    def longest(self, hardware, *words):
        """The only row, with what every row promises."""
        row = self.answer("sweep", "--context", *words, "--hardware", hardware)["hardware"][0]
        self.assertLessEqual(row["resident_tokens"], row["bound_tokens"], row)
        self.assertLessEqual(row["planned_tokens"], row["bound_tokens"], row)
        self.assertLessEqual(row["step_ns"], 1.02 * row["compute_ns"], row)
        self.assertLessEqual(row["arena_bytes"], row["device_bytes"], row)
        self.assertTrue(row["ended_by"], row)
        return row

    def test_the_longest_context_fits_and_a_longer_one_does_not(self):
        hardware = self.hardware("small")
        found = self.longest(hardware, *self.MODEL)
        self.assertGreater(found["planned_tokens"], found["resident_tokens"])
        self.assertGreaterEqual(found["planned_tokens"], 0.95 * found["bound_tokens"])
        self.assertEqual((found["ended_by"], found["wait_ns"]), ("device", 0))
        self.assertLess(found["planned_peak_bytes"], 0.74 * found["resident_peak_bytes"])

        def peak(context):
            return self.answer("model", "llama-like", *self.MODEL, "--context", str(context), "--out", self.graph)["peak_unmanaged_bytes"]
        self.assertEqual(peak(found["resident_tokens"]), found["resident_peak_bytes"])
        self.assertLessEqual(found["resident_peak_bytes"], self.DEVICE)
        self.assertGreater(peak(found["resident_tokens"] * 66 // 64), self.DEVICE)
        self.assertEqual(peak(found["planned_tokens"]), found["peak_unmanaged_bytes"])
        plan = self.answer("analyze", self.graph, "--hardware", hardware, "--out", os.path.join(self.folder, "plan.hos"))
        self.assertLessEqual(plan["step_ns"], found["step_ns"])
        self.assertLessEqual(plan["step_ns"], 1.02 * plan["compute_ns"])
        peak(found["bound_tokens"] * 66 // 64)
        refused = self.run_it("analyze", self.graph, "--hardware", hardware, "--out", os.path.join(self.folder, "plan.hos"))
        self.assertEqual(refused.returncode, 3, refused)

    def test_what_ends_a_context_is_named(self):
        # A prompt in one pass: its largest op. In chunks: the tier, which has a home for every block.
        self.assertEqual(self.longest(self.hardware("little", ddr=48 << 20), *self.MODEL, "--chunk", "1024")["ended_by"], "local_ddr")
        # Decoding reads all blocks for each token.
        decode = self.longest(self.hardware("small"), "--phase", "decode", *self.SIZES)
        self.assertIn(decode["ended_by"], ("local_ddr.read", "local_ddr.write"))
        self.assertLess(decode["planned_tokens"], 1.5 * decode["resident_tokens"])
        # Nothing fits where not even weights pass the links in time.
        none = self.longest(self.hardware("slow", device=4 << 20, link={"bytesPerS": "1000000", "latencyNs": "5000"}),
                            "--phase", "decode", *self.SIZES)
        self.assertEqual((none["resident_tokens"], none["planned_tokens"], none["bound_tokens"]), (0, 0, 0))
        self.assertEqual(none["ended_by"], "links")

    def test_a_plan_reaches_no_less_than_the_device(self):
        # The step's input takes 20 us: more than 2 % of ops that find all on the device.
        slow = {"bytesPerS": "20000000000", "latencyNs": "20000"}
        hardware = self.hardware("late", device=64 << 20, link=slow)
        row = self.answer("sweep", "--context", "--phase", "decode", "--layers", "2", "--hidden", "256", "--heads", "4",
                          "--kv-heads", "4", "--vocab", "512", "--hardware", hardware)["hardware"][0]
        self.assertGreater(row["resident_tokens"], 0)
        self.assertGreaterEqual(row["planned_tokens"], 0.98 * row["resident_tokens"], row)
        self.assertGreater(row["planned_peak_bytes"], 0, row)

    def test_groups_take_turns_and_wait_for_each_other(self):
        hardware = self.hardware("small")
        groups = ("--phase", "decode", *self.SIZES, "--batch", "4", "--turn-tokens", "8", "--groups")
        alone, turns = self.longest(hardware, *groups, "1"), self.longest(hardware, *groups, "4")
        self.assertEqual(alone["wait_ns"], 0)
        self.assertEqual(turns["wait_ns"], turns["step_ns"] - turns["step_ns"] // 4)
        self.assertGreater(turns["planned_tokens"], 1.73 * turns["resident_tokens"])
        self.assertGreater(turns["planned_tokens"], alone["planned_tokens"])

    def test_sparse_attention_and_cold_experts_reach_further(self):
        hardware = self.hardware("small")
        decode = ("--phase", "decode", *self.SIZES)
        dense, sparse = self.longest(hardware, *decode), self.longest(hardware, *decode, "--attended", "0.25")
        self.assertGreater(sparse["planned_tokens"], 1.73 * dense["planned_tokens"])
        few = (*decode, "--experts", "16", "--active-experts", "1")
        experts = self.longest(hardware, *few, "--turn-tokens", "1")
        self.assertEqual(experts["resident_tokens"], 0)  # 52 MiB of weights
        self.assertEqual(experts["resident_peak_bytes"], 0)
        self.assertGreater(experts["planned_tokens"], 1024)
        # A step of one token uses the same experts again and again. By default all have their turn.
        self.assertLess(self.longest(hardware, *few)["planned_tokens"], experts["planned_tokens"])

    def test_experts_that_a_step_leaves_out_are_told(self):
        model = ("model", "llama-like", "--phase", "decode", *self.SIZES, "--context", "64", "--experts", "8", "--out", self.graph)
        done = self.run_it(*model, "-o", "json")
        self.assertEqual((done.returncode, done.stderr, json.loads(done.stdout)["unused_experts"]), (0, "", 0), done)
        done = self.run_it(*model, "--turn-tokens", "3", "-o", "json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["unused_experts"]), (0, 2), done)
        for part in ("warning: ", "2 of the 8 experts", "--turn-tokens 4 uses all"):
            self.assertIn(part, done.stderr)
        sweep = ("sweep", "--context", "--phase", "decode", *self.SIZES, "--hardware", self.hardware("small"), "--experts", "8", "-o", "json")
        for turn, unused in (((), 0), (("--turn-tokens", "1"), 6)):
            done = self.run_it(*sweep, *turn)
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(json.loads(done.stdout)["unused_experts"], unused)
            self.assertEqual("6 of the 8 experts" in done.stderr, unused > 0, done.stderr)

    def test_models_with_heads_weights_and_caches_of_their_own_sizes_are_described(self):
        def kinds(*words):
            answer = self.answer("model", "llama-like", "--phase", "decode", "--context", "4096", *words, "--out", self.graph)
            return {kind["kind"]: kind["bytes"] for kind in answer["kinds"]}
        nemo = ("--layers", "40", "--hidden", "5120", "--kv-heads", "8", "--head-dim", "128", "--feed-forward", "14336",
                "--vocab", "131072")
        weights = 2 * 12247782400
        found = kinds(*nemo)
        self.assertEqual((found["WEIGHT"], found["KV_CACHE"]), (weights, 640 << 20))
        found = kinds(*nemo, "--weight-bits", "4", "--kv-element-bytes", "1", "--tied-embeddings")
        self.assertEqual((found["WEIGHT"], found["KV_CACHE"]), ((weights - 2 * 131072 * 5120) // 4, 320 << 20))
        found = kinds(*nemo, "--tensor-parallel", "8")
        norms = 2 * (2 * 40 + 1) * 5120
        self.assertEqual((found["WEIGHT"], found["KV_CACHE"]), ((weights - norms) // 8 + norms, 80 << 20))
        done = self.run_it("model", "llama-like", "--phase", "decode", *nemo, "--tensor-parallel", "3", "--out", self.graph)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn("--kv-heads 8 must be a multiple of the 3 ranks", done.stderr)

    def test_a_search_tells_on_a_terminal_what_it_looks_for_and_has_found(self):
        words = [PROGRAM, "sweep", "--context", *self.MODEL, "--hardware", self.hardware("small")]
        terminal, end = os.openpty()
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=end) as sweep:
            os.close(end)
            text = b""
            try:
                while piece := os.read(terminal, 65536):
                    text += piece
            except OSError:  # the other end is closed
                pass
        os.close(terminal)
        self.assertEqual(sweep.returncode, 0, text)
        lines = [line.strip().removesuffix("\x1b[K") for line in text.decode().replace("\r", "\n").split("\n")]
        for pattern in (r"small: resident\? \d+ ops", r"small: resident \d+, bound\? \d+ ops",
                        r"small: resident \d+, bound \d+, planned\? \d+ ops, try 1",
                        r"small: planned \d+, within [\d.]+ MiB\? \d+ ops, try 1"):
            self.assertTrue(any(re.fullmatch(pattern, line) for line in lines), (pattern, lines))
        self.assertLess(max(map(len, lines)), 80)

    def test_a_page_shows_each_machine_and_no_input_is_overwritten(self):
        page = os.path.join(self.folder, "page.html")
        files = [self.hardware("small"), self.hardware("a<b>")]
        words = ["sweep", "--context", *self.MODEL, "--hardware", files[0], "--hardware", files[1]]
        rows = self.answer(*words, "--report", page)["hardware"]
        self.assertEqual([row["name"] for row in rows], ["small", "a<b>"])
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for part in ("small", "a&lt;b&gt;", f"{rows[0]['planned_tokens']:,}", f"{rows[0]['bound_tokens']:,}", rows[0]["ended_by"]):
            self.assertIn(part, text)
        self.assertNotIn("<b>", text)
        self.assertNotIn("://", text)
        for hardware in files:
            with open(hardware, "rb") as file:
                before = file.read()
            done = self.run_it(*words, "--report", hardware)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertIn("also read", done.stderr)
            with open(hardware, "rb") as file:
                self.assertEqual(file.read(), before)
        self.assertEqual(self.run_it(*words, "--report", os.path.join(self.folder, "none/page.html")).returncode, 2)

    def test_ways_to_divide_a_model_are_measured_with_and_without_offload(self):
        with tempfile.TemporaryDirectory(prefix="ho-parallel-") as folder:
            hardware, graph = os.path.join(folder, "hw.json"), os.path.join(folder, "graph.json")
            model = self.MODEL[2:]
            step = self.answer("model", "llama-like", "--phase", "train", *model, "--context", "256", "--out", graph)
            with open(hardware, "w", encoding="utf-8") as file:
                json.dump({"name": "small", "deviceBytes": str(step["peak_unmanaged_bytes"] * 8 // 10),
                           "localDdr": {"capacityBytes": str(1 << 30), "read": self.LINK, "write": self.LINK}}, file)
            words = ("parallel-sweep", "--devices", "4", "--hardware", hardware, *model, "--context", "256",
                     "--network", "10GB/s")
            found = {(one["data"], one["tensor"], one["pipeline"]): one for one in self.answer(*words)["divisions"]}
            self.assertEqual(set(found), {(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4)})
            whole, split = found[4, 1, 1], found[1, 4, 1]
            self.assertTrue(whole["feasible"], whole)
            self.assertEqual((whole["offload"], split["offload"]), (True, False))
            self.assertEqual(whole["needs_bytes"], step["peak_unmanaged_bytes"])
            self.assertLessEqual(whole["peak_bytes"], step["peak_unmanaged_bytes"] * 8 // 10)
            self.assertGreater(whole["ops_ns"], split["ops_ns"])
            self.assertGreater(split["collective_ns"], 0)
            self.assertGreater(found[1, 1, 4]["bubble_ns"], 0)
            self.assertEqual(whole["step_ns"], sum(whole[f"{part}_ns"] for part in ("ops", "collective", "stall", "bubble")))
            refused = {(one["data"], one["tensor"]) for one in self.answer(*words, "--batch", "2")["divisions"]
                       if not one["feasible"]}
            self.assertEqual(refused, {(4, 1)})
            done = self.run_it(*words, "--batch", "1000000000")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn("--batch: 1 to 1048576 micro-batches for a device are allowed", done.stderr)
            done = self.run_it(*words, "--batch", "4", "--micro-batch", "8")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("REASON", done.stdout.splitlines()[0])
            self.assertIn("nothing fits: --batch is not a multiple of data times --micro-batch\n", done.stdout)

    def test_the_bubble_of_a_pipeline_is_the_same_for_any_number_of_replicas(self):
        hardware = self.hardware("large", device=80 << 30)
        sizes = ("--layers", "8", "--hidden", "256", "--heads", "4", "--kv-heads", "4", "--vocab", "512", "--context", "256")
        bubbles, collectives = [], []
        for data in (1, 2, 4):
            rows = self.answer("parallel-sweep", "--devices", str(2 * data), "--batch", str(4 * data), "--hardware", hardware,
                               *sizes, "--network", "10MB/s")["divisions"]
            row = next(one for one in rows if (one["data"], one["pipeline"]) == (data, 2))
            bubbles.append(row["bubble_ns"])
            collectives.append(row["collective_ns"])
        self.assertEqual(bubbles, [bubbles[0]] * 3)
        self.assertEqual(collectives[0], 0)
        self.assertGreater(collectives[1], 10 * bubbles[0])


if __name__ == "__main__":
    unittest.main()
