"""Plans of ranks that share links: hyperoffload analyze-ranks.

Usage: ranks_test.py HYPEROFFLOAD [unittest arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from inputs import link, node, training_graph

PROGRAM = os.path.abspath(sys.argv.pop(1))

class Ranks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-ranks-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.graph = self.write("step.json", training_graph("step", 12, 500000))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, value):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(value, file)
        return self.path(name)

    def hardware(self, bytes_per_s, **more):
        return self.write("hw.json", node(20_000_000_000, bytes_per_s, **more))

    def run_program(self, *words):
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)

    def answer(self, *words):
        done = self.run_program(*words, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def plan(self, *words, out="plans"):
        return self.answer("analyze-ranks", *words, "--out", self.path(out))

    def test_ranks_planned_together_are_legal_and_never_worse_than_equal_shares(self):
        hardware = self.hardware(20_000_000_000)
        words = (self.graph, "--ranks", "4", "--hardware", hardware, "--device-memory", "60%")
        found = self.plan(*words)
        self.assertEqual(len(found["ranks"]), 4)
        for time in ("step_ns", "stall_ns"):
            self.assertLessEqual(found["together"][time], found["equal_shares"][time])
            self.assertEqual(found["together"][time], found[time])
        self.assertEqual(found["stall_ns"], sum(rank["stall_ns"] for rank in found["ranks"]))
        self.assertEqual(found["step_ns"], max(rank["step_ns"] for rank in found["ranks"]))
        self.assertLessEqual(found["bound_ns"], found["step_ns"])
        self.assertGreater(found["ignoring"]["stall_ns"], 2 * found["stall_ns"])
        for rank in found["ranks"]:
            self.assertEqual(self.run_program("verify", rank["schedule"], "--graph", self.graph).returncode, 0)
            moved = self.answer("simulate", rank["schedule"])
            self.assertEqual(rank["links"], [{"name": "root", "read_bytes": moved["prefetch_bytes"],
                                              "write_bytes": moved["store_bytes"]}])
        again = self.plan(*words, out="again")
        for k in range(4):
            with open(self.path(f"plans/rank-{k}.hos"), "rb") as one, open(self.path(f"again/rank-{k}.hos"), "rb") as other:
                self.assertEqual(one.read(), other.read())
        for key in ("step_ns", "stall_ns", "bound_ns", "ignoring", "equal_shares", "simulations"):
            self.assertEqual(found[key], again[key])

    def test_ranks_that_meet_in_a_collective_begin_together(self):
        with open(self.graph, encoding="utf-8") as file:
            graph = json.load(file)
        graph["ops"][-1]["group"] = "data"
        reduced = self.write("reduced.json", graph)
        words = ("--hardware", self.hardware(20_000_000_000), "--device-memory", "60%")
        apart = self.plan(self.graph, "--ranks", "3", *words)
        self.assertEqual({rank.get("group") for rank in apart["ranks"]}, {None})
        some = self.plan(reduced, self.graph, reduced, *words)
        self.assertEqual([rank.get("group") for rank in some["ranks"]], [0, None, 0])
        self.assertEqual(some["ranks"][0]["start_ns"], some["ranks"][2]["start_ns"])
        shown = self.run_program("analyze-ranks", reduced, "--ranks", "3", *words, "--out", self.path("shown")).stdout
        self.assertRegex(shown, r"begin together +0, 1, 2\n")

    def test_schedules_of_an_earlier_plan_do_not_stay_beside_those_of_fewer_ranks(self):
        words = ("--hardware", self.hardware(20_000_000_000), "--device-memory", "60%")
        self.plan(self.graph, "--ranks", "3", *words)
        self.plan(self.graph, "--ranks", "3", *words)  # replaces all
        for name in ("rank-0-old.hos", "rank-.hos", "rank-7.json", "other-7.hos"):  # not ours
            self.write(f"plans/{name}", {})
        done = self.run_program("analyze-ranks", self.graph, "--ranks", "2", *words, "--out", self.path("plans"))
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn("plans/rank-2.hos is of an earlier plan", done.stderr)
        os.remove(self.path("plans/rank-2.hos"))
        self.plan(self.graph, "--ranks", "2", *words)

    def test_a_rank_on_a_link_of_its_own_does_not_wait_for_the_others(self):
        hardware = self.hardware(20_000_000_000, paths=[{"localDdr": ["root"]}, {"localDdr": ["root"]}, {}])
        other = self.write("other.json", training_graph("other", 6, 700000))
        found = self.plan(self.graph, self.graph, other, "--hardware", hardware, "--device-memory", "60%")
        self.assertEqual([rank["graph"] for rank in found["ranks"]], ["step", "step", "other"])
        self.assertEqual(found["ranks"][2]["links"], [{"name": "root", "read_bytes": 0, "write_bytes": 0}])
        alone = self.answer("simulate", found["ranks"][2]["schedule"])
        self.assertEqual(found["ranks"][2]["step_ns"], alone["step_ns"])

    def test_what_cannot_be_planned_is_refused_with_the_reason(self):
        hardware = self.hardware(20_000_000_000)

        def refused(code, words, *arguments):
            done = self.run_program("analyze-ranks", *arguments, "--out", self.path("none"))
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertFalse(os.path.exists(self.path("none")))

        memory = ("--device-memory", "60%")
        refused(2, "give --ranks", self.graph, "--hardware", hardware, *memory)
        refused(2, "--ranks 3, but 2 graphs", self.graph, self.graph, "--ranks", "3", "--hardware", hardware, *memory)
        refused(2, "--device-memory is needed", self.graph, "--ranks", "2", "--hardware", hardware)
        refused(3, "rank 0", self.graph, "--ranks", "2", "--hardware", hardware, "--device-memory", "4MiB")
        two = self.hardware(1, paths=[{}, {}])
        refused(2, "paths of 2 ranks", self.graph, "--ranks", "3", "--hardware", two, *memory)
        typo = self.hardware(1, paths=[{"localDdr": ["rout"]}])
        refused(2, 'there is no link "rout"', self.graph, "--ranks", "2", "--hardware", typo, *memory)
        bare = self.write("bare.json", {"name": "bare", "localDdr": {"read": link(1), "write": link(1)}})
        refused(2, "no links", self.graph, "--ranks", "2", "--hardware", bare, *memory)


if __name__ == "__main__":
    unittest.main()
