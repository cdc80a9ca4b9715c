"""Runs the Python of README.md, client/python/README.md, client/docs/fit.md, recorder.md and objects.md, as it
stands, with what the pages leave to the reader, at a real daemon.

Usage: python_test.py SOURCE CLI DAEMON LIBRARY
"""
import contextlib
import io
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from with_torch import torch  # noqa: E402
from one_node import PAGE_ADDRESS, Node  # noqa: E402
from pages import blocks  # noqa: E402

SOURCE, CLI, DAEMON, LIBRARY = sys.argv[1:5]
os.environ.update(HYPEROFFLOAD_COMMAND=os.path.abspath(CLI), HYPEROFFLOAD_LIBRARY=os.path.abspath(LIBRARY))
sys.path.insert(0, f"{SOURCE}/client/python")
import hyperoffload  # noqa: E402

STEPS = 4
RECORDED = 2


class Script:
    """The names that the pages' code uses and does not make. `losses` are those so far."""

    def __init__(self):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU()) for _ in range(5)])
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batch, self.losses = torch.randn(64, 128), []

    def loss_of(self, model, batch):
        loss = model(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def train_step(self, batch):
        self.optimizer.zero_grad()
        self.loss_of(self.model, batch).backward()
        self.optimizer.step()

    def train(self):
        for _ in range(STEPS):
            self.train_step(self.batch)

    def names(self):
        return {"hyperoffload": hyperoffload, "model": self.model, "optimizer": self.optimizer, "batch": self.batch,
                "batches": [self.batch] * 5, "train_step": self.train_step, "train": self.train, "loss_of": self.loss_of}


def run(node, page, names):
    """Runs the page's only block of Python. @return its text."""
    (code,) = blocks(pathlib.Path(SOURCE, page), "python")
    exec(compile(code.replace(PAGE_ADDRESS, node.pool), page, "exec"), names)
    return code


def fit(node):
    plain, ours = Script(), Script()
    for _ in range(3):  # record() runs three
        plain.train_step(plain.batch)
    plain.train()
    names = ours.names()
    code = run(node, "client/docs/fit.md", names)
    stats = names["run"].stats()
    assert (stats["steps"], stats["planned_steps"], stats["departures"]) == (STEPS, STEPS, 0), stats
    assert stats["peak_allocated_bytes"] <= 1.02 * names["plan"].budget_bytes < stats["peak_plain_bytes"], stats
    assert ours.losses == plain.losses, (ours.losses, plain.losses)
    (later,) = re.findall(r"# (hyperoffload\.Plan\.load\(.*?\)) later", code)
    assert eval(later, names).budget_bytes == names["plan"].budget_bytes


def summary(node):
    """Both READMEs show the same few lines."""
    for page in ("README.md", "client/python/README.md"):
        plain, ours = Script(), Script()
        plain.train()
        names = ours.names()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run(node, page, names)
        assert printed.getvalue().strip() == names["run"].summary().strip(), printed.getvalue()
        assert names["run"].stats()["planned_steps"] == STEPS - RECORDED, names["run"].stats()
        assert ours.losses == plain.losses, (ours.losses, plain.losses)


def recorder(node):
    plain, ours = Script(), Script()
    code = run(node, "client/docs/recorder.md", ours.names())
    for _ in range(len(ours.losses)):
        plain.train_step(plain.batch)
    assert len(ours.losses) == 3 and ours.losses == plain.losses, (ours.losses, plain.losses)
    (analyze,) = re.findall(r"# (hyperoffload analyze .*) \.\.\.$", code, re.M)
    said = node.run(f"{analyze} --out step.hos")
    assert re.search(r" -> .* budget ", said), said
    assert node.json("hyperoffload verify step.hos")["legal"]


def objects(node):
    """Each of the two ranks that the page's reader has."""
    model = torch.nn.Module()
    model.mlp = torch.nn.Module()
    model.mlp.up = torch.nn.Parameter(torch.arange(4096 * 1024, dtype=torch.float32).reshape(4096, 1024))
    for rank in (0, 1):
        mine = torch.zeros(4096, 512)
        names = {"pool": node.pool, "model": model, "mine": mine, "rank": rank, "step": 7, "last": 6}
        run(node, "client/docs/objects.md", names)
        assert names["version"] == 7
        assert torch.equal(mine, model.mlp.up.detach()[:, 512 * rank:512 * (rank + 1)]), rank
        for one in (names["publisher"], names["subscriber"]):
            one.close()


def main():
    with Node(CLI, DAEMON) as node:
        os.chdir(node.folder)
        for page in (summary, fit, recorder, objects):
            page(node)
            print("ok:", page.__name__)
        os.chdir("/")


main()
