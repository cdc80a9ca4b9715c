"""Compiled parts of a script are refused with the reason, by fit(), record() and Recorder.

Usage: see support.py.
"""

import os
import subprocess
import sys
import unittest

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload

WIDTH = 64
EAGER = """
import hyperoffload, torch
@torch.jit.script
def act(x):
    return torch.tanh(x) * 2
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with hyperoffload.fit(model, optimizer, device_memory="90%", pool="POOL") as run:
    for _ in range(5):
        optimizer.zero_grad()
        act(model(torch.randn(64, 64))).square().mean().backward()
        optimizer.step()
print(run.summary())
"""


@torch.jit.script
def scripted(x):
    return torch.tanh(x) * 2


class Compiled(support.WithDaemon):
    def setUp(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, model=None):
        return hyperoffload.fit(model or self.model, self.optimizer, device_memory="90%", pool=self.pool)

    def test_a_model_with_compiled_parts_is_refused_at_once(self):
        inside = torch.nn.Sequential(self.model[0], torch.jit.script(torch.nn.GELU()))
        with self.assertRaisesRegex(ValueError, r"1 is compiled by torch\.jit: .* set PYTORCH_JIT=0"):
            self.fit(inside)
        with self.assertRaisesRegex(ValueError, r"the model is compiled by torch\.jit"):
            hyperoffload.Recorder(torch.jit.trace(self.model, torch.randn(2, WIDTH)))

        class OptimizedModule(torch.nn.Module):
            """As torch.compile of PyTorch 2 makes one."""

            def __init__(self, module):
                super().__init__()
                self._orig_mod = module

        with self.assertRaisesRegex(ValueError, r"the model is compiled by torch\.compile: .*TORCHDYNAMO_DISABLE=1"):
            hyperoffload.record(lambda: None, OptimizedModule(self.model), self.optimizer)
        self.model[1]._compiled_call_impl = lambda x: x  # as Module.compile() does
        with self.assertRaisesRegex(ValueError, r"1 is compiled by torch\.compile"):
            self.fit()

    def test_a_call_of_a_compiled_function_is_refused_with_its_line(self):
        x, module = torch.randn(2, WIDTH), torch.jit.script(torch.nn.GELU())
        call, here = torch._C.ScriptFunction.__call__, r"compiled_test\.py:\d+ is compiled by torch\.jit"
        with self.fit() as run:
            with self.assertRaisesRegex(RuntimeError, "scripted at .*" + here):
                scripted(x)
            with self.assertRaisesRegex(RuntimeError, here + ".*run.paused"):
                module(x)
            with run.paused():
                self.assertTrue(torch.equal(scripted(x), torch.tanh(x) * 2))
            with self.assertRaisesRegex(RuntimeError, "compiled by a CUDA graph"):
                torch.cuda.CUDAGraph.replay(object())
        with self.assertRaisesRegex(RuntimeError, here):
            hyperoffload.record(lambda: scripted(self.model(x)), self.model, self.optimizer)
        with self.assertRaisesRegex(RuntimeError, here), hyperoffload.Recorder(self.model):
            scripted(x)
        self.assertTrue(torch.equal(scripted(x), torch.tanh(x) * 2))
        module(x)
        self.assertEqual(torch._C.ScriptFunction.__call__, call)
        self.assertNotIn("__call__", vars(torch.jit.ScriptModule))

    def test_what_the_message_says_helps(self):
        done = subprocess.run([sys.executable, "-c", EAGER.replace("POOL", self.pool)], check=False,
                              capture_output=True, text=True, env={**os.environ, "PYTORCH_JIT": "0"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 of 5 steps ran under the plan", done.stdout)


if __name__ == "__main__":
    unittest.main()
