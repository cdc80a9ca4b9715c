"""Runs the hyperoffload command as people and scripts do: files in, exit code, stdout and stderr out.

Usage: cli_test.py PATH_OF_HYPEROFFLOAD [unittest arguments]
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
SCHEDULES = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "../../fuzz/schedule/corpus")
NASTY = 'x</script>"\\\n\x01 \u20ac'


def training_graph(layers=8):
    storages, ops = [], []

    def storage(name, size, kind, persistent=False):
        storages.append({"id": len(storages) + 1, "name": name, "bytes": str(size), "kind": kind,
                         "persistent": persistent})
        return len(storages)

    def op(name, reads, writes, phase):
        ops.append({"id": len(ops) + 1, "name": name, "durationNs": "2000000", "reads": reads,
                    "writes": writes, "phase": phase})

    values = [storage("tokens", 1 << 16, "INPUT")]
    weights = []
    for i in range(layers):
        weights.append(storage(f"layer{i}.weight", 4 << 20, "WEIGHT", True))
        values.append(storage(NASTY if i == 0 else f"layer{i}.out", 8 << 20, "ACTIVATION"))
        op(f"layer{i}.forward", [values[i], weights[i]], [values[i + 1]], "forward")
    for i in reversed(range(layers)):
        op(f"layer{i}.backward", [values[i], values[i + 1], weights[i]], [weights[i]], "backward")
    return {"version": 1, "name": "test " + NASTY, "storages": storages, "ops": ops}


HARDWARE = {"name": "test", "deviceBytes": str(64 << 20),
            "localDdr": {"capacityBytes": str(1 << 30),
                         "read": {"bytesPerS": "10000000000", "latencyNs": "5000"},
                         "write": {"bytesPerS": "10000000000", "latencyNs": "5000"}}}

FIELDS = {"graph", "ops", "storages", "device_budget_bytes", "peak_unmanaged_bytes",
          "peak_planned_bytes", "arena_bytes", "live_bound_bytes", "compute_ns", "step_ns",
          "first_step_ns", "prologue_ns", "epilogue_ns",
          "stall_ns", "lower_bound_ns", "prefetch_bytes", "store_bytes", "stage_in_bytes",
          "stage_out_bytes", "tiers", "channels", "recomputed_ops", "analyze_ms",
          "program_order_lower_bound_ns", "refined_lower_bound_ns", "margin_bandwidth", "limit"}


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.graph = self.write("graph.json", json.dumps(training_graph()))
        self.hardware = self.write("hw.json", json.dumps(HARDWARE))
        self.plan = self.path("plan.hos")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        mode = "wb" if isinstance(text, bytes) else "w"
        with open(self.path(name), mode) as out:
            out.write(text)
        return self.path(name)

    def run_it(self, *arguments, code=0):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def analyze(self, *more, code=0, graph=None):
        return self.run_it("analyze", graph or self.graph, "--hardware", self.hardware, "--out",
                           self.plan, *more, code=code)

    def make_plan(self):
        return json.loads(self.analyze("--device-memory", "60%", "-o", "json").stdout)


class Analyze(Command):
    def test_json_is_one_object_with_every_promised_field(self):
        result = self.analyze("--device-memory", "60%", "-o", "json")
        answer = json.loads(result.stdout)
        self.assertEqual(FIELDS - set(answer), set())
        self.assertEqual(result.stderr, "")
        self.assertEqual(answer["device_budget_bytes"], answer["peak_unmanaged_bytes"] * 60 // 100)
        self.assertLessEqual(answer["arena_bytes"], answer["device_budget_bytes"])
        self.assertEqual(answer["step_ns"], answer["compute_ns"] + answer["stall_ns"])
        self.assertGreaterEqual(answer["step_ns"], answer["lower_bound_ns"])
        self.assertEqual(answer["graph"], "test " + NASTY)
        self.assertIn("local_ddr.read", [c["name"] for c in answer["channels"]])
        self.assertEqual(set(answer["limit"]), {"name", "busy", "from_ns", "to_ns"})

    def test_the_table_says_what_was_planned_and_keeps_the_terminal_safe(self):
        result = self.analyze()
        self.assertEqual(result.stderr, "")
        self.assertIn("device memory", result.stdout)
        self.assertRegex(result.stdout, "limited by +compute, [0-9]+ % busy all step long")
        self.assertIn(self.plan, result.stdout)
        self.assertNotIn("\x01", result.stdout)

    def test_memory_in_units_and_from_the_hardware(self):
        self.assertEqual(json.loads(self.analyze("-o", "json").stdout)["device_budget_bytes"], 64 << 20)
        answer = json.loads(self.analyze("--device-memory", "80MiB", "-o", "json").stdout)
        self.assertEqual(answer["device_budget_bytes"], 80 << 20)

    def test_same_input_gives_the_same_bytes(self):
        self.make_plan()
        with open(self.plan, "rb") as first:
            before = first.read()
        self.make_plan()
        with open(self.plan, "rb") as second:
            self.assertEqual(before, second.read())

    def test_alignment_holds_for_every_offset(self):
        self.analyze("--device-memory", "60%", "--align", "4096")
        answer = json.loads(self.run_it("explain", self.plan, "--op", "layer3.backward", "-o",
                                        "json").stdout)["positions"]
        self.assertTrue(all(o["device_offset_bytes"] % 4096 == 0 for o in answer[0]["operands"]))

    def test_infeasible_names_the_op_and_what_it_needs(self):
        result = self.analyze("--device-memory", "1MiB", "-o", "json", code=3)
        answer = json.loads(result.stdout)
        self.assertEqual(set(answer["infeasible"]), {"op", "op_name", "tier", "needs_bytes", "planned", "also", "help"})
        self.assertEqual(answer["infeasible"]["tier"], "device")
        self.assertGreater(answer["infeasible"]["needs_bytes"], 1 << 20)
        self.assertFalse(os.path.exists(self.plan))
        needs = answer["infeasible"]["needs_bytes"]
        self.analyze("--device-memory", str(needs))
        self.analyze("--device-memory", str(needs - 1), code=3)

    def test_report_and_trace(self):
        page, trace = self.path("page.html"), self.path("trace.json")
        self.analyze("--device-memory", "60%", "--report", page, "--trace", trace)
        with open(trace) as read:
            events = json.load(read)["traceEvents"]
        self.assertEqual({e["ph"] for e in events}, {"M", "X", "C"})
        self.assertTrue(all(e["ts"] >= 0 and e.get("dur", 0) >= 0 for e in events))
        with open(page) as read:
            html = read.read()
        data = html.split('<script id="data" type="application/json">')[1].split("</script>")[0]
        answer = json.loads(data)
        self.assertEqual(answer["graph"], "test " + NASTY)
        self.assertEqual(len(answer["predicted"]["compute"]), 16)
        self.assertEqual(html.count("</script>"), 2)

    def test_bad_graphs_are_told_apart_by_file_op_and_field(self):
        graph = training_graph()
        graph["ops"][3]["reads"] = [999]
        bad = self.write("bad.json", json.dumps(graph))
        result = self.analyze(graph=bad, code=2)
        self.assertIn("hyperoffload analyze: " + bad, result.stderr)
        self.assertIn("layer3.forward", result.stderr)
        self.assertIn("999", result.stderr)
        for name, text in [("cut.json", '{"version": 1, "ops": ['), ("empty.json", ""),
                           ("bytes.pb", b"\xff\xfe\x00garbage"), ("odd.xyz", "{}")]:
            with self.subTest(name):
                result = self.analyze(graph=self.write(name, text), code=2)
                self.assertIn(name, result.stderr)
                self.assertEqual(result.stdout, "")

    def test_files_that_cannot_be_read_or_written(self):
        self.analyze(graph=self.path("absent.json"), code=2)
        self.analyze(graph=self.folder, code=2)
        result = self.run_it("analyze", self.graph, "--hardware", self.path("no.json"), "--out",
                             self.plan, code=2)
        self.assertIn("no.json", result.stderr)
        nowhere = os.path.join(self.folder, "none", "x")
        for option in ("--out", "--report", "--trace"):
            with self.subTest(option):
                outputs = {"--out": self.plan, option: nowhere}
                arguments = [word for pair in outputs.items() for word in pair]
                result = self.run_it("analyze", self.graph, "--hardware", self.hardware,
                                     *arguments, code=2)
                self.assertIn(nowhere, result.stderr)

    def test_bad_arguments(self):
        for memory in ("60", "0%", "-1", "lots", "60%%"):
            with self.subTest(memory):
                # "60" is 60 bytes: well formed, but too little.
                self.analyze("--device-memory", memory, code=3 if memory == "60" else 2)
        self.analyze("--align", "63", code=2)
        self.analyze("--align", "0", code=2)
        self.analyze("--nonsense", code=2)
        self.run_it("analyze", self.graph, code=2)
        self.run_it("analyse", code=2)
        self.run_it(code=2)


    def test_ranks_share_the_nodes_links_and_capacities(self):
        half = json.loads(json.dumps(HARDWARE))
        half["localDdr"]["capacityBytes"] = str(int(HARDWARE["localDdr"]["capacityBytes"]) // 2)
        for way in ("read", "write"):
            half["localDdr"][way]["bytesPerS"] = str(
                int(HARDWARE["localDdr"][way]["bytesPerS"]) // 2)
        halved = self.write("half.json", json.dumps(half))
        shared = json.loads(self.analyze("--device-memory", "40%", "--ranks-per-node", "2",
                                         "-o", "json").stdout)
        alone = json.loads(self.analyze("--device-memory", "40%", "-o", "json").stdout)
        same = json.loads(self.run_it("analyze", self.graph, "--hardware", halved, "--out",
                                      self.plan, "--device-memory", "40%", "-o", "json").stdout)
        self.assertEqual(shared["channels"], same["channels"])
        self.assertEqual(shared["step_ns"], same["step_ns"])
        self.assertNotEqual(shared["channels"], alone["channels"])
        points = [json.loads(self.run_it("sweep", self.graph, "--hardware", hardware, "--device-memory",
                                         "40%", "--bandwidth", "1", "-o", "json", *more).stdout)
                  for hardware, more in ((self.hardware, ["--ranks-per-node", "2"]), (halved, []))]
        self.assertEqual(points[0]["points"], points[1]["points"])
        steps = [json.loads(self.run_it("simulate", self.plan, "--hardware", hardware, "-o", "json",
                                        *more).stdout)
                 for hardware, more in ((self.hardware, ["--ranks-per-node", "2"]), (halved, []))]
        self.assertEqual(steps[0], steps[1])

    def test_measured_op_times_replace_the_graphs(self):
        ops = training_graph()["ops"]
        times = self.write("times.json", json.dumps(
            {"version": 1, "ops": [{"id": op["id"], "durationNs": "7000000"} for op in ops]}))
        faster = self.write("faster.textproto", 'ops { id: %d duration_ns: 5000000 }' % ops[0]["id"])
        measured = self.path("measured.json")
        answer = json.loads(self.analyze("--op-times", times, "--op-times", faster, "--graph-out",
                                         measured, "-o", "json").stdout)
        self.assertEqual(answer["measured_ops"], len(ops))
        self.assertEqual(answer["compute_ns"], 7_000_000 * len(ops) - 2_000_000)
        self.run_it("verify", self.plan, "--graph", measured)
        self.run_it("verify", self.plan, "--graph", self.graph, code=1)
        self.assertIn(f"{len(ops)} ops have measured ones", self.analyze("--op-times", times).stdout)

    def test_op_times_of_another_graph_are_refused(self):
        other = self.write("other.json", json.dumps({"ops": [{"id": 4000000, "durationNs": "1"}]}))
        self.assertIn("op 4000000 is not in graph", self.analyze("--op-times", other, code=2).stderr)
        empty = self.write("empty.json", "{}")
        self.assertIn("contains no ops", self.analyze("--op-times", empty, code=2).stderr)
        self.analyze("--op-times", self.path("missing.json"), code=2)


class Others(Command):
    def test_verify_accepts_what_analyze_wrote(self):
        self.make_plan()
        self.run_it("verify", self.plan)
        self.run_it("verify", self.plan, "--graph", self.graph)
        answer = json.loads(self.run_it("verify", self.plan, "-o", "json").stdout)
        self.assertIs(answer["legal"], True)

    def test_verify_refuses_another_graph(self):
        self.make_plan()
        other = self.write("other.json", json.dumps(training_graph(layers=7)))
        result = self.run_it("verify", self.plan, "--graph", other, "-o", "json", code=1)
        self.assertEqual(json.loads(result.stdout)["rule"], "other-graph")

    def test_verify_names_the_parties_there_are(self):
        for name, second in [("overlap.hos", True), ("over_budget.hos", False)]:
            with self.subTest(file=name):
                plan = os.path.join(SCHEDULES, name)
                result = self.run_it("verify", plan, "-o", "json", code=1)
                answer = json.loads(result.stdout)
                self.assertTrue(answer["first"])
                self.assertEqual("second" in answer, second, answer)
                table = self.run_it("verify", plan, code=1)
                self.assertEqual("second" in table.stdout, second, table.stdout)
                for said in (result.stderr, table.stderr):
                    self.assertTrue(said.startswith("hyperoffload verify: "), said)
                    self.assertIn(answer["rule"], said)

    def test_damaged_schedules_are_unreadable_for_every_command(self):
        self.make_plan()
        with open(self.plan, "rb") as read:
            whole = read.read()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 4
        for name, content in [("cut.hos", whole[:-1]), ("flipped.hos", bytes(flipped)),
                              ("empty.hos", b"")]:
            path = self.write(name, content)
            for command in ("verify", "simulate", "explain"):
                with self.subTest(command=command, file=name):
                    result = self.run_it(command, path, code=2)
                    self.assertIn(name, result.stderr)
                    self.assertEqual(result.stdout, "")

    def test_simulate_agrees_with_the_prediction(self):
        answer = self.make_plan()
        result = json.loads(self.run_it("simulate", self.plan, "-o", "json").stdout)
        for field in ("step_ns", "stall_ns", "prefetch_bytes", "store_bytes"):
            self.assertEqual(result[field], answer[field])
        self.assertEqual(result["peak_bytes"], answer["peak_planned_bytes"])

    def test_simulate_baselines_and_other_hardware(self):
        self.make_plan()
        planned = json.loads(self.run_it("simulate", self.plan, "-o", "json").stdout)
        for policy in ("on-demand-lru", "layer-window", "g10-greedy"):
            result = json.loads(self.run_it("simulate", self.plan, "--policy", policy,
                                            "-o", "json").stdout)
            self.assertEqual(result["policy"], policy)
            self.assertGreaterEqual(result["step_ns"], planned["step_ns"])
            self.assertLessEqual(result["peak_bytes"], result["device_budget_bytes"])
        slow = json.loads(json.dumps(HARDWARE))
        for way in ("read", "write"):
            slow["localDdr"][way]["bytesPerS"] = "100000000"
        path = self.write("slow.json", json.dumps(slow))
        result = json.loads(self.run_it("simulate", self.plan, "--hardware", path, "-o", "json").stdout)
        self.assertGreater(result["step_ns"], planned["step_ns"])
        self.run_it("simulate", self.plan, "--policy", "magic", code=2)

    def test_simulate_says_which_op_does_not_fit(self):
        # The plan runs the last op before the large one; a policy without a plan does not.
        graph = {"version": 1, "name": "order", "storages": [
            {"id": 1, "name": "kept", "bytes": "1000", "kind": "ACTIVATION", "pinned": True},
            {"id": 2, "name": "large", "bytes": "2000", "kind": "ACTIVATION"}],
            "ops": [{"id": 1, "name": "first", "durationNs": "1000", "writes": [1]},
                    {"id": 2, "name": "second", "durationNs": "1000", "writes": [2]},
                    {"id": 3, "name": "third", "durationNs": "1000", "reads": [1]}]}
        self.run_it("analyze", self.write("order.json", json.dumps(graph)), "--hardware", self.hardware,
                    "--device-memory", "2100", "--out", self.plan)
        self.run_it("simulate", self.plan)
        for policy in ("on-demand-lru", "layer-window", "g10-greedy"):
            done = self.run_it("simulate", self.plan, "--policy", policy, code=3)
            self.assertIn("op second needs 3000 bytes; the budget is 2100", done.stderr)

    def test_explain_tensor_op_and_overview(self):
        self.make_plan()
        answer = json.loads(self.run_it("explain", self.plan, "-o", "json").stdout)
        self.assertGreater(answer["moved_tensors"], 0)
        name = answer["tensors"][0]["tensor"]
        self.assertTrue(answer["tensors"][0]["reason"])
        one = json.loads(self.run_it("explain", self.plan, "--tensor", name, "-o", "json").stdout)
        self.assertEqual(one["tensors"][0]["tensor"], name)
        self.assertTrue(one["tensors"][0]["cache_ops"])
        by_id = json.loads(self.run_it("explain", self.plan, "--tensor", str(one["tensors"][0]["id"]), "-o",
                                       "json").stdout)
        self.assertEqual(by_id, one)
        table = self.run_it("explain", self.plan, "--op", "layer2.forward").stdout
        self.assertIn("layer2.weight", table)
        self.assertIn("in program order", table)
        for tensor in training_graph()["storages"]:
            each = json.loads(self.run_it("explain", self.plan, "--tensor", str(tensor["id"]), "-o",
                                          "json").stdout)["tensors"][0]
            self.assertTrue(each["choice"] and each["reason"], each)
            if each["choice"].startswith("offload"):
                self.assertTrue(any(w.startswith("gap from ") for w in each["considered"]), each)
            self.assertEqual(each["hint"], "HINT_NONE")
        op = json.loads(self.run_it("explain", self.plan, "--op", "layer3.backward", "-o",
                                    "json").stdout)["positions"][0]
        self.assertLessEqual({"program_index", "stall_ns", "moved", "recomputation"}, set(op))

    def test_explain_suggests_close_names(self):
        self.make_plan()
        result = self.run_it("explain", self.plan, "--tensor", "layer2.wieght", code=2)
        self.assertIn('"layer2.weight"', result.stderr)
        result = self.run_it("explain", self.plan, "--op", "layer2.forwrd", code=2)
        self.assertIn('"layer2.forward"', result.stderr)

    def test_bench_analyzer(self):
        answer = json.loads(self.run_it("bench", "analyzer", "--ops", "500", "-o", "json").stdout)
        self.assertGreaterEqual(answer["runs"][0]["ops"], 500)
        self.assertGreater(answer["runs"][0]["ops_per_s"], 0)
        self.assertIn("commit", answer)
        self.assertGreater(answer["runs"][0]["process_peak_rss_bytes"], 1 << 20)
        self.run_it("bench", "analyzer", "--ops", "1", code=2)

    def test_bench_analyzer_plans_for_the_link_it_is_given(self):
        steps = []
        for bandwidth in ("25000000000", "2500000000"):
            answer = json.loads(self.run_it("bench", "analyzer", "--ops", "500", "--bandwidth", bandwidth, "-o", "json").stdout)
            self.assertEqual(answer["bandwidth_bytes_per_s"], int(bandwidth))
            steps.append(answer["runs"][0]["step_ns"])
        self.assertGreater(steps[1], steps[0])  # the slow link is what the step waits for
        self.run_it("bench", "analyzer", "--bandwidth", "0", code=2)


class Sweep(Command):
    AXES = ("--device-memory", "100%..40%,1KiB", "--bandwidth", "1,1/8")

    def sweep(self, *more, code=0):
        return self.run_it("sweep", self.graph, "--hardware", self.hardware, *more, code=code)

    def test_points_and_page_of_all_budgets_and_bandwidths(self):
        page = self.path("sweep.html")
        result = self.sweep(*self.AXES, "--report", page, "-o", "json")
        answer = json.loads(result.stdout)
        points = answer["points"]
        peak = answer["peak_unmanaged_bytes"]
        budgets = [peak * percent // 100 for percent in range(100, 30, -10)] + [1024]
        self.assertEqual([(p["bandwidth"], p["device_budget_bytes"]) for p in points],
                         [(bandwidth, budget) for bandwidth in (1, 0.125) for budget in budgets])
        self.assertEqual([p["feasible"] for p in points], ([True] * 7 + [False]) * 2)
        for point in (p for p in points if p["feasible"]):
            self.assertGreaterEqual(point["step_ns"], point["lower_bound_ns"])
            self.assertEqual(point["step_ns"], answer["compute_ns"] + point["stall_ns"])
            self.assertLessEqual(point["arena_bytes"], point["device_budget_bytes"])
            self.assertGreaterEqual(point["on_demand_lru_step_ns"], point["step_ns"])
        self.assertGreater(points[14]["step_ns"], points[6]["step_ns"])  # 40 %: the slow link is what it waits for
        planned = json.loads(self.analyze("--device-memory", "60%", "-o", "json").stdout)
        self.assertEqual(points[4]["step_ns"], planned["step_ns"])
        full, slow = answer["answers"]
        self.assertEqual((full["bandwidth"], slow["bandwidth"]), (1, 0.125))
        self.assertIn(full["enough_bytes"], budgets)
        self.assertIn("costs nothing", full["text"])
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("<svg", text)
        self.assertNotIn("x</script>", text)  # from the graph's name

    def test_the_table_has_a_row_a_point_and_no_progress_is_written_to_a_file(self):
        result = self.sweep("--device-memory", "60%,1KiB", "--bandwidth", "1")
        self.assertEqual(result.stderr, "")
        table, answer = result.stdout.split("\n\n")
        head, *rows = table.splitlines()
        self.assertIn("BOUND", head)
        self.assertEqual(len(rows), 2)
        self.assertIn("no plan", rows[1])
        self.assertRegex(" ".join(answer.split()), "^x 1 60 % of the peak .* costs nothing.* No plan fits in 1.00 KiB[.]$")

    def test_refuses_axes_that_are_none(self):
        for axis in (("--device-memory", "many"), ("--device-memory", "8MiB..60%"), ("--device-memory", "0%"), ("--bandwidth", "0"),
                     ("--bandwidth", "1/0"), ("--bandwidth", "nan"), ("--bandwidth", "1,,2"),
                     ("--bandwidth", ",".join(["1"] * 200))):
            result = self.sweep(*axis, code=2)
            self.assertEqual(result.stdout, "", axis)
            self.assertIn("hyperoffload sweep", result.stderr, axis)
        self.sweep("--device-memory", "60%", "--bandwidth", "1", "--report", self.path("no/such/folder.html"), code=2)


class Values(unittest.TestCase):
    def test_what_cannot_be_meant_is_refused_with_the_option_and_what_may_be(self):
        counts = ("-1", "18446744073709551616", "1.5", "many")
        for command, option, values, most in (
                ("top", "--count", ("0", *counts), "1000000"), ("events", "--last", counts, "1000000"),
                ("objects save x --out y", "--version", counts, "18446744073709551615"),
                ("model llama-like --phase decode --out x", "--layers", ("0", "10001", *counts), "from 1 to 10000\n"),
                ("model llama-like --phase decode --out x", "--batch", ("0", "1048577", *counts), "from 1 to 1048576\n"),
                ("model llama-like --phase decode --out x", "--chunk", ("1073741825", *counts), "from 0 to 1073741824\n"),
                ("model llama-like --phase decode --out x", "--element-bytes", ("0", "9", *counts), "from 1 to 8\n"),
                ("model llama-like --phase decode --out x", "--weight-bits", ("0", "5", *counts), ""),
                ("model llama-like --phase decode --out x", "--context", ("0", "1073741825", *counts), "from 1 to 1073741824\n"),
                ("model llama-like --phase decode --out x", "--device-flops", ("0", "1e300"), "1000 PFLOP/s"),
                ("parallel-sweep --hardware x --devices 2", "--batch", counts, "1000000000"),
                ("analyze x --hardware y --out z", "--align", ("-1", "0", "8GiB"), "4.00 GiB"),
                ("analyze x --hardware y --out z", "--align", ("3", "96"), "power of two")):
            for value in values:
                with self.subTest(command=command, option=option, value=value):
                    done = subprocess.run([PROGRAM, *command.split(), option, value], capture_output=True, text=True, check=False)
                    self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                    self.assertIn(option, done.stderr)
                    self.assertIn(most, done.stderr)
                    self.assertLess(len(done.stderr), 300)

    def test_an_address_of_ip_6_is_shown_as_it_is_written(self):
        done = subprocess.run([PROGRAM, "status", "--pool", "tcp:[::1]:1"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 4, done)
        self.assertIn("tcp:[::1]:1: ", done.stderr)


class Doctor(unittest.TestCase):
    def examine(self, config):
        with tempfile.TemporaryDirectory(prefix="ho-doctor-") as folder:
            path = os.path.join(folder, "config")
            with open(path, "w", encoding="utf-8") as file:
                file.write(config.replace("FOLDER", folder))
            done = subprocess.run([PROGRAM, "doctor", "--config", path, "-o", "json"], capture_output=True, text=True, check=False)
        answer = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0 if answer["healthy"] else 1)
        return {check["name"]: check for check in answer["checks"]}

    def test_a_port_and_a_folder_that_a_daemon_cannot_use_are_named(self):
        config = 'ddr_bytes: 67108864 segment_bytes: 8388608 unix_socket: "FOLDER/{}control.sock" insecure: true tcp_listen: "127.0.0.1:{}" tcp {{ port: {} }}'
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            port, second = one.getsockname()[1], other.getsockname()[1]
            checks = self.examine(config.format("none/", port, second))
        self.assertEqual(checks["tcp_listen"]["state"], "failed")
        self.assertIn(f"127.0.0.1:{port}", checks["tcp_listen"]["found"])
        self.assertEqual(checks["tcp"]["state"], "failed")
        self.assertEqual(checks["control socket"]["state"], "failed")
        checks = self.examine(config.format("", port, second))
        self.assertEqual(checks["tcp"]["state"], "ok")
        self.assertEqual(checks["tcp_listen"]["state"], "ok")
        self.assertEqual(checks["control socket"]["state"], "ok")
        self.assertEqual(checks["configuration"]["state"], "ok")

    def test_what_only_the_daemon_can_judge_is_asked_of_it(self):
        config = 'ddr_bytes: 67108864 segment_bytes: 8388608 unix_socket: "FOLDER/control.sock" '
        for more, words in (('access { jobs: "nobody-of-this-name" }', "nobody-of-this-name"),
                            ('flash { path: "FOLDER/none" }', "FOLDER/none".removeprefix("FOLDER"))):
            check = self.examine(config + more)["configuration"]
            self.assertEqual(check["state"], "failed")
            self.assertIn(words, check["found"])
            self.assertIn("--check-config", check["fix"])


if __name__ == "__main__":
    unittest.main()
