"""Scripts under hyperoffload.fit() that use the memory of tensors without operators, with a real daemon.

Usage: see support.py.
"""

import contextlib
import copy
import gc
import io
import itertools
import threading
import unittest

import support  # first: it finds PyTorch and the package
import numpy
import torch
import torch.multiprocessing
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack, to_dlpack  # before fit() begins

import hyperoffload

WIDTH = 64
CONTEXT = torch.multiprocessing.get_context("fork")


class Script:
    """Trains a small network. use(script, tensor): of a weight and its optimizer's state in some steps, within or
    between them; it returns numbers, which are compared."""

    def __init__(self, use=None, within=False, batch=16):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.use, self.within, self.batch, self.step = use, within, batch, 0
        self.seen, self.kept, self.run, self.messages = [], [], None, ""

    def train(self, steps=9):
        for step in range(steps):
            loss = self.model(torch.randn(self.batch, WIDTH)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            if self.within:
                self.uses(step)
            self.optimizer.step()
            self.seen.append(loss.item())
            if not self.within:
                self.uses(step)
        return self

    def uses(self, step):
        if self.use is not None and step in (4, 6):
            for layer in (1, 3):
                weight = self.model[layer].weight
                self.seen.append(self.use(self, weight.detach()))
                self.seen.append(self.use(self, self.optimizer.state[weight]["exp_avg"]))

    def fit(self, pool, memory="45%", **options):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), hyperoffload.fit(
                self.model, self.optimizer, device_memory=memory, pool=pool, **options) as self.run:
            self.train()
        self.messages = said.getvalue()
        return self


def answer(get, put):
    put(get().double().sum().item())


def by_queue(make):
    """Sends a tensor to another process, and returns what that finds."""
    def use(_, tensor):
        there, back = make(), CONTEXT.SimpleQueue()
        get, put = (there[0].recv, there[1].send) if isinstance(there, tuple) else (there.get, there.put)
        process = CONTEXT.Process(target=answer, args=(get, back.put))
        process.start()
        put(tensor)
        found = back.get()
        process.join()
        return found
    return use


def keeping(convert):
    """Reads what a tensor's memory was converted to, also in later steps."""
    def use(script, tensor):
        script.kept.append(convert(tensor))
        return [float(each.sum()) for each in script.kept]
    return use


def fill(_, tensor):
    tensor.storage().fill_(0.01)
    return tensor.sum().item()


WAYS = {
    "a simple queue": by_queue(CONTEXT.SimpleQueue), "a queue": by_queue(CONTEXT.Queue),
    "a pipe": by_queue(CONTEXT.Pipe),
    "shared memory": lambda _, tensor: tensor.share_memory_().sum().item(),
    "numpy by dlpack": keeping(numpy.from_dlpack),
    "to_dlpack": keeping(lambda tensor: from_dlpack(to_dlpack(tensor))),
    "an item": lambda _, tensor: tensor.storage()[5],
    "sizes": lambda _, tensor: (len(tensor.storage()), tensor.storage().nbytes()),
    "a copy": lambda _, tensor: copy.deepcopy(tensor.storage())[7],
    "a tensor of a storage": lambda _, tensor: torch.empty(0).set_(tensor.storage(), 0, tensor.shape).sum().item(),
    "fill_": fill}


