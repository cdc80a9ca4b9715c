"""Programs that share a supernode: hyperoffload analyze-programs.

Usage: programs_test.py HYPEROFFLOAD [unittest arguments]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from inputs import node, training_graph

PROGRAM = os.path.abspath(sys.argv.pop(1))
PROGRAMS = """
programs { name: "learner" mesh: "2x2:dp,tp" graph: "step.json" device_memory: "60%" }
programs { name: "actor" mesh: "2:tp@4-5" period: "20ms" }
objects { name: "policy" from: "learner" to: "actor" tensors: "tensors.json" every: 2 versions: 3 }
"""


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-programs-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.write("step.json", training_graph("step", 12, 1_000_000))
        self.write("tensors.json", {"tensors": [
            {"name": "up", "shape": [1000, 2000], "elementBytes": 2, "from": "tp;-", "to": "-;tp"},
            {"name": "norm", "shape": [3], "elementBytes": 4}]})
        self.write("node.json", node(20_000_000_000, 20_000_000_000))

    def write(self, name, value):
        (self.folder / name).write_text(value if isinstance(value, str) else json.dumps(value))

    def plan(self, programs, *words, out="plan"):
        self.write("programs.textproto", programs)
        return subprocess.run([PROGRAM, "analyze-programs", self.folder / "programs.textproto", "--hardware", self.folder / "node.json",
                               "--out", self.folder / out, *words], capture_output=True, text=True, check=False)

    def planned(self, programs, out="plan"):
        done = self.plan(programs, "-o", "json", out=out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_the_plan_has_schedules_rates_and_ages_that_fit_together(self):
        found = self.planned(PROGRAMS)
        self.assertEqual(found, json.loads((self.folder / "plan/programs.json").read_text()))
        learner, actor = found["programs"]
        self.assertEqual([one["rank"] for one in learner["ranks"]], [0, 1, 2, 3])
        self.assertEqual(actor["ranks"], [])
        for one in learner["ranks"]:
            done = subprocess.run([PROGRAM, "verify", self.folder / "plan" / one["schedule"], "--graph", self.folder / "step.json"],
                                  capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLess(one["peak_bytes"], 12 * (4 << 20))
        (policy,) = found["objects"]
        # Rows of `up` by tp; dp has copies, and the first rank of each tile stores it.
        self.assertEqual([one["bytes"] for one in policy["publishers"]], [2_000_012, 2_000_000, 0, 0])
        self.assertEqual([(one["rank"], one["bytes"]) for one in policy["readers"]], [(4, 2_000_012), (5, 2_000_012)])
        self.assertEqual(policy["interval_ns"], 2 * max(one["step_ns"] for one in learner["ranks"]))
        self.assertEqual(policy["age_ns"], policy["interval_ns"] + policy["publish_ns"] + actor["period_ns"] + policy["read_ns"])
        for one in policy["readers"]:
            # Half of each row, of two tiles.
            self.assertEqual(one["fetched_bytes"], 2_000_012)
            self.assertLessEqual(one["fetched_bytes"] / one["link_bytes_per_s"] * 1e9, policy["read_ns"])
        (link,) = found["links"]
        self.assertEqual(link["read"]["objects_bytes_per_s"], sum(one["link_bytes_per_s"] for one in policy["readers"]))
        done = self.plan(PROGRAMS.replace("2x2:dp,tp", "1x2:dp,tp"))
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("is of an earlier plan", done.stderr)
        again = self.planned(PROGRAMS, out="again")
        self.assertEqual(found, again)
        for one in learner["ranks"]:
            self.assertEqual((self.folder / "plan" / one["schedule"]).read_bytes(), (self.folder / "again" / one["schedule"]).read_bytes())

    def test_a_largest_staleness_makes_readers_faster_or_is_refused(self):
        slow = self.planned(PROGRAMS)["objects"][0]
        with_age = PROGRAMS.replace("versions: 3", 'versions: 3 largest_staleness: "AGE"')
        fast = self.planned(with_age.replace("AGE", f"{slow['age_ns'] - slow['read_ns'] // 2}ns"))["objects"][0]
        self.assertLessEqual(fast["age_ns"], fast["largest_staleness_ns"])
        self.assertLess(fast["read_ns"], slow["read_ns"])
        done = self.plan(with_age.replace("AGE", "30ms"), "-o", "json", out="none")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("largest_staleness is 30.0 ms", json.loads(done.stdout)["impossible"])
        self.assertIn("largest_staleness is 30.0 ms", done.stderr)
        self.assertFalse((self.folder / "none").exists())

    def test_weights_and_minimum_rates_hold_jobs_to_parts_of_the_link(self):
        weighted = PROGRAMS.replace("device_memory", 'weight: 3 device_memory').replace(
            'period: "20ms"', 'period: "20ms" graph: "step.json" device_memory: "60%" minimum_rate: "4GB/s"')
        found = self.planned(weighted)
        rates = {one["rank"]: one["link_bytes_per_s"] for program in found["programs"] for one in program["ranks"]}
        self.assertGreaterEqual(min(rates[4], rates[5]), 4_000_000_000)
        (link,) = found["links"]
        objects = max(link[way]["objects_bytes_per_s"] for way in ("read", "write"))
        self.assertLessEqual(sum(rates.values()) + objects, 20_000_000_000)
        done = self.plan(weighted.replace("4GB/s", "21GB/s"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("minimum_rate is more than localDdr", done.stderr)
        done = self.plan(weighted.replace("4GB/s", "9.99GB/s"), "-o", "json", out="none")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("link root, read: objects need", json.loads(done.stdout)["impossible"])

    def test_what_is_wrong_is_named_with_program_or_object_and_field(self):
        def refused(words, old, new, code=2):
            self.assertIn(old, PROGRAMS)
            done = self.plan(PROGRAMS.replace(old, new), out="none")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stdout, "")
            self.assertFalse((self.folder / "none").exists())

        refused("it lists no programs", PROGRAMS, "")
        refused('"learner"): the name occurs twice', '"actor" mesh', '"learner" mesh')
        refused("letters, digits, - and _", '"actor" mesh', '"../actor" mesh')
        refused("mesh is missing", 'mesh: "2:tp@4-5"', "")
        refused("a name is up to 255 bytes", '"policy"', f'"{256 * "p"}"')
        self.assertEqual(self.plan(PROGRAMS.replace('"policy"', f'"{255 * "p"}"'), out="long").returncode, 0)
        refused("both have rank 0", "@4-5", "")
        refused('there is no program "writer"', 'from: "learner"', 'from: "writer"')
        refused("are the same program", 'from: "learner"', 'from: "actor"')
        refused('period "20 parsecs" is not', '"20ms"', '"20 parsecs"')
        refused("neither a graph nor a period", 'graph: "step.json" device_memory: "60%"', "")
        refused("4097 ranks have a graph", "2x2:dp,tp", "4097:tp@10-4106")
        refused("and it has no graph", 'period: "20ms"', 'period: "20ms" weight: 2')
        refused("weight is above 1000", "device_memory", "weight: 1001 device_memory")
        refused("every is above 1000000", "every: 2", "every: 1000001")
        refused('device_memory "60 gallons"', '"60%"', '"60 gallons"')
        refused("device_memory is missing", 'device_memory: "60%"', "")
        refused("tensors is missing", 'tensors: "tensors.json"', "")
        refused("none.json", '"tensors.json"', '"none.json"')
        refused("set versions to 2", "versions: 3", "versions: 1", code=1)
        refused("program learner: the device cannot hold it", '"60%"', '"4MiB"', code=3)
        self.write("partial.json", {"tensors": [{"name": "up", "shape": [4], "elementBytes": 2, "to": "-+sum:tp"}]})
        refused("to: up: a partial value can be neither published nor read", '"tensors.json"', '"partial.json"')
        self.write("big.json", {"tensors": [{"name": "t", "shape": [1 << 50], "elementBytes": 1024}]})
        refused("more than 1 TiB", '"tensors.json"', '"big.json"')
        self.write("big.json", {"tensors": [{"name": f"t{i}", "shape": [1 << 40], "elementBytes": 1} for i in range(1100)]})
        refused("more than 2^50 bytes", '"tensors.json"', '"big.json"')
        twice = PROGRAMS + 'objects { name: "policy" from: "learner" to: "actor" tensors: "tensors.json" every: 2 versions: 3 }'
        refused("the program reads it twice", PROGRAMS, twice)

    def test_a_second_reader_of_an_object_costs_reading_alone(self):
        third = 'programs { name: "judge" mesh: "1:x@6" period: "20ms" }\n' \
                'objects { name: "policy" from: "learner" to: "judge" tensors: "whole.json" every: 2 versions: 3 }'
        self.write("whole.json", {"tensors": [{"name": "up", "shape": [1000, 2000], "elementBytes": 2}]})
        done = self.plan(PROGRAMS + third)
        self.assertEqual(done.returncode, 2)
        self.assertIn("must be those of its first reader", done.stderr)
        self.write("tensors.json", {"tensors": [{"name": "up", "shape": [1000, 2000], "elementBytes": 2, "from": "tp;-"}]})
        one = self.planned(PROGRAMS)["links"][0]
        two = self.planned(PROGRAMS + third.replace("whole.json", "tensors.json"))["links"][0]
        self.assertEqual(one["write"], two["write"])
        self.assertGreater(two["read"]["objects_bytes_per_s"], one["read"]["objects_bytes_per_s"])

    def test_each_reader_has_layouts_and_tensors_of_its_own(self):
        self.write("tensors.json", {"tensors": [
            {"name": "up", "shape": [1000, 2000], "elementBytes": 2, "from": "tp;-", "to": "-;tp"},  # the judge has no tp
            {"name": "bias", "shape": [2000], "elementBytes": 2}, {"name": "norm", "shape": [3], "elementBytes": 4, "to": "-"}]})
        mine = PROGRAMS.replace("versions: 3", 'versions: 3 to_layout: "-;tp" to_layout: "tp"')
        judge = 'programs { name: "judge" mesh: "1:x@6" period: "20ms" }\n' \
                'objects { name: "policy" from: "learner" to: "judge" tensors: "tensors.json" every: 2 versions: 3 to_tensors: "bias" }'
        policy, judged = self.planned(mine + judge)["objects"]
        self.assertEqual([one["bytes"] for one in policy["readers"]], [2_002_012] * 2)
        self.assertEqual([one.get("to") for one in policy["tensors"]], ["-;tp", "tp", "-"])
        self.assertEqual([one["bytes"] for one in judged["readers"]], [4000])
        self.assertEqual([one.get("to") for one in judged["tensors"]], [None, "", None])
        self.assertEqual(policy["publishers"], judged["publishers"])
        for layout in ("-;tp", ""):
            single = self.planned(PROGRAMS.replace("versions: 3", f'versions: 3 to_layout: "{layout}"'), out="single" + layout[:1])
            self.assertEqual(single["objects"][0]["readers"][0]["bytes"], 2_004_012)
        for old, new, told in (('"bias" }', '"gain" }', 'to_tensors: there is no tensor "gain"'),
                               ('to_layout: "tp"', 'to_layout: "-;-"', "to_layout: two for tensors of 2 dimensions"),
                               ('to_layout: "tp"', 'to_layout: "-;-;-"', "it reads no tensor of 3 dimensions")):
            done = self.plan((mine + judge).replace(old, new), out="none")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(told, done.stderr)


if __name__ == "__main__":
    unittest.main()
