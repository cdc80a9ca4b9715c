"""hyperoffload.fit() where memory of the pool does not do, and flash has the rest, with a real daemon.

Usage: see support.py.
"""

import contextlib
import io
import json
import subprocess
import unittest

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload

WIDTH = 384
LAYERS = 16


class Script:
    """Trains a network whose state is several times what the pool has of memory."""

    def __init__(self, pool=None):
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.batches = {size: torch.randn(size, WIDTH) for size in (8, 512)}
        self.pool, self.losses, self.flash_bytes, self.run, self.messages = pool, [], [], None, ""

    def train(self, sizes):
        for size in sizes:
            self.optimizer.zero_grad()
            loss = self.model(self.batches[size]).square().mean()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if self.pool is not None:
                self.flash_bytes.append(flash_bytes(self.pool))
        return self

    def fit(self, sizes, **options):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), hyperoffload.fit(
                self.model, self.optimizer, device_memory="40%", pool=self.pool, **options) as self.run:
            self.train(sizes)
        self.messages = said.getvalue()
        return self


def flash_bytes(pool):
    """What jobs have of the pool's flash."""
    done = subprocess.run([support.PROGRAM, "status", "--pool", pool, "-o", "json"], capture_output=True, check=True)
    return json.loads(done.stdout)["nodes"][0]["scratch_flash_bytes"]


class Flash(unittest.TestCase):

    def check(self, ddr_bytes, sizes, **options):
        torch.set_num_threads(1)
        with support.Daemons(1, ddr_bytes=ddr_bytes, flash_bytes=256 << 20) as daemons:
            script = Script(daemons.addresses[0]).fit(sizes, **options)
            plain = Script().train(sizes)
            self.assertEqual(script.losses, plain.losses)
            for ours, theirs in zip(script.model.parameters(), plain.model.parameters()):
                self.assertTrue(torch.equal(ours, theirs))
            self.assertEqual(flash_bytes(script.pool), 0)  # all is given back
        return script

    def test_state_beyond_the_pools_memory_is_on_flash_before_and_under_the_plan(self):
        script = self.check(16 << 20, [8] * 8)
        self.assertGreater(script.flash_bytes[0], 0, script.messages)
        self.assertGreater(script.flash_bytes[-1], 0, script.messages)
        self.assertRegex(script.run.summary(), "6 of 8 steps ran under the plan")

    def test_shapes_whose_plans_want_values_on_other_tiers_take_turns(self):
        script = self.check(28 << 20, [8] * 4 + [512] * 4 + [8] * 2 + [512] * 2 + [8, 512], replan="auto")
        self.assertNotIn("conflict", script.messages)


if __name__ == "__main__":
    unittest.main()
