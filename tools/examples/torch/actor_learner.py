"""Learner and actors as programs of their own: the learner trains a small GPT on several ranks and publishes its
weights every few steps; the actors, on another number of ranks, read the newest ones and write text with them.

Usage: actor_learner.py --pool ADDRESS [--learners 2] [--actors 3] [--versions 5] [--plan FOLDER] [--text FILE]
       actor_learner.py --describe FOLDER [--learners 2] [--actors 3]

Each learner rank publishes the rows of each weight that it would own in a sharded optimizer, so all their links
share the work; each actor reads all rows. Every version's checksum is printed by both sides and compared.

--describe writes programs.textproto and tensors.json, from which `hyperoffload analyze-programs` finds how fast
actors must read to use no version older than two seconds; --plan takes its folder.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zlib

import torch
import torch.distributed as distributed

import hyperoffload
from train_gpt import GPT, Text

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 64


def make_model():
    torch.manual_seed(1)
    return GPT(LAYERS, WIDTH, HEADS, LENGTH, dropout=0.0)


def checksum(model):
    sum_of = 0
    for _, tensor in sorted(model.state_dict().items()):
        sum_of = zlib.crc32(tensor.contiguous().numpy().tobytes(), sum_of)
    return f"{sum_of:08x}"


def rows_of(tensor, rank, ranks):
    """The rows that a rank publishes, as torch.chunk divides them."""
    most = -(-tensor.shape[0] // ranks)
    begin, end = min(rank * most, tensor.shape[0]), min((rank + 1) * most, tensor.shape[0])
    layout = ";".join(["dp"] + ["-"] * (tensor.dim() - 1))
    return hyperoffload.Tile(tensor[begin:end], layout, tensor.shape)


def describe(arguments):
    """Learners are the first ranks, actors those after them: a rank of the supernode is of one program."""
    layouts = {name: rows_of(value.data, 0, 1).layout for name, value in make_model().named_parameters()}
    tensors = [{"name": name, "shape": list(value.shape), "elementBytes": value.element_size(), "from": layouts[name],
                "to": ";".join("-" * value.dim())} for name, value in make_model().named_parameters()]
    learners, actors = arguments.learners, arguments.actors
    arguments.describe.mkdir(parents=True, exist_ok=True)
    (arguments.describe / "tensors.json").write_text(json.dumps({"tensors": tensors}))
    (arguments.describe / "programs.textproto").write_text(f'''
programs {{ name: "learner" mesh: "{learners}:dp" period: "100ms" }}
programs {{ name: "actor" mesh: "{actors}:dp@{learners}-{learners + actors - 1}" period: "50ms" }}
objects {{ name: "policy" from: "learner" to: "actor" tensors: "tensors.json" every: 3 versions: 3 largest_staleness: "2s" }}
''')


def open_publisher(arguments, weights, run):
    if arguments.plan:
        tiles = {name: tile.data for name, tile in weights.items()}
        return hyperoffload.Programs(arguments.plan).publisher(arguments.pool, "policy", "learner", tiles,
                                                               rank=arguments.rank, run=run)
    return hyperoffload.Publisher(arguments.pool, "policy", weights, mesh=f"{arguments.learners}:dp",
                                  rank=arguments.rank, run=run, versions=3)


def open_subscriber(arguments, weights):
    if arguments.plan:
        return hyperoffload.Programs(arguments.plan).subscriber(arguments.pool, "policy", "actor", weights,
                                                                rank=arguments.learners + arguments.rank)
    return hyperoffload.Subscriber(arguments.pool, "policy", weights)


def learn(arguments):
    """One rank: data-parallel training, gradients summed by torch.distributed."""
    rank, ranks = arguments.rank, arguments.learners
    distributed.init_process_group("gloo", init_method=f"file://{arguments.meeting}", rank=rank,
                                   world_size=ranks)
    run = torch.randint(1, 2 ** 62, (1,), generator=torch.Generator().manual_seed(
        int.from_bytes(os.urandom(7), "little")))
    distributed.broadcast(run, 0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text, generator = Text(arguments.text, LENGTH), torch.Generator().manual_seed(rank)
    weights = {name: rows_of(value.data, rank, ranks) for name, value in model.named_parameters()}
    with open_publisher(arguments, weights, run.item()) as publisher:
        for version in range(1, arguments.versions + 1):
            for _ in range(3):
                windows = torch.randint(len(text), (4,), generator=generator).tolist()
                inputs, targets = (torch.stack(part) for part in zip(*(text[i] for i in windows)))
                loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                loss.backward()
                for parameter in model.parameters():
                    distributed.all_reduce(parameter.grad)
                    parameter.grad /= ranks
                optimizer.step()
            while True:
                try:
                    publisher.publish(version)
                    break
                except hyperoffload.Error as error:
                    if error.name != "busy":  # actors have all kept versions open
                        raise
            if rank == 0:
                print(f"version {version} {checksum(model)} loss {loss.item():.3f}", flush=True)
        sys.stdin.readline()  # versions live as long as their publisher


def act(arguments):
    """One actor: reads the newest weights and writes some text, until it has seen the last version."""
    model = make_model()
    weights = {name: value.data for name, value in model.named_parameters()}
    version = 0
    with open_subscriber(arguments, weights) as subscriber:
        while version < arguments.versions:
            version = subscriber.acquire(version + 1, timeout=60)
            subscriber.read()
            subscriber.release()
            tokens = torch.tensor([[10]])
            generator = torch.Generator().manual_seed(arguments.rank)
            with torch.no_grad():
                for _ in range(16):
                    odds = model(tokens[:, -LENGTH:])[0, -1].softmax(-1)
                    tokens = torch.cat([tokens, torch.multinomial(odds, 1, generator=generator)[None]], 1)
            said = bytes(tokens[0, 1:].tolist())
            print(f"version {version} {checksum(model)} actor {arguments.rank} writes {said!r}", flush=True)


def main(arguments):
    with tempfile.TemporaryDirectory() as folder:
        def start(what, rank):
            return subprocess.Popen(
                [sys.executable, __file__, "--pool", arguments.pool, "--text", str(arguments.text),
                 "--learners", str(arguments.learners), "--versions", str(arguments.versions),
                 "--meeting", folder + "/meeting", "--as", what, "--rank", str(rank),
                 *(["--plan", arguments.plan] if arguments.plan else [])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        learners = [start("learner", rank) for rank in range(arguments.learners)]
        actors = [start("actor", rank) for rank in range(arguments.actors)]
        read = [actor.communicate()[0].splitlines() for actor in actors]
        published = [learner.communicate("end\n")[0].splitlines() for learner in learners]
    lines = published[0] + [line for one in read for line in one]
    print("\n".join(sorted(lines, key=lambda line: int(line.split()[1]))))
    failed = [process.args for process in learners + actors if process.returncode != 0]
    sums = {}
    for line in lines:
        sums.setdefault(line.split()[1], set()).add(line.split()[2])
    mixed = [version for version, found in sums.items() if len(found) != 1]
    if failed or mixed:
        sys.exit(f"failed: {failed}; versions that differ: {mixed}")
    print(f"{arguments.learners} learners, {arguments.actors} actors: all versions are the same on both sides")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--pool")
    where.add_argument("--describe", type=pathlib.Path)
    parser.add_argument("--plan")
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__))
    parser.add_argument("--as", dest="what", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    torch.set_num_threads(1)
    given = parser.parse_args()
    {"learner": learn, "actor": act, None: describe if given.describe else main}[given.what](given)
