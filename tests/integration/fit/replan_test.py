"""Steps of several shapes, and work that a step does now and then, under hyperoffload.fit().

Usage: see support.py.
"""

import contextlib
import copy
import io
import pickle
import re
import unittest
from unittest import mock

import support  # first: it finds PyTorch and the package
import numpy
import torch
import torch.nn.utils.prune

import hyperoffload
from hyperoffload._run import run as running
from hyperoffload._run.figures import Figures, Step
from hyperoffload._run.replay import Replay

WIDTH = 96


class Script:
    """Trains a network. A step begins with a call that has nothing of the batch. `now_and_then(script, step,
    loss, rows)` runs between forward and backward, `after(script, step)` after the step."""

    def __init__(self, rows=lambda step: 64, now_and_then=None, after=None):
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
                                           for _ in range(8)])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.rows, self.now_and_then, self.after = rows, now_and_then, after
        self.seen = []

    def train(self, steps):
        for step in range(steps):
            penalty = self.model[0][0].weight.square().sum()
            rows = torch.randn(self.rows(step), WIDTH)
            loss = self.model(rows).square().mean() + 1e-3 * penalty
            if self.now_and_then is not None:
                self.now_and_then(self, step, loss, rows)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.seen.append(loss.item())
            if self.after is not None:
                self.after(self, step)
        return self


