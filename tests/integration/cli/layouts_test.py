"""hyperoffload layout and reshard: boxes of ranks, and gets that carry every byte.

Usage: layouts_test.py PATH_OF_HYPEROFFLOAD
"""
import collections
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))


class Layouts(unittest.TestCase):
    MESH = ("--mesh-from", "4x2:dp,tp", "--mesh-to", "2x4:dp,tp")

    def answer(self, *words):
        done = subprocess.run([PROGRAM, *words, "-o", "json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def test_layout_shows_the_box_of_each_rank(self):
        ranks = self.answer("layout", "--mesh", "4x2:dp,tp", "--layout", "dp,tp;-", "--shape", "15,5")["ranks"]
        self.assertEqual([each["rank"] for each in ranks], list(range(8)))
        self.assertEqual(ranks[7]["boxes"], [{"begin": [14, 0], "end": [15, 5]}])
        ranks = self.answer("layout", "--mesh", "4:x", "--layout", "x", "--shape", "5")["ranks"]
        self.assertEqual(ranks[3]["boxes"], [])

    def test_a_tensor_without_elements_has_no_boxes_and_no_gets(self):
        ranks = self.answer("layout", "--mesh", "4:x", "--layout", "x;-", "--shape", "0,5")["ranks"]
        self.assertEqual([each["boxes"] for each in ranks], [[]] * 4)
        plan = self.answer("reshard", "--mesh-from", "4:x", "--from", "x;-", "--to", "-;x", "--shape", "0,5", "--element-bytes", "2")
        self.assertEqual((plan["gets"], plan["bytes_moved"], len(plan["ranks"])), (0, 0, 4))

    def test_the_gets_of_reshard_carry_every_byte(self):
        self.carry_out(("4x2:dp,tp", "dp;tp"), ("2x4:dp,tp", "tp;dp"))

    def test_relays_take_the_load_off_the_holders_and_carry_the_same_bytes(self):
        halves, copies = ("2:x", "x;-"), ("4:y@4-7", "-;-")
        direct, relayed = self.carry_out(halves, copies), self.carry_out(halves, copies, "--relays")
        self.assertEqual((direct["busiest_link_bytes"], relayed["busiest_link_bytes"]), (256, 128))

    def carry_out(self, old, new, *words):
        # A byte of the tensor is its index, so a wrong one is seen.
        plan = self.answer("reshard", "--mesh-from", old[0], "--from", old[1], "--mesh-to", new[0], "--to", new[1], "--shape", "8,16",
                           "--element-bytes", "1", *words)
        whole = bytes(range(8 * 16))

        def boxes(mesh, layout):
            ranks = self.answer("layout", "--mesh", mesh, "--layout", layout, "--shape", "8,16")["ranks"]
            return {each["rank"]: each["boxes"][0] for each in ranks}

        def contents(box):
            rows = range(box["begin"][0], box["end"][0])
            return b"".join(whole[row * 16 + box["begin"][1]:row * 16 + box["end"][1]] for row in rows)

        held = {rank: contents(box) for rank, box in boxes(*old).items()}
        wanted = {rank: contents(box) for rank, box in boxes(*new).items()}
        buffers = {rank: bytearray(b"\xff" * len(bytes_)) for rank, bytes_ in wanted.items()}
        moved = 0
        for relays in (False, True):
            before = {rank: bytes(buffer) for rank, buffer in buffers.items()}  # what has arrived when relays begin
            for reader in plan["ranks"]:
                buffer = buffers[reader["rank"]]
                for get in (one for one in reader["gets"] if one.get("relay", False) == relays):
                    source = before[get["from"]] if relays else held[get["from"]]
                    for run in range(get["count"]):
                        begin = get["source_offset_bytes"] + run * get["stride_bytes"]
                        to = get["destination_offset_bytes"] + run * get["stride_bytes"]
                        buffer[to:to + get["run_bytes"]] = source[begin:begin + get["run_bytes"]]
                    moved += get["run_bytes"] * get["count"] * (get["from"] != reader["rank"])
        self.assertEqual(buffers, wanted)
        self.assertEqual(plan["gets"], sum(len(each["gets"]) for each in plan["ranks"]))
        self.assertEqual((plan["bytes_moved"], plan["bytes_minimal"]), (moved, moved))
        return plan

    def reshard_all(self, tensors, *words, code=0):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tensors.json")
            path.write_text(json.dumps({"tensors": tensors}))
            done = subprocess.run([PROGRAM, "reshard", *self.MESH, "--from", "dp;tp", "--to", "tp;dp", "--tensors", str(path),
                                   "-o", "json", *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout) if code == 0 else done.stderr

    def test_many_tensors_are_the_sum_of_each(self):
        tensors = [{"name": "a", "shape": [8, 16], "elementBytes": 2}, {"name": "b", "shape": [5, 7], "elementBytes": 4},
                   {"name": "c", "shape": [12], "elementBytes": 1, "from": "-", "to": "dp"}]
        alone = [self.answer("reshard", *self.MESH, "--from", each.get("from", "dp;tp"), "--to", each.get("to", "tp;dp"), "--shape",
                             ",".join(map(str, each["shape"])), "--element-bytes", str(each["elementBytes"])) for each in tensors]
        plan = self.reshard_all(tensors, "--link", "1000B/s")
        for field in ("bytes_moved", "bytes_minimal"):
            self.assertEqual(plan[field], sum(each[field] for each in alone))
            self.assertEqual([each[field] for each in plan["tensors"]], [each[field] for each in alone])
        self.assertEqual([each["tensor"] for each in plan["tensors"]], ["a", "b", "c"])
        received, sent = collections.Counter(), collections.Counter()
        for each in alone:
            for reader in each["ranks"]:
                for get in reader["gets"]:
                    if get["from"] != reader["rank"]:
                        received[reader["rank"]] += get["run_bytes"] * get["count"]
                        sent[get["from"]] += get["run_bytes"] * get["count"]
        self.assertEqual([(each["rank"], each["sent_bytes"], each["received_bytes"]) for each in plan["links"]],
                         [(rank, sent[rank], received[rank]) for rank in range(8)])
        self.assertEqual(plan["busiest_link_bytes"], max([*sent.values(), *received.values()]))
        self.assertEqual(plan["seconds"], plan["busiest_link_bytes"] / 1000)

    def test_relays_of_many_small_tensors_do_not_meet_in_the_same_ranks(self):
        words = ("reshard", "--mesh-from", "32:f", "--from", "f", "--mesh-to", "64:r@32-95", "--to", "-")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tensors.json")
            path.write_text(json.dumps({"tensors": [{"name": f"bias-{i}", "shape": [256], "elementBytes": 2} for i in range(20)]}))
            direct, relayed = (self.answer(*words, "--tensors", str(path), *more) for more in ((), ("--relays",)))
        self.assertEqual(relayed["busiest_link_bytes"], 20 * 512)  # what each reader needs
        self.assertLess(relayed["busiest_link_bytes"], direct["busiest_link_bytes"])
        self.assertLess(relayed["gets"], 3 * direct["gets"])

    def test_a_scalar_is_one_element_on_each_rank(self):
        plan = self.reshard_all([{"name": "steps", "shape": [], "elementBytes": 8}, {"name": "a", "shape": [8, 16], "elementBytes": 2}])
        self.assertEqual([each["bytes_moved"] for each in plan["tensors"]][0], 0)

    def test_the_time_of_one_tensor_is_shown_however_long_it_is(self):
        words = ("reshard", *self.MESH, "--from", "dp;tp", "--to", "tp;dp", "--element-bytes", "2", "--link", "1B/s")
        plan = self.answer(*words, "--shape", "8,16")
        self.assertEqual(plan["seconds"], plan["busiest_link_bytes"])
        done = subprocess.run([PROGRAM, *words, "--shape", f"{1 << 30},{1 << 19}"], capture_output=True, text=True, check=True)
        self.assertIn("more than 290 years at 1.00 B/s", done.stdout)

    def test_a_wrong_list_of_tensors_is_refused_by_tensor_and_field(self):
        good = {"name": "a", "shape": [8, 16], "elementBytes": 2}
        for tensors, told in (([], "it lists no tensors"), ([good, good], 'tensor 1 ("a"): the name occurs twice'),
                              ([{**good, "elementBytes": 0}], "element_bytes"),
                              ([{**good, "shape": [1 << 40, 1 << 40]}], 'tensor "a": shape: more than 2^50 elements'),
                              ([{**good, "from": "pp"}], "--from"), ([{**good, "shape": [8]}], 'tensor "a"')):
            self.assertIn(told, self.reshard_all(tensors, code=2))

    def test_gets_are_counted_as_they_are_listed(self):
        words = ("reshard", "--mesh-from", "4:x", "--from", "x;-", "--to", "-;x")
        shape = ("--shape", "16,16", "--element-bytes", "2")
        plan = self.answer(*words, *shape)
        self.assertEqual((plan["gets"], [len(each["gets"]) for each in plan["ranks"]]), (64, [16] * 4))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tensors.json")
            path.write_text(json.dumps({"tensors": [{"name": "a", "shape": [16, 16], "elementBytes": 2}]}))
            many = self.answer(*words, "--tensors", str(path))
        self.assertEqual((many["gets"], many["tensors"][0]["gets"]), (64, 64))
        table = subprocess.run([PROGRAM, *words, *shape], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in table.splitlines()]
        self.assertEqual([row[1] for row in rows if row and row[0] in "0123"], ["16"] * 4)

    def test_more_gets_than_can_be_listed_are_refused_with_their_number(self):
        def limited():
            resource.setrlimit(resource.RLIMIT_AS, (4_000_000 << 10, 4_000_000 << 10))
        rows = ("--mesh-from", "4:dp", "--from", "dp;-", "--to", "-;dp", "--shape", "1099511627776,4", "--element-bytes", "2")
        whole = ("--mesh-from", "65536:a", "--from", "a", "--mesh-to", "65536:r", "--to", "-", "--shape", "65536",
                 "--element-bytes", "1")
        for words, told in ((rows, "4398046511104 gets"), (whole, "4294967296 gets")):
            done = subprocess.run([PROGRAM, "reshard", *words, "-o", "json"], capture_output=True, text=True, preexec_fn=limited)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(told, done.stderr)
        done = subprocess.run([PROGRAM, "reshard", *rows], capture_output=True, text=True, preexec_fn=limited)
        self.assertEqual(done.returncode, 0, done.stderr)  # the sums do not need the list

    def test_sums_that_would_not_fit_into_their_fields_are_refused(self):
        words = ("--mesh-from", "1:a@65535", "--from", "-", "--mesh-to", "4:r", "--to", "-")
        done = subprocess.run([PROGRAM, "reshard", *words[:5], "64:r", *words[6:], "--shape", str(1 << 50), "--element-bytes", "1024"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("2^63 bytes", done.stderr)
        tensors = [{"name": f"{i}", "shape": [1 << 50], "elementBytes": 1024} for i in range(4)]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tensors.json")
            path.write_text(json.dumps({"tensors": tensors}))
            done = subprocess.run([PROGRAM, "reshard", *words, "--tensors", str(path)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn('tensor "1": all tensors together move 2^63 bytes', done.stderr)

    def test_a_remainder_is_refused_if_division_must_be_exact(self):
        done = subprocess.run([PROGRAM, "layout", "--mesh", "4:x", "--layout", "x", "--shape", "6", "--division", "exact"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("dimension 0 has 6 elements", done.stderr)


if __name__ == "__main__":
    unittest.main()
