"""Trains under hyperoffload.fit() on a device whose memory the processor cannot touch, and compares with the
plain run on the same device: torch_device.py. Its driver says what a real device would not order. Where PyTorch
finds a CUDA device, on that one.

Usage: see support.py; then the test device's library, or NONE, and the stand-in's for the driver.
"""

import concurrent.futures
import contextlib
import copy
import gc
import io
import os
import signal
import sys
import types
import unittest
from unittest import mock

import support  # first: it finds PyTorch and the package
import needs
import torch

DEVICE, DRIVER = sys.argv.pop(1), sys.argv.pop(1)
if DEVICE == "NONE" and not torch.cuda.is_available():
    needs.missing("the test device", "libtorch-dev")

import fit_test  # noqa: E402
import hyperoffload  # noqa: E402
import random_test  # noqa: E402
from fit_test import LENGTH, WORDS  # noqa: E402
from hyperoffload._memory import saving as _saving  # noqa: E402
from hyperoffload._pool import library as _library  # noqa: E402
from hyperoffload._torch import devices as _devices, script as _script  # noqa: E402

if torch.cuda.is_available():
    import cuda_device as torch_device
else:
    import torch_device

ON_STAND_IN = unittest.skipIf(torch_device.IS_REAL, "limits and the order of work are the stand-in's")
# Small tensors, and what the allocator rounds up, come to the budget.
ALLOWED = 1.04


class Script(fit_test.Script):
    place = torch_device.NAME
    blocks = 2  # the test device takes its time for each operator


class Accumulating(Script, fit_test.Accumulating):
    pass


class Averaging(Script, fit_test.Averaging):
    pass


class Checkpointing(Script, fit_test.Checkpointing):
    pass


class Random(random_test.Script):
    place = torch_device.NAME