class Replan(support.WithDaemon):
    def run_both(self, make, steps, replan="once", memory="60%", holds=True):
        """Trains plainly and under fit(), and compares. Returns (stats, what was said)."""
        plain, ours, said = make().train(steps), make(), io.StringIO()
        with contextlib.redirect_stderr(said):
            with hyperoffload.fit(ours.model, ours.optimizer, device_memory=memory, pool=self.pool,
                                  replan=replan) as run:
                ours.train(steps)
        self.summary = run.summary()
        self.assertEqual(plain.seen, ours.seen, self.summary)
        for name, value in plain.model.state_dict().items():
            self.assertTrue(torch.equal(value, ours.model.state_dict()[name]), name)
        stats = run.stats()
        if holds:
            self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"], self.summary)
        return stats, said.getvalue()

    def test_shapes_that_differ_after_the_first_call_each_get_a_plan(self):
        stats, said = self.run_both(lambda: Script(lambda step: 64 if step % 2 else 40), 24, "auto")
        # Two record; the second shape departs until it is known that the two take turns.
        self.assertGreaterEqual(stats["planned_steps"], 24 - 2 - 4, self.summary)
        self.assertEqual(stats["plans"], 2, self.summary)
        self.assertEqual(said.count("a plan of its own"), 1, said)

    def run_paced(self, replan, later):
        """Trains with steps that take the times of their plan, and from the sixth on `later(drift)`, as (operators, stall,
        and what is beside the plan) in s. Returns (the steps at which a plan was made anew, what was said)."""
        def counters(replay):
            now, drift = measured(replay), replay.drift
            paced = later(drift) if len(script.seen) >= 5 else (drift.planned_ops_s, drift.planned_stall_s)
            ops_s[0] = paced[0]
            now.last_step_stall_ns = int(paced[1] * 1e9)
            now.last_step_ns = int(sum(paced) * 1e9)
            return now

        measured, made, script, said, ops_s = Replay.counters, [], Script(), io.StringIO(), [0.0]
        script.after = lambda _, step: made.append(run.stats()["replans"])
        with (mock.patch.object(Replay, "counters", counters), contextlib.redirect_stderr(said),
              mock.patch.object(running, "ops_s_of", lambda timeline: ops_s[0]), hyperoffload.fit(
                  script.model, script.optimizer, device_memory="60%", pool=self.pool, replan=replan) as run):
            script.train(16)
        self.assertEqual(Script().train(16).seen, script.seen)
        self.assertEqual(run.stats()["planned_steps"], 14)
        return [step for step in range(1, 16) if made[step] > made[step - 1]], said.getvalue()

    def test_a_link_that_halves_is_one_message_and_a_new_plan_within_three_steps(self):
        def halved(drift):
            return drift.planned_ops_s, 2 * drift.planned_stall_s + drift.planned_ops_s + 0.1

        message = (r"hyperoffload: step \d+ waited \d+ ms for transfers, planned \d+ ms; its operators took \d+ ms, "
                   r"planned \d+ ms; ")
        made, said = self.run_paced("auto", halved)
        self.assertIn(made, ([5], [6], [7]))
        self.assertRegex(said, f"^{message}planning again\n$")
        made, said = self.run_paced("once", halved)
        self.assertEqual(made, [])
        self.assertRegex(said, f'^{message}a plan of now may be faster: replan="auto"\n$')

    def test_operators_that_stay_slow_are_one_message_and_a_new_plan(self):
        ops_s = []

        def slow(drift):  # as on a machine that another job uses, too
            ops_s.append(drift.planned_ops_s)
            return 2 * ops_s[0] + 0.1, drift.planned_stall_s

        made, said = self.run_paced("auto", slow)
        self.assertEqual(made, [9])
        self.assertRegex(said, r"^hyperoffload: step 10 waited (\d+) ms for transfers, planned \1 ms; its operators took \d+ ms, "
                               r"planned \d+ ms; planning again\n$")

    def test_work_beside_the_plan_is_no_drift_and_each_kind_is_said(self):
        def beside(drift):
            return drift.planned_ops_s, drift.planned_stall_s, drift.planned_ops_s + 0.1

        self.assertEqual(self.run_paced("auto", beside), ([], ""))
        count = []

        def slow_and_late(drift):  # operators at first, and transfers after that
            count.append(0)
            return 2 * drift.planned_ops_s + 0.1, drift.planned_stall_s + (1 if len(count) > 12 else 0)

        _, said = self.run_paced("once", slow_and_late)
        self.assertEqual(said.count('a plan of now may be faster: replan="auto"'), 2, said)

    def test_a_smaller_batch_at_the_end_of_each_epoch_gets_a_plan(self):
        stats, _ = self.run_both(lambda: Script(lambda step: 24 if step % 6 == 5 else 64), 30, "auto")
        self.assertEqual(stats["plans"], 2, self.summary)
        self.assertGreaterEqual(stats["planned_steps"], 30 - 2 - 3, self.summary)

    def test_averages_of_weights_and_an_evaluation_every_third_step_get_plans(self):
        # The first average is a copy, so that the step that is recorded first does not come back. The averages are none of
        # the plan's, and a bias is the first.
        def after(script, step):
            parameters = reversed(list(script.model.parameters()))
            with torch.no_grad():
                for average, parameter in zip(script.averages, parameters):
                    average.copy_(parameter if step == 0 else 0.9 * average + 0.1 * parameter)
                if step % 3 == 2:
                    script.seen.append(script.model(torch.ones(8, WIDTH)).sum().item())

        def make():
            script = Script(after=after)
            script.averages = [parameter.detach().clone() for parameter in reversed(list(script.model.parameters()))]
            return script

        stats, said = self.run_both(make, 30, "auto")
        self.assertGreaterEqual(stats["planned_steps"], 18, self.summary + said)

    def test_shapes_without_a_rule_stay_right(self):
        lengths = [64, 64, 64, 40, 64, 40, 40, 24, 64, 24, 40, 40, 64, 24, 24, 64, 40, 64, 24, 64]
        stats, _ = self.run_both(lambda: Script(lengths.__getitem__), len(lengths), "auto")
        self.assertGreater(stats["planned_steps"], 3, self.summary)

    def test_the_number_of_plans_is_bounded(self):
        stats, said = self.run_both(lambda: Script(lambda step: 20 + 4 * (step // 3 % 10)), 60, "auto", "80%")
        self.assertLessEqual(stats["plans"], 8, self.summary)
        self.assertEqual(said.count("more than 8 shapes"), 1, said)

    def test_once_says_that_auto_would_plan(self):
        stats, said = self.run_both(lambda: Script(lambda step: 24 if step % 4 == 3 else 64), 16)
        self.assertEqual((stats["plans"], stats["departures"]), (1, 4), self.summary)
        self.assertEqual(said.count('replan="auto"'), 1, said)

    def test_each_step_is_a_line_on_demand(self):
        script, lines = Script(lambda step: 24 if step == 4 else 64), []
        with contextlib.redirect_stderr(io.StringIO()), hyperoffload.fit(
                script.model, script.optimizer, device_memory="60%", pool=self.pool, log=lines.append) as run:
            script.train(6)
        ms, peak, fetched = r"[0-9]+\.[0-9] ms", r"peak [0-9]+\.[0-9] MiB", r"fetched [0-9]+\.[0-9] MiB"
        replay = f"replay, {ms}, waited {ms}, {peak}"
        for number, (line, form) in enumerate(zip(lines, [
                f"record, {ms}, {fetched}, {peak}", f"record, {ms}, {fetched}, {peak}; planned in [0-9]+ ms", replay, replay,
                f"departed, {ms}, {fetched}, {peak}; left the plan: aten.*replan_test.py:[0-9]+\\)", replay], strict=True)):
            self.assertRegex(line, f"^step {number + 1}: {form}$")
        self.assertIn(f"peak {run.stats()['peak_allocated_bytes'] / 2**20:.1f} MiB", lines[-1])

    def test_what_departures_cost_is_said_once_for_each_cause_and_added_up(self):
        stats, said = self.run_both(lambda: Script(lambda step: 24 if step in (4, 6, 8) else 64), 10)
        (cause, cost), = stats["departure_causes"].items()
        self.assertRegex(cause, r"aten.* \(\S*replan_test\.py:[0-9]+\)")
        self.assertEqual((cost["steps"], stats["departures"]), (3, 3))
        # Each has brought at least half of the weights and states that are beyond the budget.
        away = stats["peak_plain_bytes"] - stats["budget_bytes"]
        self.assertGreater(cost["fetched_bytes"], 3 * away / 2, self.summary)
        (told,) = re.findall(r"step [0-9]+ departed .*", said)
        took = r"fetched ([0-9.]+) MiB on demand and took [0-9.]+ ms (?:more|less) than planned steps"
        self.assertRegex(told, re.escape(f"step 5 departed from the plan: {cause}; it ") + took)
        self.assertLess(float(re.search(took, told)[1]), cost["fetched_bytes"] / 2**20)
        line, = re.findall(r"left the plan .*", self.summary)
        self.assertRegex(line, re.escape(f"left the plan 3 times: {cause}; ") + took)
        more = re.search("took ([0-9.]+) ms (more|less)", line)
        self.assertAlmostEqual(cost["more_ms"], float(more[1]) * (1 if more[2] == "more" else -1), delta=0.06)

    def test_a_departure_in_a_step_that_does_not_end_is_said(self):
        def fail(script, step, loss, rows):
            if step == 4:
                raise ValueError

        script, said = Script(lambda step: 24 if step == 4 else 64, now_and_then=fail), io.StringIO()
        with contextlib.suppress(ValueError), contextlib.redirect_stderr(said), hyperoffload.fit(
                script.model, script.optimizer, device_memory="60%", pool=self.pool) as run:
            script.train(6)
        self.assertRegex(said.getvalue(), r"step 5 departed from the plan, and did not end: aten.*replan_test\.py:")
        self.assertEqual(run.stats()["departures"], 1)

    def test_each_step_without_a_plan_is_a_line_too(self):
        script, lines = Script(), []
        with hyperoffload.fit(script.model, script.optimizer, device_memory="4MiB", pool=self.pool, replan="never",
                              log=lines.append):
            script.train(2)
        self.assertEqual([line.split(",")[0] for line in lines], ["step 1: on demand", "step 2: on demand"])

    def test_a_step_whose_plan_fails_is_a_line(self):
        script, lines = Script(), []
        with mock.patch.object(running, "plan_of", side_effect=MemoryError("no plan fits")), self.assertRaisesRegex(
                MemoryError, "no plan fits"), hyperoffload.fit(
                    script.model, script.optimizer, device_memory="60%", pool=self.pool, log=lines.append):
            script.train(3)
        self.assertEqual([line.split(",")[0] for line in lines], ["step 1: record", "step 2: record"])
        self.assertNotIn("planned in", lines[1])

    def test_the_overhead_is_that_of_planned_steps(self):
        figures = Figures(self.fail, hints=False)
        for seconds, *planned in [(9,), (6, 1, 4), (7,), (8,), (9,), (3, 0, 2), (9,)]:
            figures.begins(0)
            figures.ended(Step(seconds, 0, 0, False, True, *planned))
        stats = figures.stats()
        self.assertEqual((stats["step_ms_median"], stats["ops_ms_median"], stats["overhead"]), (8000, 3000, 0.5))

    def test_work_now_and_then_keeps_the_plan(self):
        def log(script, step, loss, _):
            if step % 3 == 0:
                script.seen.append(loss.item())
            if step % 4 == 1:  # weights that are away
                script.seen += [layer[0].weight.norm().item() for layer in script.model]
            if step % 5 == 4:
                script.kept = loss.detach() * 2

        stats, said = self.run_both(lambda: Script(now_and_then=log), 16)
        self.assertEqual((stats["planned_steps"], stats["departures"]), (14, 0), self.summary)
        self.assertGreater(stats["detours"], 3, self.summary)
        self.assertEqual(said.count("work that its plan does not have"), 3, said)
        self.assertEqual(said.count("replan_test.py:"), 3, said)
        self.assertIn("did other work", self.summary)

    def test_an_evaluation_within_a_step_keeps_the_plan(self):
        def evaluate(script, step, _, rows):
            if step % 4 == 3:
                with torch.no_grad():
                    script.seen.append(script.model(rows[:8]).sum().item())

        stats, said = self.run_both(lambda: Script(now_and_then=evaluate), 14)
        self.assertEqual((stats["planned_steps"], stats["departures"]), (12, 0), self.summary)
        self.assertEqual(said.count("work that its plan does not have"), 1, said)

    def test_a_gradient_is_read_before_it_is_set_to_zero(self):
        class Zeroing(Script):
            def __init__(self):
                super().__init__(now_and_then=self.look)
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
                zero = self.optimizer.zero_grad
                self.optimizer.zero_grad = lambda set_to_none: zero(set_to_none=False)

            def look(self, script, step, *_):
                if step in (5, 8):
                    self.seen += [weight.grad.norm().item() for weight in self.model.parameters()]
                if step == 8:  # and the step leaves the plan before that
                    self.model[7][0].weight.grad.mul_(1)

        for memory in ("50%", "70%"):
            stats, _ = self.run_both(Zeroing, 10, memory=memory)
            # By the times that were measured, the plan may have no room for the look at step 5.
            tight = stats["departures"] == 2 and "the plan leaves no room for it" in self.summary
            self.assertEqual((stats["planned_steps"], stats["departures"]), (6, 2) if tight else (7, 1), self.summary)

    def test_methods_that_use_memory_within_a_step_find_the_values(self):
        def read(script, step, *_):
            way = {5: lambda weight: sum(map(sum, weight.tolist())),
                   7: lambda weight: copy.deepcopy(weight).sum().item(),
                   9: lambda weight: pickle.loads(pickle.dumps(weight)).sum().item(),
                   11: lambda weight: float(weight.numpy().sum())}.get(step)
            if way is not None:
                script.seen += [way(layer[0].weight.detach()) for layer in script.model]

        stats, said = self.run_both(lambda: Script(now_and_then=read), 14, holds=False)
        # Eight copies are more than 64 calls. torch.save() ends the plan's part. What numpy has must stay: whether it
        # is away is by the times that were measured.
        self.assertIn((stats["planned_steps"], stats["departures"]), ((9, 3), (10, 2), (11, 1)), self.summary + said)
        self.assertIn("torch.save() within a step", said)

    def test_work_of_the_recorded_step_alone_is_left_out_later(self):
        def log(script, step, loss, rows):
            if step < 2:
                script.seen += [rows.norm().item(), (script.model[3][0].weight * 2).sum().item()]

        def evaluate(script, step):
            if step == 0:
                with torch.no_grad():
                    script.seen.append(script.model(torch.ones(32, WIDTH)).sum().item())

        for make in (lambda: Script(now_and_then=log), lambda: Script(after=evaluate)):
            with self.subTest():
                stats, _ = self.run_both(make, 8)
                self.assertEqual((stats["planned_steps"], stats["departures"]), (6, 0), self.summary)

    def test_work_that_changes_values_of_the_plan_departs(self):
        def scale(script, step, *_):
            if step == 5:
                with torch.no_grad():
                    script.model[4][0].weight.mul_(0.5)

        class Late(Script):
            """Backward reads the weight, so it is scaled before forward does."""
            def train(self, steps):
                self.model.register_forward_pre_hook(lambda *_: scale(self, len(self.seen)))
                return super().train(steps)

        stats, said = self.run_both(Late, 9)
        self.assertEqual(stats["departures"], 1, self.summary)
        self.assertIn("4.0.weight", said)

    def test_a_recorded_step_that_was_not_typical_is_recorded_again(self):
        def fail(script, step, loss, rows):
            if step == 1:
                with contextlib.suppress(ValueError):
                    hook = script.model[5].register_forward_hook(lambda *_: exec("raise ValueError"))
                    try:
                        script.model(rows).sum().backward()
                    finally:
                        hook.remove()
                (script.model(rows[:32]).sum() * 0.01).backward()

        stats, _ = self.run_both(lambda: Script(now_and_then=fail), 14)
        self.assertGreaterEqual(stats["planned_steps"], 8, self.summary)

    def test_a_plan_whose_tensors_were_replaced_is_made_again(self):
        def reload(script, step):
            if step == 5:
                script.optimizer.load_state_dict(copy.deepcopy(script.optimizer.state_dict()))

        # PyTorch allocates the copies of the states by itself.
        stats, _ = self.run_both(lambda: Script(after=reload), 14, holds=False)
        self.assertGreaterEqual(stats["planned_steps"], 8, self.summary)

    def test_a_weight_that_gets_another_name_keeps_its_values(self):
        class Pruned(Script):
            def train(self, steps):
                for step in range(steps):
                    if step == 6:
                        torch.nn.utils.prune.l1_unstructured(self.model[2][0], "weight", 0.5)
                    self.optimizer.zero_grad(set_to_none=False)
                    loss = self.model(torch.randn(64, WIDTH)).square().mean()
                    loss.backward()
                    self.optimizer.step()
                    self.seen.append(loss.item())
                return self

        for _ in range(4):  # each has the wrong values by chance
            stats, _ = self.run_both(Pruned, 14, replan="auto", memory="40%", holds=False)
            self.assertGreaterEqual(stats["planned_steps"], 8, self.summary)  # before and after

    def test_what_a_call_beside_the_plan_takes_leaves_it_room(self):
        def log(script, step, loss, rows):
            with torch.no_grad():
                for kept in script.kept:
                    script.seen.append((kept * 2).sum().item())

        class Logging(Script):
            def __init__(self):
                super().__init__(now_and_then=lambda script, step, loss, rows: step > 3 and log(script, step, loss, rows))
                self.kept = []

            def train(self, steps):
                self.kept = [torch.randn(WIDTH, WIDTH) for _ in range(12)]  # made in the run: they may leave
                return super().train(steps)

        stats, _ = self.run_both(Logging, 12, memory="45%")
        self.assertLessEqual(stats["peak_allocated_bytes"], stats["budget_bytes"], self.summary)

    def test_values_that_are_not_the_plans_are_read_within_a_step(self):
        def read(script, step, loss, rows):
            if step == 0:
                script.kept = [torch.randn(WIDTH, WIDTH) for _ in range(12)]  # made in the run: they may leave
            script.seen.append([kept.tolist()[0][0] for kept in script.kept])

        stats, _ = self.run_both(lambda: Script(now_and_then=read), 10, memory="45%", holds=False)
        self.assertGreaterEqual(stats["planned_steps"], 6, self.summary)

    def test_a_deep_copy_between_steps_has_room(self):
        def keep(script, step):
            script.best = copy.deepcopy(script.model.state_dict())  # the last one is gone only afterwards

        for replan in ("once", "never"):
            stats, _ = self.run_both(lambda: Script(after=keep), 8, replan=replan, memory="70%", holds=False)
            self.assertLessEqual(stats["peak_allocated_bytes"], stats["budget_bytes"], self.summary)

    def test_a_deep_copy_within_a_step_has_room(self):
        def keep(script, step, *_):
            if step % 3 == 2:
                script.best = copy.deepcopy(script.optimizer.state_dict())  # which is away then

        class Wide(Script):
            """Its largest weight is a third of the budget."""

            def __init__(self):
                super().__init__(now_and_then=keep)
                self.model = torch.nn.Sequential(*map(torch.nn.Sequential, (
                    torch.nn.Linear(WIDTH, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 10))))
                self.optimizer = torch.optim.Adam(self.model.parameters())

        for memory in ("40%", "60%"):
            self.run_both(Wide, 9, memory=memory)

    def test_what_the_plan_brings_before_a_call_beside_it_leaves_that_room(self):
        def grow(script, step):
            if step == 5:
                for layer in script.model[:4]:
                    layer.requires_grad_(True)

        class Growing(Script):
            """Trains half of its layers, and all of them later."""

            def __init__(self):
                super().__init__(after=grow)
                for layer in self.model[:4]:
                    layer.requires_grad_(False)

        for memory in ("40%", "50%", "60%"):
            stats, _ = self.run_both(Growing, 12, memory=memory)
            self.assertGreater(stats["detours"], 0, self.summary)

    def test_weights_that_are_not_the_plans_leave_again_within_a_step(self):
        class Replacing(Script):
            def train(self, steps):
                for _ in range(steps):
                    loss = self.model(torch.randn(64, WIDTH)).square().mean()
                    self.optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    for weight in self.model.parameters():
                        weight.data = weight.data - 1e-3 * weight.grad
                    self.optimizer.step()
                    self.seen.append(loss.item())
                return self

        stats, _ = self.run_both(Replacing, 12, memory="25%", holds=False)
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.05 * stats["budget_bytes"], self.summary)

    def test_a_checkpoint_that_the_script_holds_may_leave(self):
        def reload(script, step):
            if step == 4:
                file = io.BytesIO()
                torch.save([script.model.state_dict(), script.optimizer.state_dict()], file)
                file.seek(0)
                script.held = torch.load(file)
                script.model.load_state_dict(script.held[0])
                script.optimizer.load_state_dict(script.held[1])

        # Two steps depart, since the optimizer has new states, and one is recorded.
        stats, said = self.run_both(lambda: Script(after=reload), 18, memory="45%", holds=False)
        self.assertEqual((stats["planned_steps"], stats["departures"]), (13, 2), self.summary + said)

    def test_a_plan_is_made_when_what_was_in_the_way_is_gone(self):
        def hold(script, step):
            if step == 4:
                values = [value for state in script.optimizer.state.values() for value in state.values() if value.dim()]
                values += script.model.state_dict().values()  # what numpy has cannot leave
                script.held = [torch.from_numpy(numpy.array(value.tolist(), numpy.float32)) for value in values]
                script.seen += [value.sum().item() for value in script.held]
                script.optimizer.load_state_dict(script.optimizer.state_dict())  # its states are new
            if step == 10:
                script.held = None

        stats, said = self.run_both(lambda: Script(after=hold), 18, memory="45%", holds=False)
        self.assertIn("run on demand", said)
        self.assertGreaterEqual(stats["planned_steps"], 3 + 5, self.summary + said)


if __name__ == "__main__":
    unittest.main()
