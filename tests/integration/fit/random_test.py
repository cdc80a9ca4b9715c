"""Random scripts under hyperoffload.fit(): each has the bits of its plain run. HO_SEED=n repeats one.

Usage: see support.py.
"""

import contextlib
import copy
import io
import os
import random
import unittest

import support  # first: it finds PyTorch and the package
import torch

import hyperoffload

WIDTH, STEPS, SEEDS = 64, 12, 12


class Script:
    """A training script that does things at random times: all are drawn from the seed, so that the plain run
    does the same. place: the model's device."""

    place = "cpu"

    def __init__(self, seed):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), self.random.choice(
            [torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.LayerNorm(WIDTH)])) for _ in range(6)]
        self.model = torch.nn.Sequential(*layers).to(self.place)
        kind = self.random.choice([torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
        self.optimizer = kind(self.model.parameters(), lr=1e-3)
        self.sizes = self.random.choice([[64], [64, 64, 40], [64, 40, 24]])
        self.to_none = self.random.random() < 0.7
        self.seen, self.kept, self.is_busy = [], [], False
        self.rate = self.random.choice([0, 0.05, 0.2])
        self.averages = copy.deepcopy(self.model) if seed % 3 == 1 else None  # exist before the run, and come late
        for layer in layers:
            layer.register_forward_hook(lambda layer, inputs, output: self.at_random(layer, output))

    def at_random(self, layer, output):
        if self.is_busy or self.random.random() >= self.rate:
            return
        self.is_busy = True
        try:
            self.random.choice([self.log, self.look, self.keep, self.use, self.evaluate, self.copy, self.read,
                                self.scale, self.fail, self.save, self.show])(layer, output)
        finally:
            self.is_busy = False

    def log(self, _, output):
        self.seen.append(output.detach().mean().item())

    def look(self, *_):
        weight = self.random.choice(list(self.model.parameters()))
        self.seen.append(weight.norm().item())
        if weight.grad is not None:
            self.seen.append(weight.grad.abs().max().item())

    def keep(self, layer, output):
        self.kept += [output.detach(), layer[0].weight.detach()[1:], layer[0].weight.detach() * 2]

    def use(self, *_):
        if self.kept:
            value = self.kept.pop(self.random.randrange(len(self.kept)))
            self.seen.append((value * 3 if self.random.random() < 0.5 else value).sum().item())

    def evaluate(self, *_):
        with torch.no_grad():
            self.seen.append(self.model(torch.ones(16, WIDTH).to(self.place)).sum().item())

    def copy(self, layer, _):
        other = copy.deepcopy(layer[0])
        self.kept.append(other.weight.detach())
        self.seen.append(sum(value.double().sum().item()
                             for state in copy.deepcopy(self.optimizer.state_dict())["state"].values()
                             for value in state.values() if isinstance(value, torch.Tensor)))

    def read(self, layer, output):
        weight = layer[0].weight.detach()
        self.seen.append(sum(weight[0].tolist()))
        self.seen.append(float((weight if self.random.random() < 0.5 else output.detach()).cpu().numpy().sum()))

    def scale(self, *_):
        with torch.no_grad():  # no later operator of this step's backward reads it
            self.random.choice(self.model)[0].bias.mul_(0.999)
            for value in self.kept:
                if value.is_contiguous() and value.shape == (WIDTH, WIDTH):
                    value.add_(1)
                    break

    def fail(self, layer, output):
        with contextlib.suppress(RuntimeError):
            layer[0](output[..., None])

    def save(self, *_):
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        file.seek(0)
        self.seen.append(sum(value.sum().item() for value in torch.load(file, map_location="cpu").values()))

    def show(self, layer, _):
        self.seen.append(repr(layer[0].weight))

    def train(self):
        for step in range(STEPS):
            batch = torch.randn(self.sizes[step % len(self.sizes)], WIDTH).to(self.place)
            loss = self.model(batch).square().mean()
            self.optimizer.zero_grad(set_to_none=self.to_none)
            loss.backward()
            if self.random.random() < self.rate:
                self.optimizer.zero_grad(set_to_none=True)
                continue  # a step that is left out
            self.optimizer.step()
            self.at_random(self.model[0], loss)
            self.seen.append(loss.item())
            if self.averages is not None and step >= 4:
                self.average()
        return self

    def average(self):
        with torch.no_grad():
            for average, value in zip(self.averages.parameters(), self.model.parameters()):
                average.lerp_(value, 0.5)
            self.seen.append(sum(average.sum().item() for average in self.averages.parameters()))


class Random(support.WithDaemon):
    def check(self, seed, memory=None, replan=None):
        plain, ours = Script(seed).train(), Script(seed)
        ways = random.Random(seed)
        memory = memory or ways.choice(["60%", "75%"])
        with hyperoffload.fit(ours.model, ours.optimizer, device_memory=memory, pool=self.pool,
                              replan=replan or ways.choice(["once", "auto", "auto", "never"])) as run:
            ours.train()
        self.assertEqual(plain.seen, ours.seen, run.summary())
        for one, other in zip([*plain.model.state_dict().values(), *plain.kept],
                              [*ours.model.state_dict().values(), *ours.kept]):
            self.assertTrue(torch.equal(one, other), run.summary())

    def test_random_scripts_have_the_bits_of_their_plain_runs(self):
        given = os.environ.get("HO_SEED")
        for seed in [int(given)] if given else range(SEEDS):
            with self.subTest(seed=seed), contextlib.redirect_stderr(io.StringIO()):
                self.check(seed)

    def test_a_plan_finds_what_another_one_has_moved_away(self):
        with contextlib.redirect_stderr(io.StringIO()):
            self.check(42, "75%", "auto")  # gradients of which the second plan knows nothing


if __name__ == "__main__":
    unittest.main()
