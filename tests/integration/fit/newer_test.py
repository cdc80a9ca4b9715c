"""What newer releases of PyTorch, or a CUDA device, have alone: fused optimizers on the processor, torch.compile,
CUDA graphs. Tests that run everywhere are elsewhere, since one case that is left out skips its file.

Usage: see support.py.
"""

import unittest

import support  # first: it finds PyTorch and the package
import needs
import torch

import compiled_test
import fit_test
import hyperoffload
from compiled_test import WIDTH
from fit_test import Script


class Fused(support.WithDaemon):
    assert_same = fit_test.Fit.assert_same

    def test_fused_optimizers_run_index_by_index(self):
        def train(name, pool=None, **options):
            script = Script(optimizer=lambda parameters: getattr(torch.optim, name)(parameters, 1e-3, fused=True, **options),
                            batch=lambda step: 1)  # small beside what one call of the optimizer takes
            return script.fit(pool, 7) if pool else script.train(7)

        try:
            torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1, fused=True)
        except (TypeError, RuntimeError):
            needs.skip_case(f"PyTorch {torch.__version__[0]} has no fused optimizers on the processor")
        for name, options in (("AdamW", {}), ("Adam", {"amsgrad": True}), ("SGD", {"momentum": 0.9})):
            with self.subTest(name):
                ours = train(name, self.pool, **options)
                self.assert_same(train(name, **options), ours)
                stats = ours.run.stats()
                self.assertEqual(stats["planned_steps"], 5, ours.run.summary())
                self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"])

    def test_a_fused_optimizer_with_scaled_gradients(self):
        class Scaling(Script):
            def __init__(self):
                super().__init__(optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-3, fused=True))
                self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

            def train(self, steps):
                for step in range(steps):
                    loss = self.loss(step)
                    self.optimizer.zero_grad()
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.seen.append([loss.item(), self.scaler.get_scale()])
                return self

        try:
            Scaling()
        except (TypeError, RuntimeError, AttributeError):
            needs.skip_case(f"PyTorch {torch.__version__[0]} has no fused optimizers on the processor")
        ours = Scaling().fit(self.pool, 7)
        self.assert_same(Scaling().train(7), ours)
        self.assertEqual(ours.run.stats()["planned_steps"], 5, ours.run.summary())


class Compiled(support.WithDaemon):
    setUp, fit = compiled_test.Compiled.setUp, compiled_test.Compiled.fit

    def test_what_torch_compile_made_is_refused(self):
        if not hasattr(torch, "compile"):
            needs.skip_case("PyTorch 1 has no torch.compile")

        def plain(x):
            return torch.tanh(x) * 2

        x, other = torch.randn(2, WIDTH), torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        whole = torch.compile(other, backend="eager")
        function, unused = torch.compile(plain, backend="eager"), torch.compile(lambda x: x + 1, backend="eager")
        inside = torch.nn.Sequential(self.model[0], torch.nn.GELU())
        inside[1].compile(backend="eager")
        for model in (torch.compile(self.model, backend="eager"), inside):
            with self.assertRaisesRegex(ValueError, r"is compiled by torch\.compile: .*TORCHDYNAMO_DISABLE=1"):
                self.fit(model)
        before = function(x), whole(x), inside[1](x)
        here = r" at .*newer_test\.py:\d+ is compiled by torch\.compile: .*run\.paused"
        with self.fit() as run:
            for call, name in ((lambda: function(x), "a function"), (lambda: unused(x), "a function"),
                               (lambda: whole(x), "OptimizedModule"), (lambda: inside[1](x), "a function"),
                               (lambda: torch.compile(plain), "")):
                with self.assertRaisesRegex(RuntimeError, name + here):
                    call()
            with run.paused():
                self.assertTrue(all(map(torch.equal, before, (function(x), whole(x), inside[1](x)))))
            for _ in range(5):
                self.optimizer.zero_grad()
                self.model(torch.randn(256, WIDTH)).square().mean().backward()
                self.optimizer.step()
        self.assertEqual(run.stats()["planned_steps"], 3, run.summary())
        with self.assertRaisesRegex(RuntimeError, "a function" + here):
            hyperoffload.record(lambda: function(self.model(x)), self.model, self.optimizer)
        self.assertTrue(all(map(torch.equal, before, (function(x), whole(x), inside[1](x)))))

    def test_a_cuda_graph_is_refused(self):
        if not torch.cuda.is_available():
            needs.skip_case("no CUDA device")
        x, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        with self.fit() as run:
            for _ in range(2):
                with self.assertRaisesRegex(RuntimeError, "compiled by a CUDA graph"):
                    graph.replay()
            with self.assertRaisesRegex(RuntimeError, "compiled by a CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                self.fail("it captures")
            with run.paused():
                graph.replay()
        self.assertEqual(y.tolist(), [2.0] * 8)


if __name__ == "__main__":
    unittest.main()