class Accelerator(support.WithDaemon):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch_device.load(DEVICE, DRIVER)

    def setUp(self):
        gc.collect()
        torch_device.reset(delay_us=0)

    def assert_same(self, plain, ours):
        self.assertEqual(plain.seen, ours.seen)
        ours_now = ours.model.state_dict()
        for name, value in plain.model.state_dict().items():
            self.assertTrue(torch.equal(value.cpu(), ours_now[name].cpu()), name)
        self.assertEqual(torch_device.violations(), "")

    def assert_planned(self, script, count):
        self.assertEqual(script.run.stats()["planned_steps"], count, script.run.summary())

    def test_same_bits_within_the_budget(self):
        for seed, delay_us, own_stream in ((1, 0, False), (2, 20, True), (3, 100, False)):
            with self.subTest(seed=seed):
                torch_device.reset(seed, delay_us, own_stream)
                plain = Script().train(5)
                gc.collect()
                used = None if torch_device.IS_REAL else torch_device.used_bytes()
                torch_device.reset(seed, delay_us, own_stream)
                ours = Script().fit(self.pool, 5)
                stats = ours.run.stats()
                self.assertEqual((stats["planned_steps"], stats["departures"]), (3, 0), ours.run.summary())
                self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])
                if used is not None:  # by the allocator, with all that it rounds up; a real one has libraries' memory, too
                    self.assertLessEqual(torch_device.peak_bytes() - used, ALLOWED * stats["budget_bytes"])
                self.assert_same(plain, ours)

    @ON_STAND_IN
    def test_a_job_that_does_not_fit_trains(self):
        plain = Script().train(5)
        needed = torch_device.peak_bytes()
        seen, weights = plain.seen, {name: value.cpu() for name, value in plain.model.state_dict().items()}
        del plain
        gc.collect()
        torch_device.reset(2, limit_bytes=needed * 7 // 10)
        with self.assertRaisesRegex(RuntimeError, "out of memory"):
            Script().train(2)
        gc.collect()
        ours = Script().fit(self.pool, 5, needed * 6 // 10)
        self.assert_planned(ours, 3)
        self.assertEqual(ours.seen, seen)
        for name, value in ours.model.state_dict().items():
            self.assertTrue(torch.equal(value.cpu(), weights[name]), name)
        self.assertEqual(torch_device.violations(), "")

    @ON_STAND_IN
    def test_states_that_do_not_fit_the_device_are_on_the_processor_after_the_run(self):
        def copies(script):
            states = script.optimizer.state_dict()["state"]
            return ([value.cpu() for value in script.model.state_dict().values()],
                    [value.cpu().clone() for state in states.values() for value in state.values()])

        def train(script):
            script.train(5)
            found = copies(script)
            script.train(1)
            return found

        plain, ours = Script(batch=lambda _: 1), Script(batch=lambda _: 1)
        torch.manual_seed(2)
        saved = train(plain)
        weights = [value.cpu() for value in plain.model.state_dict().values()]
        seen = list(plain.seen)
        plain.train(1)
        states = [[value.cpu() for value in state.values()] for state in plain.optimizer.state.values()]
        needed = sum(4 * value.numel() for value in plain.model.parameters())
        del plain
        gc.collect()
        torch.manual_seed(2)
        torch_device.reset(1, limit_bytes=needed * 26 // 10)  # for a step; with Adam's states three times as much
        files = [io.BytesIO() for _ in range(2)]
        with hyperoffload.fit(ours.model, ours.optimizer, device_memory=needed * 22 // 10,
                              pool=self.pool) as ours.run:
            for one, other in zip(train(ours), saved):
                self.assertTrue(all(map(torch.equal, one, other)))
            torch.save(copies(ours)[0], files[0])
            with self.assertRaisesRegex(hyperoffload.Error, "no room for all values.*save copies"):
                torch.save([ours.model.state_dict(), ours.optimizer.state_dict()], io.BytesIO())
            with self.assertRaisesRegex(hyperoffload.Error, "exhausted"), ours.run.paused():
                self.fail("not all can be there")
            torch.save(list(ours.model.state_dict().values()), files[1])
            ours.train(1)
        self.assert_planned(ours, 5)
        self.assertEqual(ours.seen[:6], seen)
        for state, expected in zip(ours.optimizer.state.values(), states):
            self.assertEqual({name: value.device.type for name, value in state.items()}, dict.fromkeys(state, "cpu"))
            self.assertTrue(all(map(torch.equal, state.values(), expected)))
        for file in files:
            file.seek(0)
            self.assertTrue(all(map(torch.equal, torch.load(file, map_location="cpu"), weights)))
        self.assertTrue(all(value.storage().nbytes() > 0 for value in ours.model.parameters()))
        self.assertEqual(torch_device.violations(), "")

    def test_ways_to_train(self):
        for make in (Accumulating, Averaging, lambda: Checkpointing(True), lambda: Checkpointing(False)):
            with self.subTest(type(make()).__name__):
                ours = make().fit(self.pool, 5)
                self.assert_same(make().train(5), ours)
                self.assert_planned(ours, 2 if make is Averaging else 3)
                stats = ours.run.stats()
                self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_scaled_gradients_are_unscaled_index_by_index(self):
        """As torch.cuda.amp.GradScaler does it: one call on all gradients, which together exceed the budget."""
        def train(enter):
            script = Script(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch=lambda _: 1)
            with enter(script) as script.run:
                for step in range(5):
                    loss = script.loss(step)
                    (loss * 1024).backward()
                    found = torch.zeros(1).to(script.place)
                    torch._amp_foreach_non_finite_check_and_unscale_(
                        [value.grad for value in script.model.parameters()], found,
                        torch.full((1,), 1 / 1024).to(script.place))
                    if found.item() == 0:
                        script.optimizer.step()
                    script.optimizer.zero_grad(set_to_none=True)
                    script.seen.append(loss.item())
            return script

        plain = train(lambda script: contextlib.nullcontext())
        ours = train(lambda script: hyperoffload.fit(script.model, script.optimizer, device_memory="35%",
                                                     pool=self.pool))
        self.assert_same(plain, ours)
        self.assert_planned(ours, 3)
        stats = ours.run.stats()
        self.assertLess(stats["budget_bytes"], sum(4 * value.numel() for value in ours.model.parameters()))
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_evaluation_and_checkpoints_between_steps(self):
        def between(script, step):
            if step % 3 != 1:
                return
            script.model.eval()
            with torch.no_grad():
                tokens = torch.arange(LENGTH).view(1, LENGTH).to(script.place)
                script.seen.append(script.model(tokens).sum().item())
            script.model.train()
            file = io.BytesIO()
            torch.save([script.model.state_dict(), script.optimizer.state_dict()], file)
            file.seek(0)
            for part in torch.load(file, map_location="cpu")[0].values():
                script.seen.append(part.double().sum().item())

        ours = Script(between).fit(self.pool, 6)
        self.assert_same(Script(between).train(6), ours)
        self.assert_planned(ours, 4)

    def test_methods_that_read_memory_find_the_values(self):
        def between(script, step):
            if step > 1:
                read = [lambda value: copy.deepcopy(value).sum().item(),
                        lambda value: sum(value.flatten().tolist()),
                        lambda value: value.cpu().numpy().sum().item()][step % 3]
                script.seen += [read(value) for state in script.optimizer.state.values()
                                for value in state.values()]

        self.assert_same(Script(between).train(6), Script(between).fit(self.pool, 6))

    def test_work_within_a_step_runs_beside_the_plan(self):
        class Looking(Script):
            def loss(self, step):
                loss = super().loss(step)
                if step in (3, 4):
                    self.seen += [loss.item(), self.model.table.weight.norm().item()]
                    self.seen += self.model.blocks[0].up.weight[0].tolist()
                    self.seen += [value.norm().item() for state in self.optimizer.state.values()
                                  for value in state.values() if value.numel() > 15000]
                return loss

        ours = Looking().fit(self.pool, 6)
        self.assert_same(Looking().train(6), ours)
        self.assert_planned(ours, 4)
        self.assertGreater(ours.run.stats()["detours"], 0)

    def test_a_step_of_another_shape_departs_and_comes_back(self):
        def batch(step):
            return 5 if step == 3 else 8

        ours = Script(batch=batch).fit(self.pool, 6)
        self.assert_same(Script(batch=batch).train(6), ours)
        stats = ours.run.stats()
        self.assertEqual((stats["planned_steps"], stats["departures"]), (3, 1), ours.run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_an_exception_ends_the_run_with_all_values(self):
        scripts = []
        for train in (lambda script: script.train(5), lambda script: script.fit(self.pool, 5)):
            def between(script, step):
                if step == 3:
                    script.model(torch.zeros(8, LENGTH, dtype=torch.long).to(script.place))
                    raise KeyboardInterrupt

            scripts.append(Script(between))
            with self.assertRaises(KeyboardInterrupt):
                train(scripts[-1])
            scripts[-1].between = None
            scripts[-1].train(1)
        self.assert_same(*scripts)

    def test_an_exception_in_backward_leaves_all_values(self):
        def fail(_):
            raise ValueError("on autograd's own thread")

        def between(script, step):
            if step != 3:
                return
            loss, hook = script.loss(step), script.model.head.weight.register_hook(fail)
            with self.assertRaisesRegex(ValueError, "own thread"):
                loss.backward()
            hook.remove()
            script.optimizer.zero_grad(set_to_none=True)

        ours = Script(between).fit(self.pool, 7)
        self.assert_same(Script(between).train(7), ours)
        self.assert_planned(ours, 4)

    def test_ctrl_c_in_backward_leaves_all_values(self):
        scripts = []
        for train in (lambda script: script.train(5), lambda script: script.fit(self.pool, 5)):
            def between(script, step):
                if step == 2:  # the one after
                    script.model.head.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGINT))

            scripts.append(Script(between))
            with self.assertRaises(KeyboardInterrupt):
                train(scripts[-1])
        self.assert_same(*scripts)

    def test_an_error_of_the_pool_names_the_scripts_line(self):
        with support.Daemons(1) as daemons:
            def between(_, step):
                if step == 3:
                    daemons.kill(0)

            with self.assertRaisesRegex(hyperoffload.Error, "in step [5-8] at .*fit_test.py:[0-9]+: aten"):
                Script(between).fit(daemons.addresses[0], 8)
        self.assertEqual(torch_device.violations(), "")

    def test_a_thread_of_autograds_is_where_the_script_waits_for_it(self):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            self.assertIn("accelerator_test.py:", threads.submit(_script.where).result())

    def test_backward_on_two_threads_at_once(self):
        class Both(Script):
            """A part of the loss is the processor's."""

            def __init__(self):
                super().__init__()
                self.scale = torch.ones(64, 64, requires_grad=True)

            def loss(self, step):
                here = self.scale
                for _ in range(20):
                    here = torch.tanh(here * 1.01)
                return super().loss(step) + here.mean().to(self.place)

            def train(self, steps):
                super().train(steps)
                self.seen.append(self.scale.grad.sum().item())
                return self

        ours = Both().fit(self.pool, 5)
        self.assert_same(Both().train(5), ours)
        self.assert_planned(ours, 3)

    def test_calls_on_the_processor_are_not_of_the_step(self):
        class Loading(Script):
            def loss(self, step):
                for _ in range(100 * (step % 2)):
                    torch.arange(2000.0).cos()
                return super().loss(step)

        ours = Loading().fit(self.pool, 6)
        self.assert_same(Loading().train(6), ours)
        self.assert_planned(ours, 4)
        self.assertEqual(ours.run.stats()["detours"], 0)

    def test_a_recorded_step_runs_under_its_plan(self):
        def run(script, pool):
            train = types.MethodType(Script.train, script)
            graph = hyperoffload.record(lambda: train(1), script.model, script.optimizer)
            plan = hyperoffload.analyze(graph, device_memory="60%", pool=pool)
            with plan.applied(script.model, script.optimizer) as script.run:
                script.train(3)
            return script

        ours = run(Script(), self.pool)
        self.assert_same(Script().train(6), ours)
        self.assert_planned(ours, 3)

    def test_random_scripts_have_the_bits_of_their_plain_runs(self):
        for seed in range(4):
            with self.subTest(seed=seed), contextlib.redirect_stderr(io.StringIO()):
                torch_device.reset(seed, delay_us=5)
                plain, ours = Random(seed).train(), Random(seed)
                with hyperoffload.fit(ours.model, ours.optimizer, device_memory="70%", pool=self.pool,
                                      replan=["once", "auto"][seed % 2]):
                    ours.train()
                self.assert_same(plain, ours)

    # Refusals.

    def test_a_model_on_several_devices_is_refused(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).to(torch_device.NAME))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for call in (lambda: hyperoffload.fit(model, optimizer, device_memory="60%", pool=self.pool),
                     lambda: hyperoffload.record(lambda: None, model, optimizer)):
            with self.assertRaisesRegex(ValueError, f"0.weight of the model is on cpu, and 1.weight is on {torch_device.NAME}"):
                call()

    def test_the_link_is_measured_from_the_device(self):
        with mock.patch.object(_library.Pool, "measure_device", autospec=True,
                               side_effect=_library.Pool.measure_device) as measured, \
                mock.patch.object(_library.Pool, "measure", side_effect=AssertionError):
            script = Script().fit(self.pool, 4)
        self.assert_planned(script, 2)
        (_, device, size), _ = measured.call_args
        self.assertEqual((device.where.type, measured.call_count), (torch_device.NAME, 1))
        self.assertGreater(size, 1 << 20)
        self.assertEqual(torch_device.violations(), "")

    def test_a_node_is_lost_in_the_middle_of_a_step(self):
        plain = Script().train(8)
        for tcp in (False, True):
            for victim in range(2):
                with self.subTest(tcp=tcp, victim=victim), support.Daemons(2, tcp) as pool:
                    ours = Script()
                    hook = ours.model.register_forward_hook(
                        lambda *_: pool.kill(victim) if len(ours.seen) == 5 else None)
                    with hyperoffload.fit(ours.model, ours.optimizer, device_memory="60%", pool=pool.addresses[0],
                                          copies=2) as ours.run:
                        ours.train(8)
                    hook.remove()
                    self.assert_same(plain, ours)
                    self.assert_planned(ours, 6)
                    self.assertEqual(ours.run.stats()["nodes_lost"], 1)

    def test_another_stream_is_refused(self):
        def stream(number, place="cuda:0"):
            return types.SimpleNamespace(cuda_stream=number, device=torch.device(place))

        with mock.patch.object(torch.cuda, "current_stream", lambda _: stream(0)), \
                mock.patch.object(torch.cuda, "set_stream", mock.Mock(__name__="set_stream")) as set_stream, \
                contextlib.ExitStack() as stack:
            paused = []
            _devices.Cuda(torch.device("cuda:0")).keep_stream(stack, lambda: bool(paused))
            torch.cuda.set_stream(stream(0))
            torch.cuda.set_stream(stream(5, "cuda:1"))  # work elsewhere
            with self.assertRaisesRegex(RuntimeError, "another stream becomes current at .*accelerator_test.py:"):
                torch.cuda.set_stream(stream(5))
            paused.append(True)
            torch.cuda.set_stream(stream(5))
            self.assertEqual(set_stream.call_count, 3)
            late = _devices.Cuda(torch.device("cuda:0"))
            with mock.patch.object(torch.cuda, "current_stream", lambda _: stream(5)), \
                    self.assertRaisesRegex(RuntimeError, "make that stream current before fit"):
                late.keep_stream(stack, lambda: False)

    def test_states_of_one_storage_go_to_the_processor_together(self):
        shared = torch.arange(8.0).to(torch_device.NAME)
        weight = torch.nn.Parameter(torch.ones(4).to(torch_device.NAME))
        model = torch.nn.ParameterList([weight])
        state = {"first": shared[:4], "second": shared[4:], "master": weight.data.view(2, 2), "step": 3}
        left = []
        demand = types.SimpleNamespace(
            device=torch_device.Device(torch.device(torch_device.NAME, 0)), bring=lambda _: None,
            leave_out=lambda storage: (left.append(storage), torch_device.Device.resize(storage, 0)))
        moved = _saving._states_to_processor(model, types.SimpleNamespace(state={weight: state}), demand)
        self.assertEqual((moved, len(left)), (32, 1))
        self.assertEqual((state["first"].tolist(), state["second"].tolist()), ([0, 1, 2, 3], [4, 5, 6, 7]))
        self.assertEqual(state["master"].device.type, torch_device.NAME)  # the model's memory

    @ON_STAND_IN
    def test_work_on_another_stream_would_be_found(self):
        """The test device finds what it is there to find."""
        torch_device.reset(own_stream=True)
        other = torch_device.stream()
        torch_device.reset()
        script = Script()
        with mock.patch.object(torch_device, "stream", lambda: other), contextlib.suppress(RuntimeError):
            script.fit(self.pool, 4)
        self.assertRegex(torch_device.violations(), "is not ordered after .* of another stream")


if __name__ == "__main__":
    unittest.main()
