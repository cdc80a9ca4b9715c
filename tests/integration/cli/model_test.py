"""Graphs from descriptions of models, and the longest context that a plan of them reaches.

Usage: model_test.py HYPEROFFLOAD [unittest arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))


class Context(unittest.TestCase):
    MODEL = ("--phase", "prefill", "--layers", "4", "--hidden", "256", "--heads", "4", "--kv-heads", "4", "--vocab", "512",
             "--device-flops", "1e12", "--device-bandwidth", "1e11")
    LINK = {"bytesPerS": "20000000000", "latencyNs": "5000"}

    def answer(self, *words):
        done = subprocess.run([PROGRAM, *words, "-o", "json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def test_the_longest_context_fits_and_a_longer_one_does_not(self):
        with tempfile.TemporaryDirectory(prefix="ho-context-") as folder:
            hardware, graph = os.path.join(folder, "hw.json"), os.path.join(folder, "graph.json")
            with open(hardware, "w", encoding="utf-8") as file:
                json.dump({"name": "small", "deviceBytes": str(32 << 20),
                           "localDdr": {"capacityBytes": str(256 << 20), "read": self.LINK, "write": self.LINK}}, file)
            found = self.answer("sweep", "--context", *self.MODEL, "--hardware", hardware)["hardware"][0]
            self.assertGreater(found["planned_tokens"], found["resident_tokens"])

            def peak(context):
                return self.answer("model", "llama-like", *self.MODEL, "--context", str(context), "--out", graph)["peak_unmanaged_bytes"]
            self.assertLessEqual(peak(found["resident_tokens"]), 32 << 20)
            self.assertGreater(peak(found["resident_tokens"] * 66 // 64), 32 << 20)
            self.assertEqual(peak(found["planned_tokens"]), found["peak_unmanaged_bytes"])
            plan = self.answer("analyze", graph, "--hardware", hardware, "--out", os.path.join(folder, "plan.hos"))
            self.assertEqual(plan["step_ns"], found["step_ns"])
            self.assertLessEqual(plan["step_ns"], 1.02 * plan["compute_ns"])

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


if __name__ == "__main__":
    unittest.main()
