"""Scripts under hyperoffload.fit() whose later steps need other memory than the recorded one: the budget holds.

Usage: see support.py.
"""

import contextlib
import io
import re
import unittest

import support  # first: it finds PyTorch and the package
import torch
import torch.multiprocessing

import hyperoffload

WIDTH = 64
CONTEXT = torch.multiprocessing.get_context("fork")


class Script:
    """Trains a small network, and calls between() after each step."""

    def __init__(self):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.seen, self.kept = [], []

    def step(self, rows):
        loss = self.model(rows).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen.append(loss.item())

    def between(self, step):
        pass

    def train(self):
        for step in range(9):
            self.step(torch.randn(16, WIDTH))
            self.between(step)
        return self


class Growing(Script):
    """Keeps samples, each of less than 4 KiB, as a replay buffer does."""

    def between(self, step):
        self.kept += [torch.full((1000,), float(step)) for _ in range(2)]
        self.seen.append(sum(each[0].item() for each in self.kept))


class Bursts(Script):
    """Takes batches of another process, from the seventh step on more of them at a time than before."""

    @staticmethod
    def send(queue, end):
        for number in range(14):
            queue.put(torch.full((128, WIDTH), 0.1 * number))
        end.wait()

    def train(self):
        queue, end = CONTEXT.Queue(), CONTEXT.Event()
        process = CONTEXT.Process(target=self.send, args=(queue, end))
        process.start()
        for count in (1, 1, 1, 1, 1, 1, 4, 0, 0, 0, 4, 0, 0, 0):
            self.kept += [queue.get() for _ in range(count)]
            self.step(self.kept.pop(0))
        end.set()
        process.join()
        return self


class History(Script):
    """An optimizer whose steps keep older gradients, and drop the oldest."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), 0.1, max_iter=4, history_size=5)

    def train(self):
        rows = torch.randn(16, WIDTH)

        def closure():
            self.optimizer.zero_grad()
            loss = self.model(rows).square().mean()
            loss.backward()
            return loss

        self.seen += [self.optimizer.step(closure).item() for _ in range(8)]
        return self


class Large(Script):
    """Now and then one call takes and makes more than the budget."""

    def between(self, step):
        if step in (4, 6):
            self.seen.append((torch.ones(1 << 18) + 1).sum().item())


class Budget(support.WithDaemon):
    def check(self, kind, memory, **options):
        plain, ours, said = kind().train(), kind(), io.StringIO()
        with contextlib.redirect_stderr(said), hyperoffload.fit(
                ours.model, ours.optimizer, device_memory=memory, pool=self.pool, **options) as run:
            ours.train()
        self.assertEqual(plain.seen, ours.seen)
        for one, other in zip(plain.model.parameters(), ours.model.parameters()):
            self.assertTrue(torch.equal(one, other))
        return run, said.getvalue()

    def check_peak(self, run):
        stats = run.stats()
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"], run.summary())

    def test_what_the_plan_does_not_move_may_grow(self):
        for kind, planned in ((Growing, 4), (Bursts, 8), (History, 1)):
            with self.subTest(kind.__name__):
                run, _ = self.check(kind, "50%")
                self.check_peak(run)
                self.assertGreaterEqual(run.stats()["planned_steps"], planned, run.summary())

    def test_a_call_that_the_budget_is_too_small_for_is_said_once(self):
        for replan in ("once", "never"):
            run, said = self.check(Large, "300KiB", replan=replan)
            self.assertRegex(run.summary(), r"exceeded the budget by [12]\.[0-9] MiB at \S*budget_test\.py:[0-9]+: what ")
            needs = re.findall(r"the budget of 307200 bytes is too small for one call: aten.add.Tensor at "
                               r"\S*budget_test\.py:[0-9]+ needs (\d+) bytes .* device_memory of at least \1 bytes", said)
            self.assertEqual(len(needs), 1, said)  # the line runs twice
            run, said = self.check(Large, int(needs[0]), replan=replan)
            self.check_peak(run)
            self.assertNotIn("too small", said)


if __name__ == "__main__":
    unittest.main()
