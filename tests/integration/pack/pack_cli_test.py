"""Runs `hyperoffload pack` as people and scripts do, and checks each packing by comparing all pairs.

Usage: pack_cli_test.py PATH_OF_HYPEROFFLOAD [unittest arguments]
"""

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
HEADER = "id,lower,upper,size\n"
SMALL = HEADER + "b1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"  # fits in 12
FIELDS = {"buffers", "found", "height_bytes", "live_bound_bytes", "seconds", "valid"}


class Pack(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-pack-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = self.path("out.csv")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, text, name="in.csv"):
        with open(self.path(name), "wb" if isinstance(text, bytes) else "w") as out:
            out.write(text)
        return self.path(name)

    def run_it(self, *arguments, code=0):
        done = subprocess.run([PROGRAM, "pack", *arguments], capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def rows(self):
        with open(self.out, newline="") as read:
            rows = list(csv.DictReader(read))
        for row in rows:
            for field in ("lower", "upper", "size", "offset"):
                row[field] = int(row[field])
        return rows

    def check(self, rows, height):
        for i, a in enumerate(rows):
            self.assertGreaterEqual(a["offset"], 0)
            self.assertLessEqual(a["offset"] + a["size"], height)
            for b in rows[:i]:
                apart = (a["upper"] <= b["lower"] or b["upper"] <= a["lower"]
                         or a["offset"] + a["size"] <= b["offset"]
                         or b["offset"] + b["size"] <= a["offset"])
                self.assertTrue(apart, f"{a} and {b}")

    def test_rows_come_back_in_order_with_an_offset(self):
        self.run_it(self.write(SMALL), "--capacity", "12", "--out", self.out)
        rows = self.rows()
        self.assertEqual([row["id"] for row in rows], ["b1", "b2", "b3", "b4", "b5"])
        self.check(rows, 12)
        with open(self.out) as read:
            self.assertEqual(read.readline(), "id,lower,upper,size,offset\n")

    def test_the_output_can_be_packed_again(self):
        self.run_it(self.write(SMALL), "--out", self.out)
        first = self.rows()
        again = self.path("again.csv")
        self.run_it(self.out, "--capacity", "12", "--out", again)
        self.out = again
        self.check(self.rows(), 12)
        self.assertEqual([list(row) for row in self.rows()], [list(row) for row in first])

    def test_json_is_one_object_on_stdout(self):
        done = self.run_it(self.write(SMALL), "--capacity", "12", "-o", "json")
        answer = json.loads(done.stdout)
        self.assertEqual(FIELDS - set(answer), set())
        self.assertEqual((answer["buffers"], answer["capacity_bytes"], answer["height_bytes"],
                          answer["live_bound_bytes"]), (5, 12, 12, 12))
        self.assertIs(answer["valid"], True)
        self.assertEqual(done.stderr, "")

    def test_without_a_capacity_it_packs_as_low_as_it_can(self):
        random.seed(3)
        text = HEADER
        for i in range(80):
            begin = random.randrange(100)
            text += f"t{i},{begin},{begin + 1 + random.randrange(40)},{64 * random.randrange(1, 50)}\n"
        answer = json.loads(self.run_it(self.write(text), "--seconds", "5", "--out", self.out,
                                        "-o", "json").stdout)
        self.assertNotIn("capacity_bytes", answer)
        self.check(self.rows(), answer["height_bytes"])
        self.assertLessEqual(answer["height_bytes"], 1.05 * answer["live_bound_bytes"])

    def test_not_found_tells_bound_and_best_and_writes_nothing(self):
        done = self.run_it(self.write(SMALL), "--capacity", "11", "--out", self.out, "-o", "json",
                           "--seconds", "1", code=3)
        answer = json.loads(done.stdout)
        self.assertIs(answer["found"], False)
        self.assertEqual((answer["live_bound_bytes"], answer["height_bytes"]), (12, 12))
        self.assertIn("12", done.stderr)
        self.assertFalse(os.path.exists(self.out))

    def test_the_search_ends_when_its_time_is_over(self):
        random.seed(7)
        text = HEADER
        for i in range(400):
            begin = random.randrange(1000)
            text += f"t{i},{begin},{begin + 1 + random.randrange(200)},{random.randrange(1, 99999)}\n"
        path = self.write(text)
        answer = json.loads(self.run_it(path, "--seconds", "0.2", "-o", "json").stdout)
        self.assertLess(answer["seconds"], 10)
        done = self.run_it(path, "--capacity", str(answer["live_bound_bytes"] - 1), "--seconds",
                           "0.2", "--out", self.out, code=3)
        self.assertEqual(done.stdout, "")
        self.assertIn(str(answer["live_bound_bytes"]), done.stderr)
        self.assertFalse(os.path.exists(self.out))

    def test_a_header_alone_is_packed_in_nothing(self):
        answer = json.loads(self.run_it(self.write(HEADER), "--out", self.out, "-o", "json").stdout)
        self.assertEqual((answer["buffers"], answer["height_bytes"]), (0, 0))
        self.assertEqual(self.rows(), [])

    def test_bad_files_are_told_by_line_and_field(self):
        cases = {
            "": "line 1", "a,0,1,1\n": "line 1", HEADER + "a,0,1\n": "line 2",
            HEADER + "a,0,1,1\nb,0,x,1\n": "line 3: upper", HEADER + "a,0,1,nan\n": "line 2: size",
            HEADER + "a,0,1,1e9\n": "line 2: size", HEADER + "a,-1,1,1\n": "line 2: lower",
            HEADER + "a,5,5,1\n": "line 2: upper", HEADER + "a,0,1,0\n": "line 2: size",
            HEADER + "a,0,1,1\na,0,1,1\n": "line 3: id",
            HEADER + "a,0,1,99999999999999999999\n": "line 2: size",
            HEADER + "a,0,1,1152921504606846976\nb,3,4,1\n": "line 3: size",
        }
        for text, words in cases.items():
            with self.subTest(text):
                done = self.run_it(self.write(text), "--out", self.out, code=2)
                self.assertIn("in.csv: " + words, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertFalse(os.path.exists(self.out))

    def test_names_with_control_characters_do_not_reach_the_terminal(self):
        done = self.run_it(self.write(HEADER + "\x1b[2J,0,1,1\n\x1b[2J,0,1,1\n"), code=2)
        self.assertNotIn("\x1b", done.stderr)

    def test_files_that_cannot_be_read_or_written(self):
        self.run_it(self.path("absent.csv"), code=2)
        self.run_it(self.folder, code=2)
        nowhere = os.path.join(self.folder, "none", "x.csv")
        self.assertIn(nowhere, self.run_it(self.write(SMALL), "--out", nowhere, code=2).stderr)

    def test_bad_arguments(self):
        path = self.write(SMALL)
        for arguments in (["--capacity", "0"], ["--capacity", "-1"], ["--capacity", "much"],
                          ["--seconds", "0"], ["--seconds", "-1"], ["--seconds", "nan"],
                          ["--seconds", "1e99"], ["--nonsense"]):
            with self.subTest(arguments):
                self.run_it(path, *arguments, code=2)
        self.run_it(code=2)
        self.assertIn("Example", self.run_it("--help").stdout)


if __name__ == "__main__":
    unittest.main()