class Memory(support.WithDaemon):
    def check(self, make, **options):
        plain, ours = make().train(), make().fit(self.pool, **options)
        self.assertEqual(plain.seen, ours.seen)
        for one, other in zip(plain.model.parameters(), ours.model.parameters()):
            self.assertTrue(torch.equal(one, other))
        return ours

    def test_memory_that_others_get_is_brought_and_stays(self):
        for name, use in WAYS.items():
            for within in (False, True):
                with self.subTest(name, within=within):
                    ours = self.check(lambda use=use, within=within: Script(use, within))
                    # A step is left only where memory is handed out within it.
                    self.assertEqual(ours.run.stats()["departures"], 2 if within else 0, ours.run.summary())
        self.assertFalse(hasattr(torch.Tensor.storage, "__wrapped__"))
        self.assertIs(to_dlpack, torch._C._to_dlpack)

    def test_what_only_the_cycle_collector_frees_leaves(self):
        class Cycles(Script):
            """The second step, which is recorded, has no such tensors that live on."""

            def __init__(self):
                super().__init__()
                for layer in self.model:
                    layer.register_forward_hook(self.keep)

            def keep(self, _, inputs, output):
                if len(self.seen) == 1:
                    gc.collect()
                holder = [output.detach().repeat(16, 1) * 1.5]
                holder.append(holder)

        self.addCleanup(gc.enable)
        gc.disable()
        ours = self.check(Cycles, memory="75%")
        stats = ours.run.stats()
        self.assertGreater(stats["planned_steps"], 4, ours.run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])
        self.assertNotIn("exceeded", ours.run.summary())

    def test_memory_that_is_lent_is_not_taken_back(self):
        # As of an activation that the script holds longer than the step that was recorded: it may leave, until it is lent.
        tensor, script = torch.full((4096,), 2.0), Script()
        held = StorageWeakRef(tensor.storage())
        with hyperoffload.fit(script.model, script.optimizer, device_memory="45%", pool=self.pool, replan="never") as run:
            run._demand.ended.append(held)
            array = numpy.from_dlpack(tensor)
            run._demand.limit = lambda: 1
            run._demand.room(0)
            self.assertEqual(array.sum(), 8192)
            self.assertEqual(tensor.numel(), array.size)
            self.assertNotEqual(tensor.data_ptr(), 0)

    def test_an_activation_goes_by_a_queue(self):
        class Sending(Script):
            def __init__(self):
                super().__init__(within=True, batch=2048)
                self.model[0].register_forward_hook(self.send)
                self.queue, self.back = CONTEXT.Queue(), CONTEXT.SimpleQueue()

            def send(self, _, inputs, output):
                if self.step in (4, 6):
                    self.queue.put(output.detach())
                    process = CONTEXT.Process(target=answer, args=(self.queue.get, self.back.put))
                    process.start()
                    self.found.append(self.back.get())
                    process.join()

            def uses(self, step):
                self.step = step + 1

            def train(self):
                self.found = []
                super().train()
                self.seen += self.found
                return self

        ours = self.check(Sending)
        self.assertEqual(ours.run.stats()["departures"], 2, ours.run.summary())  # its memory is another one then

    def test_a_thread_saves_tensors_of_its_own(self):
        class Saving(Script):
            def __init__(self):
                super().__init__()
                self.stop, self.own = threading.Event(), {"a": torch.ones(2000), "b": torch.ones(3)}

            def save(self):
                while not self.stop.is_set():
                    torch.save(self.own, io.BytesIO())

            def train(self):
                thread = threading.Thread(target=self.save)
                thread.start()
                try:
                    return super().train(30)
                finally:
                    self.stop.set()
                    thread.join()

        ours = self.check(Saving)
        self.assertFalse(ours.run._guard.inside)  # else Ctrl-C waits forever

    def test_a_peak_beyond_the_budget_is_said(self):
        def use(script, _):
            with script.run.paused() if script.run else contextlib.nullcontext():
                return 0

        ours = self.check(lambda: Script(use), memory="30%")
        self.assertRegex(ours.run.summary(), r"the peak exceeded the budget by [0-9.]+ MiB")

    def test_what_torch_load_gave_may_leave(self):
        def make():
            script, file = Script(), io.BytesIO()
            script.train(2)
            torch.save([script.model, script.optimizer], file)
            file.seek(0)
            script.model, script.optimizer = torch.load(file, weights_only=False)
            script.rows = script.model[1].weight.detach()[1:]
            script.array = numpy.ones(WIDTH * WIDTH + 8, numpy.float32)
            script.model[2].weight.data = torch.from_numpy(script.array[8:].reshape(WIDTH, WIDTH))
            return script

        ours = self.check(make)
        stats = ours.run.stats()
        self.assertEqual(stats["planned_steps"], 7, ours.run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])
        self.assertEqual(ours.rows.data_ptr(), ours.model[1].weight[1:].data_ptr())
        self.assertEqual(ours.array[8:].tolist(), ours.model[2].weight.flatten().tolist())

    def test_states_of_generators_stay(self):
        class Resuming(Script):
            """Takes a generator's state of a checkpoint that it has loaded some steps before."""

            def uses(self, step):
                if step == 2:
                    file = io.BytesIO()
                    torch.save([self.model.state_dict(), self.optimizer.state_dict(), torch.get_rng_state()], file)
                    file.seek(0)
                    self.kept = torch.load(file, weights_only=False)
                elif step == 5:
                    torch.set_rng_state(self.kept[2])
                elif step == 7:
                    torch.default_generator.set_state(self.kept[2])

        self.check(Resuming)

    def test_weights_that_cannot_leave_are_said_once(self):
        numbers = itertools.count()

        def of_numpy(weight):
            return torch.from_numpy(numpy.array(weight.tolist(), numpy.float32))

        def of_a_file(weight):
            path = str(self.folder / f"weights{next(numbers)}")
            weight.numpy().tofile(path)
            return torch.from_file(path, shared=True, size=weight.numel()).view(weight.shape)

        def shared(weight):
            return weight.clone().share_memory_()

        class Fixed(Script):
            def __init__(self, ways):
                super().__init__()
                self.arrays = []
                for layer, way in zip(self.model, ways):
                    weight = layer.weight
                    weight.data = way(weight.detach())
                    if way is of_numpy:
                        self.arrays.append(weight.detach().numpy())

        numpys, files = "in memory of numpy, a buffer or another library", "in shared memory or a mapped file"
        for ways, words in (
                ([of_numpy], rf"1 tensor stays on the device, 16 KiB, .*: 0\.weight \(16 KiB, {numpys}\)"),
                ([of_a_file], rf"1 tensor stays .*: 0\.weight \(16 KiB, {files}\)"),
                ([shared], rf"1 tensor stays .*: 0\.weight \(16 KiB, {files}\)"),
                ([of_numpy, shared, of_a_file, shared],
                 rf"4 tensors stay on the device, 64 KiB, .*: 0\.weight \(.*{numpys}\), 1\.weight \(.*{files}\), "
                 r"2\.weight .*, and 1 more")):
            with self.subTest([way.__name__ for way in ways]):
                ours = self.check(lambda ways=ways: Fixed(ways), memory="70%")
                self.assertEqual(ours.run.stats()["planned_steps"], 7, ours.run.summary())
                self.assertRegex(ours.messages, words)
                self.assertEqual(ours.messages.count("on the device"), 1, ours.messages)
                self.assertLessEqual(ours.run.stats()["peak_allocated_bytes"], 1.02 * ours.run.stats()["budget_bytes"])
        self.assertNotIn("on the device", self.check(Script, memory="70%").messages)

    def test_large_memory_that_is_handed_out_is_said_once_for_each_line(self):
        class Large(Script):
            def __init__(self, size):
                super().__init__()
                self.size, self.large = size, []

            def uses(self, step):
                if step in (3, 4, 5):
                    self.large.append(torch.ones(self.size, dtype=torch.uint8))
                    self.large[-1].storage()  # one line

        ours = self.check(lambda: Large(1 << 20), memory="8MiB")
        self.assertEqual(ours.messages.count("hands out memory"), 1, ours.messages)
        self.assertRegex(ours.messages, r"storage\(\) at \S*memory_test\.py:\d+ hands out memory of 1 MiB, which stays")
        self.assertNotIn("hands out", self.check(lambda: Large((1 << 20) - 4), memory="8MiB").messages)

    def test_weights_that_come_late_may_leave(self):
        class Late(Script):
            """From a step on it keeps averages, in copies made before the run; a data set comes late, too."""

            def __init__(self):
                super().__init__()
                self.averages = copy.deepcopy(self.model)
                self.data = torch.randn(self.batch, WIDTH)

            def uses(self, step):
                if step < 3:
                    return
                self.seen.append(self.data[step:step + 4].sum().item() + self.data[[1, 3]].sum().item())
                with torch.no_grad():
                    for average, value in zip(self.averages.parameters(), self.model.parameters()):
                        average.lerp_(value, 0.5)

            def train(self, steps=9):
                super().train(steps)
                self.seen += [average.sum().item() for average in self.averages.parameters()]
                self.loose = self.run and [self.run._demand.knows(each.untyped_storage() if hasattr(
                    each, "untyped_storage") else each._storage()) for each in (self.averages[2].weight, self.data)]
                return self

        ours = self.check(Late, memory="60%")
        stats = ours.run.stats()
        self.assertGreaterEqual(stats["planned_steps"], 6, ours.run.summary())  # the data may need room that the plan takes
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])
        self.assertEqual(ours.loose, [True, False])

    def test_averages_that_each_step_writes_are_the_plans(self):
        class Averaging(Script):
            """Keeps averages of the weights outside the model, in copies made before the run."""

            def __init__(self):
                super().__init__()
                self.averages = copy.deepcopy(self.model)

            def uses(self, step):
                with torch.no_grad():
                    for average, value in zip(self.averages.parameters(), self.model.parameters()):
                        average.lerp_(value, 0.5)
                self.seen += [average.sum().item() for average in self.averages.parameters()]

        for replan in ("once", "auto"):
            stats = self.check(Averaging, memory="25%", replan=replan).run.stats()
            self.assertEqual((stats["planned_steps"], stats["departures"]), (6, 0), stats)
            self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_batches_that_are_changed_in_place_are_not_the_plans(self):
        class Scaling(Script):
            """Each step has a batch of its own, which no operator has made."""

            def train(self):
                for step in range(9):
                    batch = torch.tensor([[float(step)] * WIDTH] * self.batch).div_(9)
                    loss = self.model(batch).square().mean()
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    self.seen.append(loss.item())
                return self

        stats = self.check(lambda: Scaling(batch=64)).run.stats()
        self.assertEqual((stats["planned_steps"], stats["departures"]), (6, 0), stats)

    def test_processes_that_are_forked_find_what_the_script_made(self):
        class Loading(Script):
            """Makes its data within the run, which workers of a loader read in each epoch."""

            def train(self):
                data = torch.utils.data.TensorDataset(torch.randn(2048, WIDTH))  # more than the budget
                for _ in range(3):
                    for batch, in torch.utils.data.DataLoader(data, 512, num_workers=2,
                                                              multiprocessing_context="fork"):
                        loss = self.model(batch).square().mean()
                        self.optimizer.zero_grad()
                        loss.backward()
                        self.optimizer.step()
                        self.seen.append(loss.item())
                return self

        for replan in ("once", "never"):
            with self.subTest(replan):
                ours = self.check(Loading, replan=replan)
                self.assertEqual(ours.run.stats()["steps"], 12)

    def test_batches_of_another_process_come_in_any_order(self):
        def send(queue, end):
            for number in range(10):
                queue.put(torch.full((512, WIDTH), 0.1 * number))
            end.wait()

        class Loading(Script):
            """Takes batches as a DataLoader does: now and then one more while another worker is late. A step has `parts`."""

            def __init__(self, parts):
                super().__init__()
                self.parts = parts

            def train(self):
                queue, end, taken = CONTEXT.Queue(), CONTEXT.Event(), []
                process = CONTEXT.Process(target=send, args=(queue, end))
                process.start()
                for number, count in enumerate((1, 1, 1, 1, 2, 0, 1, 2, 0, 1)):
                    taken += [queue.get() for _ in range(count)]
                    loss = self.model(taken.pop(0)).square().mean()
                    loss.backward()
                    if number % self.parts == self.parts - 1:
                        self.optimizer.step()
                        self.optimizer.zero_grad()
                    self.seen.append(loss.item())
                end.set()
                process.join()
                return self

        for parts in (1, 2):
            stats = self.check(lambda parts=parts: Loading(parts), memory="60%").run.stats()
            self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"], stats)
            # The first time that there are two at a time, the plan may have no room for it.
            self.assertEqual(stats["planned_steps"] + stats["departures"], 10 // parts - 2, stats)
            self.assertLessEqual(stats["departures"], 1, stats)

    def test_a_forked_process_does_not_use_what_is_away(self):
        def read(tensor, put):
            for way in (torch.sum, torch.Tensor.tolist):
                try:
                    way(tensor)
                    put("a value")
                except RuntimeError as error:
                    put(str(error))

        def use(script, tensor):
            back = CONTEXT.SimpleQueue()
            process = CONTEXT.Process(target=read, args=(tensor, back.put))
            process.start()
            script.said += [back.get(), back.get()]
            process.join()
            return 0

        class Reading(Script):
            def __init__(self):
                super().__init__(use)
                self.said = []

        ours = self.check(Reading, replan="never", memory="30%")
        words = "neither a process that was forked nor another thread than the run's can bring: start it within run.paused"
        self.assertTrue(all(said == "a value" or words in said for said in ours.said), ours.said)
        self.assertTrue(any(words in said for said in ours.said))

    def test_another_thread_is_refused(self):
        def use(script, tensor):
            if script.run is None:
                return "RuntimeError"
            raised = []

            def read():
                try:
                    tensor.tolist()
                except RuntimeError as error:
                    raised.append(str(error))

            def run():
                thread = threading.Thread(target=read)
                thread.start()
                thread.join()

            run()
            self.assertRegex(raised.pop(), r"another thread than the run's uses a tensor of the run at .*memory_test")
            with script.run.paused():
                run()
            self.assertEqual(raised, [])
            return "RuntimeError"

        self.check(lambda: Script(use))


if __name__ == "__main__":
    unittest.main()
