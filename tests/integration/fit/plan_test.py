"""Records a step, plans it, and trains under the plan, with a real daemon; compares with the plain run.

Usage: see support.py.
"""

import contextlib
import copy
import ctypes
import faulthandler
import json
import random
import socket
import subprocess
import unittest
from unittest import mock

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload
from hyperoffload._plan import plan as plan_module
from hyperoffload._pool import library as _library

ROWS, WIDTH = 64, 128


class Script:
    """A training script. `step` is one step of it; `losses` are those so far."""

    def __init__(self, width=WIDTH):
        torch.manual_seed(3)
        layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(),
                                      torch.nn.Dropout(0.1)) for _ in range(6)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.width = width
        self.losses = []

    def step(self):
        loss = self.model(torch.randn(ROWS, self.width)).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def train(self, steps):
        for _ in range(steps):
            self.step()
        return self


class LongForm(support.WithDaemon):
    def assert_same(self, plain, ours):
        self.assertEqual(plain.losses, ours.losses)
        for name, value in plain.model.state_dict().items():
            self.assertTrue(torch.equal(value, ours.model.state_dict()[name]), name)

    def plan(self, script, **options):
        graph = hyperoffload.record(script.step, script.model, script.optimizer)
        return hyperoffload.analyze(graph, **{"device_memory": "60%", "pool": self.pool, **options})

    def hardware(self, bytes_per_s):
        """The path of a hardware file with such a link."""
        path = self.folder / "hardware.json"
        link = {"bytesPerS": str(bytes_per_s)}
        path.write_text(json.dumps({
            "name": "host", "deviceBytes": str(1 << 30),
            "localDdr": {"capacityBytes": str(1 << 30), "read": link, "write": link}}))
        return path

    def test_a_recorded_step_runs_under_its_plan(self):
        plain, ours = Script().train(3 + 5), Script()
        plan = self.plan(ours)
        self.assertEqual(len(ours.losses), 3)
        lines = []
        with plan.applied(ours.model, ours.optimizer, log=lines.append) as run:
            ours.train(5)
        self.assertEqual([line.split(",")[0] for line in lines], [f"step {number}: replay" for number in range(1, 6)])
        self.assert_same(plain, ours)
        stats = run.stats()
        self.assertEqual((stats["steps"], stats["planned_steps"], stats["departures"]), (5, 5, 0),
                         run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * plan.budget_bytes)
        self.assertEqual(stats["budget_bytes"], plan.budget_bytes)
        self.assertAlmostEqual(stats["ops_ms_median"], plan.graph.ops_ns / 1e6)
        run.report(self.folder / "page.html")
        self.assertEqual((self.folder / "page.html").read_text(), plan.page)
        run.trace(self.folder / "trace.json")
        names = [event["name"] for event in json.loads(
            (self.folder / "trace.json").read_text())["traceEvents"]]
        self.assertEqual(names.count("aten.relu.default"), 6)

    def test_a_given_plan_whose_tensors_were_replaced_is_made_again(self):
        def train(script):
            script.train(2)
            script.optimizer.load_state_dict(copy.deepcopy(script.optimizer.state_dict()))
            return script.train(5)

        plain, ours = train(Script().train(3)), Script()
        plan = self.plan(ours)
        with plan.applied(ours.model, ours.optimizer) as run:
            train(ours)
        self.assert_same(plain, ours)
        stats = run.stats()  # two depart, then one is recorded
        self.assertEqual((stats["planned_steps"], stats["departures"]), (4, 2), run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * plan.budget_bytes)

    def test_what_the_script_holds_on_to_leaves_for_the_plan(self):
        script = Script()
        graph = hyperoffload.record(script.step, script.model, script.optimizer)
        for seed in range(12):
            rng = random.Random(seed)
            ops = [rng.choice([3_000, 10_000, 50_000]) for _ in graph.movable["ops"]]
            plan = hyperoffload.analyze(graph.retimed(ops), device_memory=rng.choice(["50%", "60%"]),
                                        hardware=self.hardware(rng.choice([1, 3]) * 10**9), pool=self.pool)
            with plan.applied(script.model, script.optimizer) as run:
                script.train(3)
            stats = run.stats()
            self.assertEqual((stats["planned_steps"], stats["departures"]), (3, 0), run.summary())
            self.assertLessEqual(stats["peak_allocated_bytes"], plan.budget_bytes, seed)

    def test_what_comes_for_the_next_step_takes_the_place_of_gradients(self):
        model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(12)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batch = torch.randn(8, WIDTH)

        def step():
            loss = model(batch).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        graph, hardware = hyperoffload.record(step, model, optimizer), self.hardware(10**8)
        for share in ("40%", "50%", "60%", "70%"):
            for op_ns in (1_000, 10_000):
                plan = hyperoffload.analyze(graph.retimed([op_ns] * len(graph.movable["ops"])),
                                            device_memory=share, hardware=hardware, pool=self.pool)
                with plan.applied(model, optimizer) as run:
                    for _ in range(2):  # what follows a step waits for what comes
                        step()
                        run.trace(self.folder / "trace.json")
                        step()
                        with torch.no_grad():
                            model(batch)
                stats = run.stats()
                self.assertEqual((stats["planned_steps"], stats["departures"]), (4, 0), run.summary())
                self.assertLessEqual(stats["peak_allocated_bytes"], plan.budget_bytes, (share, op_ns))

    def test_what_one_plan_has_on_its_way_comes_before_another_plan_begins(self):
        model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(12)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def early(graph, *others):  # operators that take no time let a plan bring all as early as it can
            return schedule_of({**graph, "ops": [{**op, "durationNs": "1000"} for op in graph["ops"]]}, *others)

        schedule_of = plan_module.schedule_of
        faulthandler.dump_traceback_later(120, exit=True)  # it waited forever
        with mock.patch.object(plan_module, "schedule_of", early), hyperoffload.fit(
                model, optimizer, device_memory="60%", hardware=self.hardware(10**8), pool=self.pool,
                replan="auto") as run:
            for step in range(24):
                loss = model(torch.randn(8 if step < 4 or step % 2 else 16, WIDTH)).square().mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        faulthandler.cancel_dump_traceback_later()
        stats = run.stats()
        self.assertEqual((stats["planned_steps"], stats["plans"]), (19, 2), run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], stats["budget_bytes"], run.summary())

    def test_what_a_near_node_has_no_room_for_goes_to_a_far_one(self):
        plain = Script(1024).train(4)
        with contextlib.ExitStack() as ends:
            near = self.start_near_and_far(ends)
            ours = Script(1024)
            with hyperoffload.fit(ours.model, ours.optimizer, device_memory="40%", pool=near) as run:
                ours.train(4)
                status = json.loads(subprocess.run([support.PROGRAM, "status", "--pool", near, "-o", "json"],
                                                   capture_output=True, text=True, check=True).stdout)
            # Full nodes are not measured, and not planned with.
            other, memory = _library.Pool(near, "other"), ctypes.c_void_p()
            ends.callback(other.close)
            room = other.room(_library.FAR).ddr_bytes
            lib = _library.library()
            self.assertEqual(lib.ho_allocate_among(other.handle, _library.FAR, room, ctypes.byref(memory)), 0)
            ends.callback(lib.ho_free, other.handle, memory)
            script = Script()
            graph = hyperoffload.record(script.step, script.model, script.optimizer)
            hyperoffload.analyze(graph, device_memory="60%", pool=near)
        self.assert_same(plain, ours)
        self.assertEqual((run.stats()["planned_steps"], run.stats()["departures"]), (2, 0))
        paths = {node["path"]: node["ddr_granted_bytes"] for node in status["nodes"]}
        self.assertGreater(paths["local"], 0)
        self.assertGreater(paths["tcp"], 48 << 20)

    def start_near_and_far(self, ends):
        """Starts a small node on this machine and one that is reached over TCP. Returns the first one's address."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            far = f"127.0.0.1:{probe.getsockname()[1]}"
        near = f"unix:{self.folder}/near.sock"
        for number, (name, size, listen, other) in enumerate((("near", 48 << 20, "", f"tcp:{far}"),
                                                              ("far", 256 << 20, f'tcp_listen: "{far}" insecure: true', near))):
            config = self.folder / f"{name}.textproto"
            config.write_text(f'''node_id: {number} node_name: "{name}" ddr_bytes: {size} segment_bytes: 8388608
                unix_socket: "{self.folder}/{name}.sock" {listen} tcp {{ address: "127.0.0.1" }}
                nodes {{ node_id: {1 - number} name: "other" control_addresses: "{other}" }}''')
            daemon = subprocess.Popen([support.DAEMON, "--config", str(config)], stderr=subprocess.DEVNULL)
            ends.callback(daemon.wait)
            ends.callback(daemon.terminate)
        support.wait_for_pool(near, daemon)
        return near

    def test_model_and_optimizer_are_found(self):
        first, second = Script(), Script()
        plan = self.plan(first)
        found = hyperoffload.analyze(hyperoffload.record(second.step), device_memory="60%",
                                     pool=self.pool)
        self.assertEqual(plan.budget_bytes, found.budget_bytes)
        self.assertEqual([each["name"] for each in plan.graph.storages if each["persistent"]],
                         [each["name"] for each in found.graph.storages if each["persistent"]])

        def both():
            first.step()
            second.step()

        with self.assertRaisesRegex(ValueError, "calls 2 models"):
            hyperoffload.record(both)
        other = torch.optim.SGD(first.model.parameters(), lr=0.1)
        with self.assertRaisesRegex(ValueError, "2 optimizers"):
            hyperoffload.record(first.step, first.model)
        del other

    def test_a_saved_plan_runs_a_later_job(self):
        path = self.folder / "step.plan"
        self.plan(Script()).save(path)
        plain, ours = Script().train(6), Script()
        plan = hyperoffload.Plan.load(path)
        with plan.applied(ours.model, ours.optimizer, pool=self.pool) as run:
            ours.train(6)
        self.assert_same(plain, ours)
        # The first step makes the optimizer's states, and runs on demand.
        self.assertEqual(run.stats()["planned_steps"], 5, run.summary())
        self.assertLessEqual(run.stats()["peak_allocated_bytes"], 1.02 * plan.budget_bytes)

    def test_graph_and_schedule_are_those_of_the_commands(self):
        script = Script()
        graph = hyperoffload.record(script.step, script.model, script.optimizer, steps=2)
        graph.write(self.folder / "graph.json")
        self.assertEqual(len(script.losses), 2)
        self.assertEqual([op["name"] for op in graph.ops].count("aten.relu.default"), 6)
        kinds = {each["name"]: each["kind"] for each in graph.storages}
        self.assertEqual(kinds["0.0.weight"], "WEIGHT")
        self.assertEqual(kinds["0.0.weight.exp_avg"], "OPTIMIZER_STATE")
        plan = hyperoffload.analyze(graph, device_memory="70%", hardware=self.hardware(10**9))
        (self.folder / "step.hos").write_bytes(plan.schedule)
        (self.folder / "movable.json").write_text(json.dumps(plan.graph.movable))
        for arguments in (["verify", "step.hos", "--graph", "movable.json"],
                          ["analyze", "graph.json", "--hardware", "hardware.json",
                           "--device-memory", "100%", "--out", "whole.hos"]):
            done = subprocess.run([support.PROGRAM, *arguments], cwd=self.folder, check=False,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_step_that_fails_is_not_recorded(self):
        script = Script()

        def fails():
            script.step()
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            hyperoffload.record(fails, script.model, script.optimizer)
        script.train(2)
        self.assert_same(Script().train(3), script)  # as without the recorder

    def test_what_a_call_resizes_is_not_what_the_pool_has(self):
        script = Script()
        script.model.register_buffer("seen", torch.zeros(2 * ROWS, WIDTH))

        def resize(model, args, rows):
            torch.zeros(2, 2).resize_as_(rows)
            model.seen.resize_as_(rows)
            model.seen.resize_(WIDTH)

        script.model.register_forward_hook(resize)
        graph = hyperoffload.record(script.step, script.model, script.optimizer)
        resized = [[part.others for part in call.parts] for call in graph.calls if ".resize_" in str(call.function)]
        self.assertEqual(resized, [[False], [True], [True]])

    def test_what_cannot_be_done_is_said(self):
        script = Script()
        with self.assertRaisesRegex(ValueError, "2 or more"):
            hyperoffload.record(script.step, script.model, script.optimizer, steps=1)
        with self.assertRaisesRegex(ValueError, "calls 0 models"):
            hyperoffload.record(lambda: torch.zeros(3).sum())
        graph = hyperoffload.record(script.step, script.model, script.optimizer)
        with self.assertRaisesRegex(ValueError, "name a pool"):
            hyperoffload.analyze(graph, device_memory="60%")
        with self.assertRaisesRegex(MemoryError, "budget"):
            hyperoffload.analyze(graph, device_memory="1%", pool=self.pool)
        plan = hyperoffload.analyze(graph, device_memory="60%", pool=self.pool)
        other = Script(2 * WIDTH)
        with self.assertRaisesRegex(ValueError, r"the plan moves 0\.0\.weight of 65536 bytes, which has 262144"):
            with plan.applied(other.model, other.optimizer):
                other.train(1)
        with self.assertRaisesRegex(ValueError, "exp_avg.*does not exist"):
            stateless = torch.optim.SGD(script.model.parameters(), lr=0.1)
            with plan.applied(script.model, stateless):
                script.optimizer = stateless
                script.train(1)
        (self.folder / "no.plan").write_text("{}")
        with self.assertRaisesRegex(ValueError, "no.plan is not a plan"):
            hyperoffload.Plan.load(self.folder / "no.plan")


if __name__ == "__main__":
    unittest.main()
