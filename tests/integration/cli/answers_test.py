"""What commands that plan answer where a budget, a name or a file is out of the ordinary.

Usage: answers_test.py HYPEROFFLOAD [unittest arguments]
"""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import unittest

from inputs import link, training_graph

PROGRAM = os.path.abspath(sys.argv.pop(1))


def weight(number, size):
    return {"id": number, "bytes": str(size), "kind": "WEIGHT", "persistent": True}


def given(number, size):
    return {"id": number, "bytes": str(size), "kind": "INPUT"}


def op(number, reads=(), writes=(), name="", op_ns=1000):
    return {"id": number, "name": name, "durationNs": str(op_ns), "reads": list(reads), "writes": list(writes)}


def graph(storages, ops):
    return {"version": 1, "name": "step", "storages": storages, "ops": ops}


def tier(capacity_bytes):
    return {"capacityBytes": str(capacity_bytes), "read": link(10**9), "write": link(10**9)}


class Answers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-answers-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.plan = os.path.join(self.folder, "plan.hos")

    def write(self, name, value):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)
        return path

    def hardware(self, **tiers):
        return self.write("hw.json", {"name": "hw", "deviceBytes": str(1 << 30), **tiers})

    def run_it(self, *words, code=0):
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, code, done)
        return done

    def analyze(self, step, hardware, *more, code=0):
        return self.run_it("analyze", self.write("graph.json", step), "--hardware", hardware, "--out", self.plan,
                           *more, code=code)

    def test_a_step_that_no_budget_makes_short_enough_is_one_object(self):
        step = graph([given(1, 1 << 20)], [op(1, [1])])
        done = self.analyze(step, self.hardware(localDdr=tier(1 << 30)), "--max-overhead", "2%", "-o", "json", code=3)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["ops"], 1)
        self.assertEqual(answer["too_long"]["compute_ns"], 1000)
        self.assertGreater(answer["too_long"]["step_ns"], 1_000_000)
        self.assertEqual(answer["too_long"]["max_overhead"], 0.02)
        self.assertFalse(os.path.exists(self.plan))

    def test_a_terminal_sees_how_planning_goes(self):
        ours, theirs = pty.openpty()
        step = self.write("graph.json", training_graph("step", layers=8, op_ns=100_000))
        with subprocess.Popen([PROGRAM, "analyze", step, "--hardware", self.hardware(localDdr=tier(1 << 30)),
                               "--device-memory", "50%", "--out", self.plan], stdout=subprocess.DEVNULL, stderr=theirs) as analyze:
            os.close(theirs)
            seen = b""
            with open(ours, "rb", buffering=0) as screen, contextlib.suppress(OSError):  # the last end was closed
                while more := screen.read(65536):
                    seen += more
        self.assertEqual(analyze.returncode, 0)
        lines = re.findall(r"\rplan (\d+), (none fits yet|step [\d.]+ [a-z]+)\x1b\[K", seen.decode())
        self.assertEqual([int(number) for number, _ in lines], list(range(1, len(lines) + 1)))
        self.assertGreater(len(lines), 1)
        self.assertIn("step", lines[-1][1])

    def test_no_overhead_at_all_may_be_asked_for(self):
        step = graph([weight(1, 1 << 20), weight(2, 1 << 20)], [op(1, [1]), op(2, [2])])
        hardware = self.hardware(localDdr=tier(1 << 30))
        answer = json.loads(self.analyze(step, hardware, "--max-overhead", "0%", "-o", "json").stdout)
        self.assertEqual((answer["stall_ns"], answer["arena_bytes"]), (0, 2 << 20))
        for refused in ("0", "-1%", "20000%", "%"):
            done = self.analyze(step, hardware, f"--max-overhead={refused}", code=2)
            self.assertIn("is not a share from 0% to 10000%, such as 2%", done.stderr)

    def test_a_wrong_number_of_copies_is_refused_with_the_option(self):
        step = graph([weight(1, 1000)], [op(1, [1])])
        done = self.analyze(step, self.hardware(localDdr=tier(1 << 20)), "--copies", "WEIGHT=3", code=2)
        self.assertIn("--copies: WEIGHT=3: copies are 1 or 2", done.stderr)

    def test_a_refusal_names_options_and_blames_no_op_for_homes(self):
        storages = [weight(1, 192000), weight(3, 64), weight(8, 64), weight(11, 64), given(6, 128000), given(7, 64000),
                    {"id": 10, "bytes": "128000", "kind": "ACTIVATION"}]
        step = graph(storages, [op(0, [11], [10], "first", 0), op(2, [3, 8], (), "second"),
                                op(6, [7], [1], "third", 0)])
        hardware = self.hardware(localDdr=tier(128 << 10), flash=tier(1 << 30))
        done = self.analyze(step, hardware, "--device-memory", "256128", code=3)
        self.assertIn("the local_ddr cannot hold it: the step needs", done.stderr)
        self.assertIn(", and --device-memory of at least 251 KiB (256960).", done.stderr)
        self.assertNotIn("a larger --device-memory", done.stderr)

    def test_op_times_whose_ops_have_other_names_are_refused(self):
        hardware = self.hardware(localDdr=tier(1 << 30))
        step = graph([weight(1, 1000)], [op(1, [1], name="matmul"), op(2, [1])])
        other = self.write("other.json", graph([], [op(1, name="softmax"), op(2, name="add")]))
        done = self.analyze(step, hardware, "--op-times", other, code=2)
        self.assertIn('op 1 ("softmax") is op 1 ("matmul") in graph step: these are the times of another graph',
                      done.stderr)
        same = self.write("same.json", graph([], [op(1, name="matmul", op_ns=7), op(2, name="any", op_ns=8)]))
        answer = json.loads(self.analyze(step, hardware, "--op-times", same, "-o", "json").stdout)
        self.assertEqual(answer["compute_ns"], 15)

    def test_simulation_on_a_machine_that_lacks_room_says_so(self):
        hardware = self.hardware(localDdr=tier(1 << 30))
        step = training_graph("step", layers=4, op_ns=1000)  # 16 MiB at their peak
        self.analyze(step, hardware, "--device-memory", "60%")
        self.assertEqual(self.run_it("simulate", self.plan, "--hardware", hardware).stderr, "")
        small = self.write("small.json", {"deviceBytes": "1000", "localDdr": tier(2 << 20)})
        notes = self.run_it("simulate", self.plan, "--hardware", small).stderr
        for each in ("MiB of device, which has 1000 B", "MiB of local_ddr, which has 2.00 MiB"):
            self.assertIn(each, notes)
        self.assertNotIn("cannot run", self.run_it("simulate", self.plan, "--hardware", small, "--policy",
                                                   "on-demand-lru").stderr)

    def test_links_that_are_shared_or_slower_need_no_second_file(self):
        hardware = self.hardware(localDdr=tier(1 << 30))
        step = training_graph("step", layers=4, op_ns=1000)
        self.analyze(step, hardware, "--device-memory", "60%")
        own = json.loads(self.run_it("simulate", self.plan, "-o", "json").stdout)
        slow = self.write("slow.json", {"name": "hw", "deviceBytes": str(1 << 30), "localDdr":
                                        {**tier(1 << 30), "read": link(10**9 // 4), "write": link(10**9 // 4)}})
        for policy in ("planned", "g10-greedy"):
            words = ("simulate", self.plan, "--policy", policy, "-o", "json")
            of_file = self.run_it(*words, "--hardware", slow).stdout
            for change in (("--bandwidth", "1/4"), ("--bandwidth", "0.25"), ("--ranks-per-node", "4")):
                self.assertEqual(self.run_it(*words, *change).stdout, of_file)
            self.assertGreater(json.loads(of_file)["step_ns"], own["step_ns"])
        self.assertEqual(self.run_it("simulate", self.plan, "--ranks-per-node", "4").stderr, "")
        self.assertIn("cannot run on one rank's part of its machine: it needs ",
                      self.run_it("simulate", self.plan, "--ranks-per-node", "4000").stderr)
        for bad in ("0", "-1", "1/0", "x", "1,2"):
            done = self.run_it("simulate", self.plan, "--bandwidth", bad, code=2)
            self.assertIn(f'--bandwidth: "{bad}" is not a factor, such as 1/2 or 0.25', done.stderr)
        planned = [json.loads(self.analyze(step, machine, "--device-memory", "60%", "-o", "json", *more).stdout)
                   for machine, more in ((hardware, ["--bandwidth", "1/4"]), (slow, []))]
        for field in ("step_ns", "lower_bound_ns", "channels", "limit"):
            self.assertEqual(planned[0][field], planned[1][field])

    def test_factors_given_to_analyze_and_to_simulate_multiply(self):
        sixteenth = self.write("slow.json", {"name": "hw", "deviceBytes": str(1 << 30), "localDdr":
                                             {**tier(1 << 26), "read": link(10**9 // 16), "write": link(10**9 // 16)}})
        self.analyze(training_graph("step", layers=4, op_ns=1000), self.hardware(localDdr=tier(1 << 30)),
                     "--device-memory", "60%", "--ranks-per-node", "4")
        words = ("simulate", self.plan, "-o", "json")
        self.assertEqual(self.run_it(*words, "--ranks-per-node", "4").stdout,
                         self.run_it(*words, "--hardware", sixteenth).stdout)
        self.assertIn("in addition to those given to analyze", " ".join(self.run_it("simulate", "--help").stdout.split()))

    def test_ops_and_tensors_without_a_name_are_called_by_their_ids(self):
        page, trace = (os.path.join(self.folder, name) for name in ("page.html", "trace.json"))
        step = graph([weight(5, 100000), weight(6, 100000)], [op(7, [5]), op(8, [6])])
        self.analyze(step, self.hardware(localDdr=tier(1 << 30)), "--device-memory", "60%", "--report", page,
                     "--trace", trace)
        tensor = " ".join(self.run_it("explain", self.plan, "--tensor", "6").stdout.split())
        for words in ("storage 6 (id 6, WEIGHT", "gap from op 8 to op 8 of the next step", "storage 5 came back for op 7",
                      "waits: ", "op 8 (position 1)", "moved prefetch storage 6, 97.7 KiB", "access position 1 op 8 ("):
            self.assertIn(words, tensor)
        self.assertIn("position 1 op 8 (id 8, ", " ".join(self.run_it("explain", self.plan, "--op", "8").stdout.split()))
        self.assertIn("storage 6 ", self.run_it("explain", self.plan).stdout)
        for path, words in ((page, ('"op 8"', '"storage 6"')), (trace, ('"wait for op 8"', '"prefetch storage 6"'))):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for each in words:
                self.assertIn(each, text)


if __name__ == "__main__":
    unittest.main()
