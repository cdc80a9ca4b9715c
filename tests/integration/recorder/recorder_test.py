"""Records a small transformer with Adam, and plans and verifies what came out.

Usage: recorder_test.py PATH_OF_HYPEROFFLOAD FOLDER_OF_THE_PYTHON_PACKAGE [unittest arguments]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from with_torch import torch  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.abspath(sys.argv.pop(1)))

from hyperoffload import Recorder  # noqa: E402

BACKWARD = torch.autograd.backward

HARDWARE = {"name": "test", "deviceBytes": str(1 << 30),
            "localDdr": {"capacityBytes": str(1 << 34),
                         "read": {"bytesPerS": "10000000000", "latencyNs": "5000"},
                         "write": {"bytesPerS": "10000000000", "latencyNs": "5000"}}}


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    def __init__(self, words=100, width=64, layers=3):
        super().__init__()
        self.table = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.Sequential(*[Block(width, 4) for _ in range(layers)])
        self.head = torch.nn.Linear(width, words)

    def forward(self, ids):
        return self.head(self.blocks(self.table(ids)))


def step(model, optimizer, ids):
    optimizer.zero_grad()
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    return loss.item()


def record(steps=3, warm=0):
    torch.manual_seed(1)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters())
    ids = torch.randint(0, 100, (2, 16))
    for _ in range(warm):
        step(model, optimizer, ids)
    recorder = Recorder(model, optimizer, name="transformer")
    losses = []
    for _ in range(steps):
        with recorder:
            losses.append(step(model, optimizer, ids))
    return model, optimizer, recorder, losses


def total(graph, kind):
    return sum(int(s["bytes"]) for s in graph["storages"] if s["kind"] == kind)


class Record(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.optimizer, recorder, cls.losses = record()
        cls.graph = recorder.graph()
        cls.weights = sum(p.numel() * 4 for p in cls.model.parameters())

    def test_kinds_add_up_to_the_model(self):
        self.assertEqual(total(self.graph, "WEIGHT"), self.weights)
        self.assertEqual(total(self.graph, "GRADIENT"), self.weights)
        # Two moments, and a step count of 4 bytes a parameter where that is on the device.
        counts = len(list(self.model.parameters()))
        self.assertIn(total(self.graph, "OPTIMIZER_STATE"),
                      (2 * self.weights, 2 * self.weights + 4 * counts))
        inputs = [s for s in self.graph["storages"] if s["kind"] == "INPUT"]
        self.assertIn(str(2 * 16 * 8), [s["bytes"] for s in inputs])
        self.assertEqual({s["persistent"] for s in inputs}, {False})

    def test_persistence_follows_the_kind(self):
        for storage in self.graph["storages"]:
            lasting = storage["kind"] in ("WEIGHT", "OPTIMIZER_STATE")
            self.assertEqual(storage["persistent"], lasting, storage)

    def test_phases_come_in_their_order(self):
        phases = [op["phase"] for op in self.graph["ops"]]
        seen = [p for i, p in enumerate(phases) if i == 0 or p != phases[i - 1]]
        expected = ["forward", "backward", "optimizer"]
        self.assertEqual([p for p in seen if p != "zero_grad"][:3], expected)
        names = [op["name"] for op in self.graph["ops"] if op["phase"] == "forward"]
        self.assertEqual(sum("layer_norm" in name for name in names), 6)
        self.assertEqual(sum("addmm" in name for name in names), 13)

    def test_weights_are_named_and_brought_up_to_date_in_place(self):
        ids = {s["name"]: s["id"] for s in self.graph["storages"]}
        weight = ids["blocks.1.qkv.weight"]
        writers = [op for op in self.graph["ops"] if weight in op["writes"]]
        self.assertTrue(writers)
        for op in writers:
            self.assertEqual(op["phase"], "optimizer")
            self.assertIn(weight, op["reads"])
        self.assertIn("blocks.1.qkv.weight.exp_avg", ids)
        self.assertIn("blocks.1.qkv.weight.grad", ids)

    def test_durations_are_real(self):
        durations = [int(op["durationNs"]) for op in self.graph["ops"]]
        self.assertTrue(all(0 < d < 10 ** 10 for d in durations))

    def test_analyze_and_verify_take_it(self):
        with tempfile.TemporaryDirectory(prefix="ho-recorder-") as folder:
            paths = {name: os.path.join(folder, name) for name in ("g.json", "hw.json", "p.hos")}
            with open(paths["g.json"], "w", encoding="utf-8") as out:
                json.dump(self.graph, out)
            with open(paths["hw.json"], "w", encoding="utf-8") as out:
                json.dump(HARDWARE, out)
            done = subprocess.run(
                [PROGRAM, "analyze", paths["g.json"], "--hardware", paths["hw.json"],
                 "--device-memory", "60%", "--out", paths["p.hos"], "-o", "json"],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            answer = json.loads(done.stdout)
            self.assertEqual(answer["ops"], len(self.graph["ops"]))
            self.assertGreater(answer["peak_unmanaged_bytes"], 4 * self.weights)
            verified = subprocess.run([PROGRAM, "verify", paths["p.hos"], "--graph", paths["g.json"]],
                                      capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_recording_changes_nothing(self):
        torch.manual_seed(1)
        model = Transformer()
        optimizer = torch.optim.Adam(model.parameters())
        ids = torch.randint(0, 100, (2, 16))
        self.assertEqual([step(model, optimizer, ids) for _ in range(3)], self.losses)
        self.assertNotIn("step", vars(self.optimizer).keys() - vars(optimizer).keys())
        self.assertIs(torch.autograd.backward, BACKWARD)


class Storages(unittest.TestCase):
    def test_a_first_step_has_its_states_as_later_ones_do(self):
        first, warm = record(steps=1)[2].graph(), record(steps=1, warm=2)[2].graph()
        self.assertEqual(total(first, "OPTIMIZER_STATE"), total(warm, "OPTIMIZER_STATE"))

    def test_an_address_used_again_is_another_storage(self):
        model = torch.nn.Linear(64, 64)
        x = torch.ones(64, 64)
        addresses = set()
        recorder = Recorder(model)
        with recorder, torch.no_grad():
            for _ in range(50):
                addresses.add((x * 2).data_ptr())
        graph = recorder.graph()
        made = [s for s in graph["storages"] if s["kind"] == "ACTIVATION"]
        self.assertEqual(len(made), 50)
        self.assertLess(len(addresses), 50, "no address came back; the test shows nothing")

    def test_running_statistics_are_written_and_random_calls_not_repeated(self):
        model = torch.nn.BatchNorm1d(16)
        recorder = Recorder(model)
        with recorder:
            model(torch.ones(8, 16)).sum().backward()
            torch.poisson(torch.ones(4))
            torch.nn.functional.rrelu(torch.ones(4), training=True)
        graph = recorder.graph()
        names = {s.get("id", 0): s["name"] for s in graph["storages"]}
        forward = next(op for op in graph["ops"]
                       if "batch_norm" in op["name"] and "backward" not in op["name"])
        written = {names[s] for s in forward["writes"]}
        self.assertTrue({"running_mean", "running_var"} <= written, written)
        self.assertFalse(forward.get("recomputable", False))
        again = [op["name"] for op in graph["ops"] if op.get("recomputable", False)]
        self.assertFalse([name for name in again if "poisson" in name or "rrelu" in name])

    def test_evaluation_only_reads_running_statistics(self):
        model = torch.nn.BatchNorm1d(16).eval()
        recorder = Recorder(model)
        with recorder, torch.no_grad():
            model(torch.ones(8, 16))
        graph = recorder.graph()
        kept = {s.get("id", 0) for s in graph["storages"] if s.get("persistent", False)}
        for op in graph["ops"]:
            self.assertFalse(kept & set(op["writes"]), op)

    def test_calls_on_lists_are_one_op_for_each_place(self):
        model = Transformer(layers=1)
        recorder = Recorder(model)
        tensors = [torch.ones(100), torch.ones(300)]
        with recorder:
            torch._foreach_add_(tensors, [torch.ones(100), torch.ones(300)])
            made = torch._foreach_mul(tensors, 2.0)
        ops = recorder.graph()["ops"]
        for name in ("_foreach_add_", "_foreach_mul"):
            parts = [op for op in ops if name in op["name"]]
            self.assertEqual(len(parts), 2, ops)
            self.assertEqual([len(op["writes"]) for op in parts], [1, 1])
            small, large = (int(op["durationNs"]) for op in parts)
            self.assertAlmostEqual(small * 3, large, delta=3)
        self.assertNotEqual(made[0].data_ptr(), made[1].data_ptr())

    def test_a_call_that_only_returns_a_tuple_is_one_op(self):
        library = torch.library.Library("ho_recorder_test", "DEF")
        library.define("_fused_pair(Tensor x) -> (Tensor, Tensor)")
        library.impl("_fused_pair", lambda x: (x * 2, x * 3), "CPU")
        recorder = Recorder(torch.nn.Linear(8, 8))
        with recorder, torch.no_grad():
            torch.ops.ho_recorder_test._fused_pair(torch.ones(4, 8))
        ops = recorder.graph()["ops"]
        parts = [op for op in ops if "_fused_pair" in op["name"]]
        self.assertEqual(len(parts), 1, ops)
        self.assertEqual(len(parts[0]["writes"]), 2)

    def test_collectives_are_fixed_and_never_run_again(self):
        import torch.distributed as dist
        model = Transformer(layers=1)
        recorder = Recorder(model)
        with tempfile.TemporaryDirectory(prefix="ho-group-") as folder:
            dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "group"),
                                    rank=0, world_size=1)
            try:
                with recorder:
                    value = torch.ones(64) * 2
                    dist.all_reduce(value)
                    value * 3
            finally:
                dist.destroy_process_group()
        ops = recorder.graph()["ops"]
        fixed = [op for op in ops if op["fixed"]]
        self.assertEqual([op["name"].split(".")[:2] for op in fixed], [["c10d", "allreduce_"]], ops)
        self.assertEqual([op["group"] for op in fixed], ["ranks"])
        self.assertFalse(fixed[0]["recomputable"])
        self.assertEqual(fixed[0]["reads"], fixed[0]["writes"])
        self.assertEqual(fixed[0]["reads"], ops[-1]["reads"])

    def test_views_share_a_storage_and_are_no_ops(self):
        model = torch.nn.Linear(8, 8)
        recorder = Recorder(model)
        with recorder, torch.no_grad():
            x = torch.ones(4, 8)
            x.t()[0].add_(1)
            y = x.view(8, 4) * 2
        self.assertEqual(y.shape, (8, 4))
        graph = recorder.graph()
        self.assertEqual([op["name"].split(".")[1] for op in graph["ops"]], ["ones", "add_", "mul"])
        self.assertEqual(graph["ops"][1]["writes"], graph["ops"][0]["writes"])
        self.assertEqual(graph["ops"][2]["reads"], graph["ops"][0]["writes"])

    def test_gradients_that_accumulate_outlive_the_step(self):
        model = torch.nn.Linear(8, 8)
        model(torch.ones(4, 8)).sum().backward()
        recorder = Recorder(model)
        with recorder:
            model(torch.ones(4, 8)).sum().backward()
        gradients = [s for s in recorder.graph()["storages"] if s["name"] == "weight.grad"]
        self.assertEqual([s["persistent"] for s in gradients], [True])

    def test_a_step_that_fails_is_not_kept_and_undone(self):
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = Recorder(model, optimizer)
        with self.assertRaises(ZeroDivisionError), recorder:
            raise ZeroDivisionError
        with self.assertRaises(RuntimeError):
            recorder.graph()
        self.assertNotIn("zero_grad", vars(optimizer))


class Kinds(unittest.TestCase):
    """Storages that are not parameters, gradients or optimizer states."""

    def test_sparse_gradients_write_no_tokens(self):
        model = torch.nn.Embedding(100, 16, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters())
        recorder = Recorder(model, optimizer)
        for _ in range(2):
            tokens = torch.randint(0, 100, (4, 8))
            with recorder:
                optimizer.zero_grad()
                model(tokens).sum().backward()
                optimizer.step()
        graph = recorder.graph()
        inputs = {s["id"]: s for s in graph["storages"] if s["kind"] == "INPUT"}
        self.assertIn(str(tokens.numel() * 8), [s["bytes"] for s in inputs.values()])
        self.assertFalse(any(s["persistent"] for s in inputs.values()))
        for op in graph["ops"]:
            self.assertFalse(set(op["writes"]) & set(inputs), op)

    def test_frozen_weights_outside_the_model_are_weights_and_batches_are_not(self):
        model, frozen = torch.nn.Linear(16, 16), torch.randn(16, 16)
        static = torch.zeros(4, 16)
        recorder = Recorder(model)
        for step in range(2):
            static.copy_(torch.full((4, 16), float(step)))
            batch = torch.randn(4, 16)
            with recorder:
                model((batch + static) @ frozen).sum().backward()
        outside = [s for s in recorder.graph()["storages"]
                   if s["kind"] == "WEIGHT" and s["name"] not in ("weight", "bias")]
        self.assertEqual([(s["bytes"], s["persistent"]) for s in outside], [("1024", True)])
        inputs = [s for s in recorder.graph()["storages"] if s["kind"] == "INPUT"]
        self.assertEqual([(s["bytes"], s["persistent"]) for s in inputs], 2 * [("256", False)])

    def test_a_data_set_is_no_input_its_batch_is(self):
        model, data = torch.nn.Linear(16, 16), torch.randn(1000, 16)
        for pick in (lambda i: data[torch.arange(4) + i],
                     lambda i: torch.stack([data[i + k] for k in range(4)])):
            recorder = Recorder(model)
            for step in range(2):
                with recorder:
                    model(pick(step)).sum().backward()
            self.assertNotIn(str(data.numel() * 4),
                             [s["bytes"] for s in recorder.graph()["storages"]])

    def test_a_buffer_to_which_a_step_adds_is_a_cache(self):
        model = torch.nn.Linear(16, 16)
        model.register_buffer("keys", torch.zeros(32, 16))
        recorder = Recorder(model)
        for step in range(2):
            with recorder, torch.no_grad():
                model.keys[step:step + 1] = model(torch.ones(1, 16))
                (torch.ones(1, 16) @ model.keys.t()).softmax(-1)
        kinds = {s["name"]: (s["kind"], s["persistent"]) for s in recorder.graph()["storages"]}
        self.assertEqual(kinds["keys"], ("KV_CACHE", True))
        self.assertEqual(kinds["weight"], ("WEIGHT", True))

    def test_a_call_that_writes_all_of_what_was_allocated_does_not_read_it(self):
        model = torch.nn.Linear(16, 16)
        recorder = Recorder(model)
        with recorder, torch.no_grad():
            late, parts = torch.empty(32, 16), torch.empty(32, 16)
            rows = model(torch.ones(32, 16))
            late.bernoulli_(0.5)
            parts[:16].copy_(rows[:16])
            parts[16:].copy_(rows[16:])
            (late * parts).sum()
        ops = recorder.graph(lambda storage: True)["ops"]
        allocated = [op for op in ops if op["name"].startswith("aten.empty")]
        (late,), (parts,) = (op["writes"] for op in allocated)
        whole, = [op for op in ops if op["name"].startswith("aten.bernoulli_")]
        self.assertEqual((whole["reads"], whole["writes"]), ([], [late]))
        for op in [op for op in ops if op["name"].startswith("aten.copy_")]:
            self.assertIn(parts, op["reads"])
            self.assertEqual(op["writes"], [parts])

    def test_what_the_script_has_after_the_step_is_an_output(self):
        model = torch.nn.Linear(16, 16)
        recorder = Recorder(model)
        for _ in range(2):
            model.zero_grad()
            with recorder:
                made = model(torch.ones(4, 16))
                loss = (made * made).sum()
                loss.backward()
                del made
        kinds = [(s["kind"], s["bytes"], s["persistent"]) for s in recorder.graph()["storages"]]
        self.assertEqual([each for each in kinds if each[0] == "OUTPUT"], [("OUTPUT", "4", True)])
        self.assertIn(("ACTIVATION", "256", False), kinds)
        del loss

    def test_storages_have_the_names_of_modules(self):
        names = [s["name"] for s in record(steps=1)[2].graph()["storages"]]
        self.assertTrue(any(name.startswith("blocks.1.up.addmm#") for name in names), names)
        self.assertTrue(any(name.startswith("blocks.2.gelu#") for name in names), names)

    def test_clipping_belongs_to_the_optimizer_and_the_next_batch_does_not(self):
        model = torch.nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = Recorder(model, optimizer)
        with recorder:
            for _ in range(2):
                model(torch.ones(4, 16)).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        phases = {}
        for op in recorder.graph()["ops"]:
            phases.setdefault(op["name"].split(".")[1], []).append(op["phase"])
        self.assertEqual(phases["linalg_vector_norm" if "linalg_vector_norm" in phases else "norm"][-1],
                         "optimizer")
        self.assertEqual(phases["addmm"], ["forward", "forward"])

    def test_ops_that_are_left_out_count_with_others(self):
        model = torch.nn.Linear(16, 16)
        recorder = Recorder(model)
        with recorder, torch.no_grad():
            model(torch.ones(32, 16)).tanh().sum()

        def took_ns(keep):
            ops = recorder.graph(keep)["ops"]
            return [op["name"] for op in ops], sum(int(op["durationNs"]) for op in ops)

        names, whole_ns = took_ns(lambda storage: True)
        self.assertIn("aten.tanh.default", names)
        names, part_ns = took_ns(lambda storage: storage.name == "weight")
        self.assertNotIn("aten.tanh.default", names)
        self.assertEqual(part_ns, whole_ns)

    def test_durations_of_another_shape_do_not_count(self):
        model = torch.nn.Linear(64, 64)
        recorder = Recorder(model)
        for rows in (2000, 2000, 2):
            with recorder, torch.no_grad():
                model(torch.ones(rows, 64))
        durations = [step.ops[-1].duration_ns for step in recorder._steps]
        self.assertEqual(int(recorder.graph()["ops"][-1]["durationNs"]), durations[-1])


class Schedulers(unittest.TestCase):
    """A learning-rate scheduler wraps step() of its optimizer and warns where the wrap is gone."""

    def run_steps(self, scheduler_first):
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = None
        if scheduler_first:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        recorder = Recorder(model, optimizer)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                with recorder:
                    if scheduler is None:
                        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
                    optimizer.zero_grad()
                    model(torch.ones(4, 8)).sum().backward()
                    optimizer.step()
                    scheduler.step()
            for _ in range(2):  # after the recording
                optimizer.step()
                scheduler.step()
        self.assertEqual([str(w.message) for w in told if "step()" in str(w.message)], [])
        marks = ("_with_counter", "_wrapped_by_lr_sched")
        self.assertTrue(any(hasattr(optimizer.step, mark) for mark in marks))
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.5 ** 5)
        phases = {op["phase"] for op in recorder.graph()["ops"]}
        self.assertIn("optimizer", phases)

    def test_one_made_before_the_recording_does_not_warn(self):
        self.run_steps(True)

    def test_one_made_within_the_recording_keeps_its_wrap(self):
        self.run_steps(False)

    def test_the_marks_are_seen_while_a_step_is_recorded(self):
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        before = optimizer.step
        marks = set(vars(before))
        self.assertTrue(marks & {"_with_counter", "_wrapped_by_lr_sched"}, marks)
        with Recorder(model, optimizer):
            self.assertIsNot(optimizer.step, before)
            for mark in marks:
                self.assertTrue(hasattr(optimizer.step, mark), mark)
        self.assertIs(optimizer.step, before)


if __name__ == "__main__":
    unittest.main(verbosity=1)
