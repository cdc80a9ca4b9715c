"""Trains models of other kinds under hyperoffload.fit(), and compares each with its plain run.

Usage: see support.py.
"""

import unittest

import support  # first: it finds PyTorch and the package
import torch
from torch import nn
from torch.nn import functional

import hyperoffload

STEPS = 5


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.side = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm2(self.second(functional.relu(self.norm1(self.first(x)), inplace=True)))
        return functional.relu(y + self.side(x), inplace=True)


class ResNet(nn.Module):
    """Convolutions, batch normalisation with running statistics, in-place activations."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), Residual(16, 16, 1),
                                    Residual(16, 32, 2), Residual(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        return self.head(self.blocks(images).mean((2, 3)))

    @staticmethod
    def batch():
        return torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))


class Lstm(nn.Module):
    """Two recurrent layers: the same weights at each time, many small activations."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.layers = nn.LSTM(64, 96, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(96, 50)

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens))[0][:, -1])

    @staticmethod
    def batch():
        return torch.randint(0, 50, (16, 12)), torch.randint(0, 50, (16,))


class Experts(nn.Module):
    """A mixture of experts: each token goes to the best two of four, by dense weights, so that the
    calls of a step do not depend on the data."""

    def __init__(self):
        super().__init__()
        self.start = nn.Linear(32, 64)
        self.gate = nn.Linear(64, 4, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
                                      for _ in range(4)])
        self.head = nn.Linear(64, 10)

    def forward(self, rows):
        x = self.start(rows)
        scores = self.gate(x).softmax(-1)
        best = scores.topk(2, dim=-1).indices
        weights = scores * torch.zeros_like(scores).scatter(1, best, 1.0)
        return self.head(sum(weights[:, i:i + 1] * expert(x) for i, expert in enumerate(self.experts)))

    @staticmethod
    def batch():
        return torch.randn(64, 32), torch.randint(0, 10, (64,))


class Routed(Experts):
    """The same, but an expert sees its tokens alone: sizes and calls differ in each step."""

    def forward(self, rows):
        x = self.start(rows)
        scores = self.gate(x).softmax(-1)
        best = scores.topk(2, dim=-1).indices
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            tokens = (best == i).any(-1).nonzero().squeeze(1)
            out = out.index_add(0, tokens, scores[tokens, i:i + 1] * expert(x[tokens]))
        return self.head(out)


def regression(loss_of):
    """A network that is trained by a loss of its outputs and labels. Such losses may keep the memory of all the
    differences, of which they show one number."""
    class Regression(nn.Sequential):
        loss = staticmethod(loss_of)

        def __init__(self):
            super().__init__(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))

        @staticmethod
        def batch():
            return torch.randn(128, 64), torch.rand(128, 64)
    return Regression


LOSSES = {
    "mse": functional.mse_loss, "smooth l1": functional.smooth_l1_loss, "l1": functional.l1_loss,
    "huber": functional.huber_loss, "sum": lambda a, b: functional.mse_loss(a, b, reduction="sum"),
    "binary": lambda a, b: functional.binary_cross_entropy(a.sigmoid(), b),
    "soft margin": lambda a, b: functional.soft_margin_loss(a, b.round() * 2 - 1),
    "distances": lambda a, b: (torch.cdist(a, b, p=1) + torch.cdist(a, b, p=3)).mean()}


def train(kind, pool=None):
    """Returns (losses, values of the model, run); run is None without a pool."""
    torch.manual_seed(3)
    model = kind()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []

    def steps():
        for _ in range(STEPS):
            inputs, labels = model.batch()
            optimizer.zero_grad()
            loss = getattr(model, "loss", functional.cross_entropy)(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    run = None
    if pool is None:
        steps()
    else:
        with hyperoffload.fit(model, optimizer, device_memory="60%", pool=pool) as run:
            steps()
    return losses, model.state_dict(), run


class Models(support.WithDaemon):
    def check(self, kind, is_planned=True):
        losses, values, _ = train(kind)
        our_losses, our_values, run = train(kind, self.pool)
        self.assertEqual(losses, our_losses)
        for name, value in values.items():
            self.assertTrue(torch.equal(value, our_values[name]), name)
        stats = run.stats()
        self.assertEqual(stats["planned_steps"] + stats["departures"], STEPS - 2, run.summary())
        if is_planned:
            self.assertEqual(stats["departures"], 0, run.summary())
        self.assertLessEqual(stats["peak_allocated_bytes"], 1.02 * stats["budget_bytes"], run.summary())

    def test_residual_network(self):
        self.check(ResNet)

    def test_recurrent_network(self):
        self.check(Lstm)

    def test_mixture_of_experts(self):
        self.check(Experts)

    def test_experts_of_which_each_sees_its_tokens_alone(self):
        self.check(Routed, is_planned=False)

    def test_losses(self):
        for name, loss in LOSSES.items():
            with self.subTest(name):
                self.check(regression(loss))


if __name__ == "__main__":
    unittest.main()
