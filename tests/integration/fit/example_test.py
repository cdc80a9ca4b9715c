"""Runs tools/examples/torch as its README says: plainly, with the patch, and the comparison.

Usage: see support.py.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload

EXAMPLE = pathlib.Path(__file__).parents[3] / "tools/examples/torch"
sys.path.insert(0, str(EXAMPLE))
import train_gpt  # noqa: E402
SMALL = ["--layers", "2", "--width", "64", "--length", "32", "--batch", "8", "--steps", "6"]


class Example(support.WithDaemon):
    def run_script(self, script, *options, launcher=()):
        done = subprocess.run([sys.executable, *launcher, str(script), *SMALL, *options], check=False,
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_patched_script_has_the_same_checkpoint(self):
        output = self.check_patched()
        self.assertEqual(output.count("4 of 6 steps ran under the plan"), 1, output)

    def test_the_patched_script_has_the_same_checkpoint_on_two_ranks(self):
        output = self.check_patched(str(EXAMPLE / "ranks.py"), "2")
        self.assertEqual(output.count("4 of 6 steps ran under the plan"), 2, output)

    def check_patched(self, *launcher):
        """Returns what the patched script prints."""
        patch = (EXAMPLE / "fit.patch").read_text()
        changed = [line for line in patch.splitlines()
                   if line.startswith("+") and not line.startswith("+++")]
        self.assertLessEqual(len(changed), 5)
        self.assertIn("unix:/run/hyperoffload/control.sock", patch)
        folder = self.folder / "patched"
        folder.mkdir(exist_ok=True)
        ours = shutil.copy(EXAMPLE / "train_gpt.py", folder)
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.folder)}
        subprocess.run(["git", "apply", "-p1", "-"], cwd=folder, check=True, text=True,
                       env=environment, input=patch.replace("unix:/run/hyperoffload/control.sock", self.pool))
        outputs, checkpoints = [], []
        for script in (EXAMPLE / "train_gpt.py", ours):
            path = str(self.folder / "checkpoint")
            outputs.append(self.run_script(script, "--text", str(EXAMPLE / "train_gpt.py"),
                                           "--checkpoint", path, "--checkpoint-every", "5",
                                           "--log-every", "1", launcher=launcher))
            checkpoints.append(torch.load(path))
        losses = [[line for line in output.splitlines() if line.startswith("step ")][:6]
                  for output in outputs]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(len(losses[0]), 6)
        plain, planned = checkpoints
        for name, value in plain["model"].items():
            self.assertTrue(torch.equal(value, planned["model"][name]), name)
        for number, state in plain["optimizer"]["state"].items():
            for name, value in state.items():
                self.assertTrue(torch.equal(value, planned["optimizer"]["state"][number][name]), name)
        return outputs[1]

    def test_allocations_within_a_full_plan_have_room(self):
        for memory, layers in (("45%", "2"), ("40%", "3")):
            with self.subTest(memory):
                args = train_gpt.arguments(["--layers", layers, "--width", "128", "--length", "64", "--batch", "8",
                                            "--steps", "4", "--log-every", "10"])
                model, optimizer, scheduler = train_gpt.build(args)
                with hyperoffload.fit(model, optimizer, device_memory=memory, pool=self.pool) as run:
                    train_gpt.train(args, model, optimizer, scheduler)
                stats = run.stats()
                self.assertEqual(stats["planned_steps"], 2, run.summary())
                self.assertLessEqual(stats["peak_allocated_bytes"], stats["budget_bytes"], run.summary())

    def test_the_comparison_has_the_same_losses_and_lower_peaks(self):
        path = self.folder / "rows.json"
        output = self.run_script(EXAMPLE / "compare.py", "--pool", self.pool, "--repeat", "1",
                                 "-o", str(path))
        rows = {row["variant"]: row for row in json.loads(path.read_text())}
        self.assertEqual({row["same_losses"] for row in rows.values()}, {True}, output)
        for name, share in (("fit, 60%", 0.6), ("fit, 40%", 0.4), ("on demand, 40%", 0.4)):
            self.assertLess(rows[name]["peak_share"], 1.05 * share, output)


if __name__ == "__main__":
    unittest.main()
