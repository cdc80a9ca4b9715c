"""Trains under hyperoffload.fit(copies=2) while daemons are killed: the results are those of a run without a pool.

Usage: see support.py.
"""

import contextlib
import copy
import io
import os
import pathlib
import time
import unittest

import support  # first: it finds PyTorch and the package
import torch
from support import Daemons

import hyperoffload

ROWS, WIDTH, STEPS, KILLED_AT = 32, 128, 12, 6


class Script:
    """A training script, which calls `within` in the middle of a step's forward pass and `between` after a step."""

    def __init__(self, within=lambda step: None, between=lambda step: None):
        torch.manual_seed(5)
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.1))
                  for _ in range(6)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        layers[3].register_forward_hook(lambda *_: within(len(self.losses)))
        self.between = between
        self.losses = []

    def step(self):
        loss = self.model(torch.randn(ROWS, WIDTH)).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.between(len(self.losses) - 1)

    def train(self, steps=STEPS):
        for _ in range(steps):
            self.step()
        return self

    def fit(self, pool, copies=2, **options):
        return hyperoffload.fit(self.model, self.optimizer, device_memory="60%", pool=pool, copies=copies, **options)


class Copies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)

    def assert_same(self, plain, ours):
        self.assertEqual(plain.losses, ours.losses)
        for name, value in plain.model.state_dict().items():
            self.assertTrue(torch.equal(value, ours.model.state_dict()[name]), name)

    def killing(self, pool, victim, at, **options):
        """Trains, and kills a daemon in the middle of step `at`."""
        script = Script(within=lambda step: pool.kill(victim) if step == at else None)
        with script.fit(pool.addresses[0], **options) as run:
            script.train()
        return script, run

    def test_a_node_is_lost_in_the_middle_of_a_step(self):
        plain = Script().train()
        for tcp in (False, True):
            for victim in range(3):
                with self.subTest(tcp=tcp, victim=victim), Daemons(3, tcp) as pool:
                    script, run = self.killing(pool, victim, KILLED_AT)
                    self.assert_same(plain, script)
                    stats = run.stats()
                    self.assertEqual((stats["planned_steps"], stats["departures"]), (STEPS - 2, 0))
                    self.assertEqual((stats["copies"], stats["nodes"], stats["nodes_lost"]), (2, 3, 1))
                    self.assertGreater(stats["values_halved"], 0)
                    self.assertIn("lost 1 of 3 nodes", run.summary())

    def test_a_node_is_lost_while_steps_run_on_demand(self):
        plain = Script().train()
        for at, replan in ((0, "once"), (1, "once"), (KILLED_AT, "never")):
            with self.subTest(at=at, replan=replan), Daemons(3) as pool:
                script, run = self.killing(pool, 1, at, replan=replan)
                self.assert_same(plain, script)
                self.assertEqual(run.stats()["nodes_lost"], 1)
                self.assertEqual(run.stats()["planned_steps"], 0 if replan == "never" else STEPS - 2)

    def test_a_node_is_lost_in_and_after_steps_that_left_the_plan(self):
        def script_with(lose):
            def within(step):
                if step in (KILLED_AT, KILLED_AT + 2):
                    with torch.no_grad():  # the plan does not know that its value changes
                        script.model[5][0].weight.mul_(1.0)
                    if step == KILLED_AT:
                        lose()

            def between(step):
                if step == KILLED_AT + 1:
                    with torch.no_grad():
                        seen.append(script.model(torch.ones(ROWS, WIDTH)).sum().item())

            seen = []
            script = Script(within, between)
            script.losses_seen = seen
            return script

        plain = script_with(lambda: None).train()
        for victim in range(3):
            with self.subTest(victim=victim), Daemons(3) as pool:
                script = script_with(lambda: pool.kill(victim))
                with script.fit(pool.addresses[0]) as run:
                    script.train()
                self.assert_same(plain, script)
                self.assertEqual(plain.losses_seen, script.losses_seen)
                self.assertEqual((run.stats()["departures"], run.stats()["nodes_lost"]), (2, 1))

    def test_one_of_two_nodes_may_be_lost_before_there_is_a_plan(self):
        plain = Script().train()
        for at in (0, KILLED_AT):
            with self.subTest(at=at), Daemons(2) as pool:
                script, run = self.killing(pool, 1, at)
                self.assert_same(plain, script)
                self.assertEqual(run.stats()["planned_steps"], STEPS - 2)

    def test_values_are_repaired_and_a_second_node_is_lost(self):
        plain = Script().train(2 * STEPS)
        os.environ["HYPEROFFLOAD_REPAIR_AFTER_MS"] = "100"
        self.addCleanup(os.environ.pop, "HYPEROFFLOAD_REPAIR_AFTER_MS")
        for replan, first, second in (("once", 0, 2), ("once", 1, 0), ("once", 2, 1), ("never", 1, 2)):
            with self.subTest(replan=replan, first=first, second=second), Daemons(3) as pool:
                def within(step):
                    if step == KILLED_AT:
                        pool.kill(first)
                    elif step == KILLED_AT + STEPS:
                        halved.append(run.stats()["values_halved"])
                        pool.kill(second)

                def between(step):
                    if step == KILLED_AT:
                        # The job may hear of the loss after the step; without a plan it may repair within it.
                        end = time.monotonic() + 20
                        while lost_homes(run) == 0 and time.monotonic() < end:
                            time.sleep(0.01)
                        halved.append(lost_homes(run))
                    if step in (KILLED_AT, KILLED_AT + 1):
                        time.sleep(0.2)  # repair waits from the step's begin that finds the loss

                def lost_homes(run):
                    return run.stats()["values_halved"] + run.stats()["values_repaired"]

                halved = []
                script = Script(within, between)
                with script.fit(pool.addresses[0], replan=replan) as run:
                    script.train(2 * STEPS)
                self.assert_same(plain, script)
                self.assertGreater(halved[0], 0)
                self.assertEqual(halved[1], 0)
                self.assertGreaterEqual(run.stats()["values_repaired"], halved[0])
                self.assertEqual(run.stats()["nodes_lost"], 2)

    def test_a_value_without_copies_left_ends_the_job(self):
        with Daemons(3) as pool:
            def lose(step):
                if step == KILLED_AT:
                    pool.kill(1)
                    pool.kill(2)

            script, said = Script(within=lose), io.StringIO()
            saved = copy.deepcopy(script.model.state_dict())
            with self.assertRaisesRegex(hyperoffload.Error, r"no home of .* is left .*\(n[12], .*\(n[12], "):
                with contextlib.redirect_stderr(said), script.fit(pool.addresses[0]):
                    script.train()
            # Lost values have memory all the same, and show that they are lost.
            values = [*script.model.parameters(), *(value for state in script.optimizer.state.values()
                                                    for value in state.values())]
            self.assertTrue(any(value.isnan().any() for value in values))
            self.assertIn("values are NaN now", said.getvalue())
            script.model.load_state_dict(saved)
            self.assertTrue(torch.isfinite(script.model(torch.randn(ROWS, WIDTH))).all())

    def test_a_saved_plan_keeps_its_copies(self):
        plain = Script().train(STEPS + 3)
        with Daemons(3) as pool:
            script = Script(within=lambda step: pool.kill(2) if step == KILLED_AT else None)
            graph = hyperoffload.record(script.step, script.model, script.optimizer)
            path = pathlib.Path(pool.folder.name) / "step.plan"
            hyperoffload.analyze(graph, device_memory="60%", pool=pool.addresses[0], copies=2).save(path)
            plan = hyperoffload.Plan.load(path)
            self.assertEqual(plan.copies, 2)
            with plan.applied(script.model, script.optimizer) as run:
                script.train()
                self.assertGreater(run.stats()["values_halved"], 0)
        self.assert_same(plain, script)

    def test_what_is_held_is_told(self):
        with Daemons(2) as pool:
            for copies, doubled in ((None, 0), (1, 0), (2, 1)):
                script = Script()
                with script.fit(pool.addresses[0], copies) as run:
                    self.assertEqual(run.stats()["values_doubled"], 0)
                    script.train(4)
                    stats = run.stats()
                self.assertEqual(min(stats["values_doubled"], 1), doubled)
                self.assertEqual((stats["copies"], stats["values_halved"]), (copies or 1, 0))
                self.assertEqual(run.stats()["values_doubled"], stats["values_doubled"])
                self.assertEqual("two copies" in run.summary(), copies == 2)

    def test_what_cannot_be_done_is_said(self):
        for copies in (0, 3, -1, True, "2", 2.0):
            with self.subTest(copies=copies):
                with self.assertRaisesRegex(ValueError, "copies is .* write 1, or 2"):
                    Script().fit("unix:/nowhere.sock", copies)
                with self.assertRaisesRegex(ValueError, "copies is .* write 1, or 2"):
                    hyperoffload.analyze(hyperoffload.record(Script().step), device_memory="60%",
                                         pool="unix:/nowhere.sock", copies=copies)
        with Daemons(1) as pool:
            with self.assertRaisesRegex(hyperoffload.Error, "need 2 nodes.* 1: start another daemon"):
                with Script().fit(pool.addresses[0]):
                    pass


if __name__ == "__main__":
    unittest.main()
