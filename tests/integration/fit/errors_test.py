"""Errors, exceptions and Ctrl-C in the steps of a script under hyperoffload.fit(), with a real daemon.

Usage: see support.py.
"""

import contextlib
import io
import pathlib
import random
import signal
import subprocess
import tempfile
import unittest

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload
from hyperoffload._torch.step import storage_of

WIDTH = 64


class Script:
    """Trains a network without states of the optimizer: each parameter changes in one operator."""

    def __init__(self):
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.losses = []

    def step(self):
        x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(len(self.losses)))
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def fit(self, pool, **options):
        return hyperoffload.fit(self.model, self.optimizer, **{"device_memory": "60%", "pool": pool, **options})


class Errors(support.WithDaemon):
    def test_an_error_of_the_pool_names_line_operator_and_tensors(self):
        for replan in ("once", "never"):
            with self.subTest(replan), tempfile.TemporaryDirectory(prefix="ho-lost-") as folder:
                config = pathlib.Path(folder, "config")
                config.write_text(f'node_name: "lost" ddr_bytes: 67108864 segment_bytes: 8388608 '
                                  f'unix_socket: "{folder}/lost.sock"')
                daemon = subprocess.Popen([support.DAEMON, "--config", str(config)], stderr=subprocess.DEVNULL)
                support.wait_for_pool(f"unix:{folder}/lost.sock", daemon)
                script = Script()
                with self.assertRaises(hyperoffload.Error) as raised:
                    with script.fit(f"unix:{folder}/lost.sock", replan=replan):
                        for _ in range(4):
                            script.step()
                        script.model[4].register_forward_pre_hook(lambda *_: (daemon.kill(), daemon.wait(), None)[2])
                        for _ in range(200):
                            script.step()
                text = str(raised.exception)
                self.assertRegex(text, r"in step \d+ at .*errors_test.py:\d+: aten\.\w+\.\w+ of ")
                # Any operator of the step may be the first that finds the pool lost.
                self.assertRegex(text, r" of .*(weight|bias|grad|[a-z]#\d+|without a name)\b.* \((32|64)x64 float32\)")
                self.assertEqual(raised.exception.name, "unavailable")

    def test_ctrl_c_at_any_time_leaves_all_values(self):
        plain, steps = Script(), 12
        history = [[value.clone() for value in plain.model.parameters()]]
        for _ in range(steps):
            plain.step()
            history.append([value.clone() for value in plain.model.parameters()])

        def interrupt(*_):
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        interrupted = 0
        for seed in range(60):
            script, said = Script(), io.StringIO()
            after_s = random.Random(seed).uniform(0.01, 0.15)
            with self.subTest(seed=seed), contextlib.redirect_stderr(said):
                try:
                    with script.fit(self.pool, replan="once" if seed % 4 else "never") as run:
                        script.step()
                        script.step()
                        signal.setitimer(signal.ITIMER_REAL, after_s)
                        for _ in range(steps - 2):
                            script.step()
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                    torch.set_grad_enabled(True)  # PyTorch's own no_grad() may have been interrupted
                done = len(script.losses)
                for now, before, after in zip(script.model.parameters(), history[done],
                                              history[min(done + 1, steps)]):
                    self.assertEqual(storage_of(now).nbytes(), storage_of(before).nbytes(), run.summary())
                    self.assertTrue(torch.equal(now, before) or torch.equal(now, after), run.summary())
                self.assertEqual(said.getvalue(), "")
        self.assertGreater(interrupted, 10)

    def test_ctrl_c_while_a_run_begins_or_pauses_leaves_all_values(self):
        class Interrupting(torch.nn.Sequential):
            """Where fit() asks for the buffers while it is set, Ctrl-C comes."""

            is_set = False

            def buffers(self, *args):
                if self.is_set:
                    self.is_set = False
                    signal.raise_signal(signal.SIGINT)
                return super().buffers(*args)

        numpy, handler, script = torch.Tensor.numpy, signal.getsignal(signal.SIGINT), Script()
        model = script.model = Interrupting(*script.model)
        values = [value.clone() for value in model.parameters()]
        model.is_set = True
        with self.assertRaises(KeyboardInterrupt), script.fit(self.pool, device_memory="45%"):
            self.fail("the block runs")
        self.assertTrue(all(map(torch.equal, values, model.parameters())))
        self.assertIs(signal.getsignal(signal.SIGINT), handler)
        self.assertIs(torch.Tensor.numpy, numpy)

        with script.fit(self.pool, device_memory="45%") as run:
            for _ in range(4):
                script.step()
            pause = run._demand.pause
            run._demand.pause = lambda: (pause(), signal.raise_signal(signal.SIGINT))
            with self.assertRaises(KeyboardInterrupt), run.paused():
                self.fail("the block runs")
            del run._demand.pause
            self.assertFalse(run._demand.is_paused())
            for _ in range(4):
                script.step()
        plain = Script()
        for _ in range(8):
            plain.step()
        self.assertEqual(plain.losses, script.losses)


if __name__ == "__main__":
    unittest.main()
