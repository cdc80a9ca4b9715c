"""Trains a small GPT under hyperoffload.fit() with a real daemon, and compares it with the plain run.

Usage: see support.py.
"""

import contextlib
import copy
import functools
import io
import json
import os
import pickle
import time
import unittest
from unittest import mock

import support  # first: it finds PyTorch and the package
import torch
import torch.utils.checkpoint
from torch import save as save_imported
from torch.utils._python_dispatch import TorchDispatchMode

import hyperoffload
from hyperoffload._run import trace

WORDS, WIDTH, LENGTH = 64, 64, 32


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, 4, width // 4)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / (width // 4) ** 0.5).softmax(-1)
        x = x + self.dropout(self.out((scores @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm2(x)))))


class Transformer(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.table = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.Sequential(*[Block() for _ in range(blocks)])
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.blocks(self.table(tokens)))


class Script:
    """A training script. `between(script, step)` runs after each step; `run` is fit()'s, or None. place: the
    model's device; blocks: how many it has."""

    place = "cpu"
    blocks = 4

    def __init__(self, between=None, optimizer=None, batch=lambda step: 8):
        torch.manual_seed(1)
        self.model = Transformer(self.blocks).to(self.place)
        make = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
        self.optimizer = make(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.between, self.batch = between, batch
        self.run = None
        self.seen = []

    def loss(self, step):
        tokens = torch.randint(0, WORDS, (self.batch(step), LENGTH)).to(self.place)
        return torch.nn.functional.cross_entropy(self.model(tokens).view(-1, WORDS),
                                                 torch.roll(tokens, -1, 1).view(-1))

    def train(self, steps):
        for step in range(steps):
            loss = self.loss(step)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.seen.append(loss.item())
            if self.between:
                self.between(self, step)
        return self

    def fit(self, pool, steps, memory="60%", replan="once"):
        with hyperoffload.fit(self.model, self.optimizer, device_memory=memory, pool=pool,
                              replan=replan) as self.run:
            self.train(steps)
        return self


class Counted(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


class Watched(Script):
    """A mode of its own sees the calls of forward."""

    def loss(self, step):
        with Counted() as mode:
            loss = super().loss(step)
        self.calls = mode.calls
        return loss


class Autocast(Script):
    def loss(self, step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().loss(step)


class Accumulating(Script):
    """The gradients of two more parts of the batch come to those of the last."""

    def loss(self, step):
        loss = super().loss(step)
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            super().loss(step).backward()
        self.optimizer.zero_grad = lambda set_to_none: delattr(self.optimizer, "zero_grad")
        return loss


class Checkpointing(Script):
    def __init__(self, reentrant):
        super().__init__()
        for block in self.model.blocks:
            block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward,
                                              use_reentrant=reentrant)


class Averaging(Script):
    """Keeps a moving average of the model, and tied weights in it."""

    def __init__(self):
        super().__init__(self.average)
        self.model.head.weight = self.model.table.weight
        self.mean = copy.deepcopy(self.model)

    def average(self, _, step):
        with torch.no_grad():
            for mean, value in zip(self.mean.parameters(), self.model.parameters()):
                mean.mul_(0.9).add_(value, alpha=0.1)
        if step == 4:
            self.seen += [value.sum().item() for value in self.mean.parameters()]


class Fit(support.WithDaemon):
    def assert_same(self, plain, ours):
        self.assertEqual(plain.seen, ours.seen)
        ours_now = ours.model.state_dict()
        for name, value in plain.model.state_dict().items():
            self.assertTrue(torch.equal(value, ours_now[name]), name)

    def test_same_bits_within_the_budget(self):
        plain = Script().train(6)
        for memory in ("60%", "50%"):
            with self.subTest(memory):
                ours = Script().fit(self.pool, 6, memory)
                self.assert_same(plain, ours)
                stats = ours.run.stats()
                self.assertEqual((stats["steps"], stats["planned_steps"]), (6, 4))
                self.assertEqual(stats["departures"], 0, ours.run.summary())
                self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])
                self.assertGreater(stats["step_ms_median"], 0)
                self.assertIn("4 of 6 steps ran under the plan", ours.run.summary())
                self.assertGreater(stats["ops_ms_median"], 0)
                self.assertAlmostEqual(stats["step_ms_median"], (1 + stats["overhead"]) * stats["ops_ms_median"])
                self.assertRegex(ours.run.summary(), r"median step [0-9.]+ ms, of it waited for transfers [0-9.]+ ms\n"
                                                     r"overhead -?[0-9]+% in planned steps: the step's operators took "
                                                     r"[0-9.]+ ms when it")
                ours.run.report(self.folder / "report.html")
                self.assertIn("<html", (self.folder / "report.html").read_text())
                ours.run.trace(self.folder / "trace.json")
                events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
                names = [event["name"] for event in events if event.get("cat") == "hyperoffload operators"]
                self.assertEqual(names.count("aten.gelu.default"), 4)
                self.assertTrue(any(event.get("cat") == "hyperoffload transfers" and event["args"]["bytes"] > 0
                                    for event in events))

    def test_a_trace_lies_over_that_of_pytorchs_profiler(self):
        script = Script()
        with hyperoffload.fit(script.model, script.optimizer, device_memory="60%", pool=self.pool) as run:
            script.train(4)
            begins_us = time.time_ns() / 1e3
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                begun_us = time.time_ns() / 1e3
                script.train(1)
            run.trace(self.folder / "ours.json")
            with mock.patch.object(trace, "_base_ns", lambda: 10**18):
                run.trace(self.folder / "based.json")
        profiler.export_chrome_trace(str(self.folder / "theirs.json"))
        ours, theirs, based = (json.loads((self.folder / f"{name}.json").read_text()) for name in ("ours", "theirs", "based"))
        if isinstance(theirs, list):  # a PyTorch without Kineto, as Debian's: it counts from the begin of the profile
            spans = [(begins_us + event["ts"], event["dur"]) for event in theirs]
        else:
            self.assertEqual(ours["baseTimeNanoseconds"], theirs.get("baseTimeNanoseconds", 0))
            self.assertIn(os.getpid(), {event["pid"] for event in theirs["traceEvents"]})
            spans = [(event["ts"], event["dur"]) for event in theirs["traceEvents"] if event.get("cat") == "cpu_op"]
        begin, end = min(ts for ts, _ in spans), max(ts + dur for ts, dur in spans)
        within_us = end - begin + begun_us - begins_us  # the profile began somewhere between the two
        events = [event for event in ours["traceEvents"] if event["ph"] == "X"]
        for event in events:
            self.assertEqual(event["pid"], os.getpid())
            self.assertGreater(event["ts"], begin - within_us)
            self.assertLess(event["ts"] + event["dur"], end + within_us)
        for event, other in zip(events, (event for event in based["traceEvents"] if event["ph"] == "X"), strict=True):
            self.assertAlmostEqual(event["ts"] + ours["baseTimeNanoseconds"] / 1e3, other["ts"] + 1e15, delta=1)

    def test_what_the_allocator_reserved_is_said_where_it_does(self):
        ours = Script().fit(self.pool, 3)
        self.assertIsNone(ours.run.stats()["peak_reserved_bytes"])
        self.assertNotIn("reserved", ours.run.summary())
        ours.run._device.peak_reserved_bytes = lambda: 7 << 20
        self.assertEqual(ours.run.stats()["peak_reserved_bytes"], 7 << 20)
        self.assertRegex(ours.run.summary(), r"peak [0-9.]+ MiB of .*\); PyTorch's allocator reserved 7.0 MiB\n")

    def test_the_budget_holds_from_the_first_step_on(self):
        def zero_first(script, _):
            script.optimizer.zero_grad(set_to_none=True)

        for between in (None, zero_first):
            with self.subTest(zero_first=between is not None):
                ours = Script(between).fit(self.pool, 5, "40%")
                self.assert_same(Script(between).train(5), ours)
                stats = ours.run.stats()
                self.assertEqual(stats["planned_steps"], 3, ours.run.summary())
                self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_without_a_plan_the_budget_holds_too(self):
        plain, ours = Script().train(4), Script()
        with hyperoffload.fit(ours.model, ours.optimizer, device_memory="2.5MiB", pool=self.pool,
                              replan="never") as run:
            ours.train(4)
        self.assert_same(plain, ours)
        self.assertLessEqual(run.stats()["peak_allocated_bytes"], 1.02 * 2.5 * 2**20)

    def test_ways_to_train(self):
        for make in (Autocast, Accumulating, Averaging, lambda: Checkpointing(True),
                     lambda: Checkpointing(False)):
            with self.subTest(type(make()).__name__):
                ours = make().fit(self.pool, 5)
                self.assert_same(make().train(5), ours)
                stats = ours.run.stats()
                self.assertEqual(stats["planned_steps"], 2 if make is Averaging else 3, ours.run.summary())
                self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_dispatch_modes_of_the_script_see_its_calls(self):
        plain = Watched().train(6)
        ours = Watched().fit(self.pool, 6)
        with Counted() as around:
            within = Watched().fit(self.pool, 6)
        for script in (ours, within):
            self.assert_same(plain, script)
            self.assertEqual(script.calls, plain.calls)
            self.assertEqual(script.run.stats()["planned_steps"], 4)
        self.assertGreater(around.calls, plain.calls)

    def test_evaluation_and_checkpoints_between_steps(self):
        def between(script, step):
            if step % 3 != 1:
                return
            script.model.eval()
            with torch.no_grad():
                script.seen.append(script.model(torch.arange(LENGTH).view(1, LENGTH)).sum().item())
            script.model.train()
            file = io.BytesIO()
            # Both formats, and with the name that was imported before fit() began.
            save = save_imported if step % 2 else torch.save
            save([script.model.state_dict(), script.optimizer.state_dict()], file,
                 _use_new_zipfile_serialization=step % 4 < 2)
            file.seek(0)
            for part in torch.load(file)[0].values():
                script.seen.append(part.double().sum().item())

        self.assert_same(Script(between).train(9), Script(between).fit(self.pool, 9))

    def test_a_checkpoint_brings_only_what_it_saves(self):
        def between(script, step):
            weight, file = script.model.blocks[step % 4].up.weight.detach(), io.BytesIO()
            torch.save([script.model.state_dict(), weight.storage()], file)
            file.seek(0)
            values, storage = torch.load(file)
            self.assertTrue(torch.equal(values[f"blocks.{step % 4}.up.weight"], weight))
            self.assertTrue(torch.equal(torch.empty(0).set_(storage), weight.flatten()))  # a storage's tolist() takes seconds

        ours = Script(between).fit(self.pool, 5, "35%")
        self.assert_same(Script(between).train(5), ours)
        stats = ours.run.stats()
        self.assertEqual(stats["planned_steps"], 3, ours.run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_methods_that_read_memory_find_the_values(self):
        def between(script, step):
            if step > 1:
                read = [lambda value: copy.deepcopy(value).sum().item(),
                        lambda value: pickle.loads(pickle.dumps(value)).sum().item(),
                        lambda value: sum(value.flatten().tolist() if value.dim() != 2
                                          else map(sum, value.tolist())),
                        lambda value: value.numpy().sum().item()][step % 4]
                script.seen += [read(value) for state in script.optimizer.state.values()
                                for value in state.values()]
                # Copies that are away are taken again, too: states share one memo.
                script.seen += [value.sum().item() for state in copy.deepcopy(script.optimizer.state).values()
                                for value in state.values()]

        deepcopy, plain = torch.Tensor.__deepcopy__, Script(between).train(8)
        ours = Script(between).fit(self.pool, 8)
        self.assert_same(plain, ours)
        self.assertIs(torch.Tensor.__deepcopy__, deepcopy)
        self.assertNotIn("numpy", vars(torch.Tensor))

    def test_values_written_between_steps(self):
        def between(script, step):
            with torch.no_grad():
                script.model.head.weight.mul_(0.99)
            if script.run is not None and step == 5:
                with script.run.paused():
                    script.model.table.weight.detach().numpy()[0] = 0.5
            elif step == 5:
                script.model.table.weight.detach().numpy()[0] = 0.5

        ours = Script(between).fit(self.pool, 9)
        self.assert_same(Script(between).train(9), ours)

    def test_a_step_of_another_shape_departs_and_comes_back(self):
        def batch(step):
            return 5 if step in (4, 5) else 8

        ours = Script(batch=batch).fit(self.pool, 9)
        self.assert_same(Script(batch=batch).train(9), ours)
        stats = ours.run.stats()
        self.assertEqual((stats["planned_steps"], stats["departures"]), (5, 2), ours.run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])
        self.assertIn("fit_test.py:", ours.run.summary())

    def test_a_shape_that_comes_back_gets_a_plan(self):
        shapes = [8, 8, 8, 5, 8, 5, 5, 8, 5, 5, 8]  # the second 5 is recorded
        ours = Script(batch=shapes.__getitem__).fit(self.pool, len(shapes), replan="auto")
        self.assert_same(Script(batch=shapes.__getitem__).train(len(shapes)), ours)
        stats = ours.run.stats()
        self.assertEqual((stats["planned_steps"], stats["departures"]), (7, 1), ours.run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_an_exception_in_a_step_loses_nothing(self):
        def between(script, step):
            if step != 4:
                return
            loss = script.model(torch.zeros(8, LENGTH, dtype=torch.long)).sum()
            try:
                with torch.no_grad():
                    torch.zeros(3) + torch.zeros(4)
            except RuntimeError:
                pass
            loss.backward()
            script.seen.append(script.model.head.weight.grad.sum().item())

        self.assert_same(Script(between).train(8), Script(between).fit(self.pool, 8))

    def test_an_exception_ends_the_run_with_all_values(self):
        def between(script, step):
            if step == 4:
                script.model(torch.zeros(8, LENGTH, dtype=torch.long))
                raise KeyboardInterrupt

        save, scripts = torch.serialization._save, []
        for train in (lambda script: script.train(9), lambda script: script.fit(self.pool, 9)):
            scripts.append(Script(between))
            with self.assertRaises(KeyboardInterrupt):
                train(scripts[-1])
            self.assertIs(torch.serialization._save, save)
            scripts[-1].between = None
            scripts[-1].train(2)
        self.assert_same(*scripts)

    def test_of_wrappers_of_step_a_scheduler_s_alone_outlasts_the_run(self):
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for makes in (False, True):
            with hyperoffload.fit(model, optimizer, device_memory="100%", pool=self.pool) as run:  # ends while it records
                if makes:
                    torch.optim.lr_scheduler.StepLR(optimizer, 1)
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
            optimizer.step()
            self.assertEqual(("step" in vars(optimizer), run.stats()["steps"]), (makes, 1))

    def test_workers_of_a_loader_run_plainly(self):
        def between(script, step):
            if step == 4:
                loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1,
                                                     collate_fn=lambda rows: torch.stack(rows) * 2,
                                                     multiprocessing_context="fork")
                script.seen.extend(batch.sum().item() for batch in loader)

        ours = Script(between).fit(self.pool, 7)
        self.assert_same(Script(between).train(7), ours)
        self.assertEqual(ours.run.stats()["planned_steps"], 5, ours.run.summary())

    def test_operators_on_lists_run_index_by_index(self):
        def optimizer(parameters):
            return torch.optim.AdamW(parameters, lr=1e-3, foreach=True)

        ours = Script(optimizer=optimizer).fit(self.pool, 7)
        self.assert_same(Script(optimizer=optimizer).train(7), ours)
        self.assertEqual(ours.run.stats()["planned_steps"], 5, ours.run.summary())

    def test_gradients_that_are_set_to_zero(self):
        class Zeroing(torch.optim.SGD):
            def zero_grad(self, set_to_none=False):
                super().zero_grad(set_to_none=False)

        def optimizer(parameters):
            return Zeroing(parameters, lr=0.1, momentum=0.9)

        ours = Script(optimizer=optimizer).fit(self.pool, 7, "70%")
        self.assert_same(Script(optimizer=optimizer).train(7), ours)
        self.assertEqual(ours.run.stats()["planned_steps"], 5, ours.run.summary())

    def test_sparse_gradients(self):
        def train(pool=None):
            torch.manual_seed(1)
            model = torch.nn.Embedding(300, 64, sparse=True)
            optimizer = torch.optim.SparseAdam(model.parameters())
            run = pool and hyperoffload.fit(model, optimizer, device_memory="70%", pool=pool)
            losses = []
            with run or contextlib.nullcontext():
                for _ in range(6):
                    loss = model(torch.randperm(300)[:128]).square().sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            return losses, model.weight, run

        losses, weight, _ = train()
        our_losses, our_weight, run = train(self.pool)
        self.assertEqual(losses, our_losses)
        self.assertTrue(torch.equal(weight, our_weight))
        self.assertEqual(run.stats()["planned_steps"], 4, run.summary())

    def test_frozen_weights_outside_the_model_may_leave(self):
        def train(pool=None):
            torch.manual_seed(1)
            model, frozen = torch.nn.Linear(64, 64), [torch.randn(64, 64) for _ in range(8)]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            run = pool and hyperoffload.fit(model, optimizer, device_memory="60%", pool=pool)
            with run or contextlib.nullcontext():
                for _ in range(6):
                    x = model(torch.randn(4, 64))
                    for weight in frozen:
                        x = torch.tanh(x @ weight)
                    optimizer.zero_grad()
                    x.sum().backward()
                    optimizer.step()
            return model.weight, frozen, run

        weight, frozen, _ = train()
        our_weight, our_frozen, run = train(self.pool)
        self.assertTrue(torch.equal(weight, our_weight))
        self.assertTrue(all(map(torch.equal, frozen, our_frozen)))
        stats = run.stats()
        self.assertEqual(stats["planned_steps"], 4, run.summary())
        # They are most of what there is; without them the budget could not be met.
        self.assertLess(stats["budget_bytes"], 8 * 64 * 64 * 4)

    def test_what_cannot_be_done_is_said(self):
        script = Script()
        with self.assertRaisesRegex(RuntimeError, "no step has run"):
            hyperoffload.fit(script.model, script.optimizer, device_memory="60%",
                             pool=self.pool).trace(self.folder / "no.json")
        with self.assertRaisesRegex(MemoryError, "budget"):
            script.fit(self.pool, 3, "1%")
        self.assertEqual(len(script.seen), 1)  # the end of the second step plans
        with self.assertRaisesRegex(ValueError, "60%"):
            Script().fit(self.pool, 3, "much")
        with self.assertRaises(hyperoffload.Error):
            Script().fit("unix:/nowhere.sock", 3)
        with self.assertRaisesRegex(ValueError, "replan"):
            hyperoffload.fit(script.model, script.optimizer, device_memory="60%", pool=self.pool,
                             replan="often")


if __name__ == "__main__":
    unittest.main()
