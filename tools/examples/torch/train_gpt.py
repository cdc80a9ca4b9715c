"""Trains a small GPT on the bytes of a text file, with PyTorch.

Usage: [ranks.py RANKS] train_gpt.py [--text FILE] [--steps N] [--checkpoint FILE] [...]

On several ranks, as ranks.py or torchrun starts them, each trains on its own windows of the text, and
gradients are averaged.
"""

import argparse
import math
import os
import pathlib

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset


class Text(Dataset):
    """Windows of `length` bytes, each with the bytes that follow."""

    def __init__(self, path, length):
        self.bytes = torch.tensor(list(pathlib.Path(path).read_bytes()), dtype=torch.long)
        self.length = length

    def __len__(self):
        return len(self.bytes) - self.length

    def __getitem__(self, index):
        window = self.bytes[index:index + self.length + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width), nn.Dropout(dropout))
        self.dropout = nn.Dropout(dropout)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=2))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(scores.masked_fill(later, -math.inf).softmax(-1))
        return self.dropout(self.out((weights @ v).transpose(1, 2).reshape(x.shape)))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, length, dropout):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def join():
    """Returns (this process's rank, ranks); if there are several, they join a process group."""
    if "RANK" not in os.environ:
        return 0, 1
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    return distributed.get_rank(), distributed.get_world_size()


def average_gradients(model, ranks):
    for parameter in model.parameters() if ranks > 1 else ():
        distributed.all_reduce(parameter.grad)
        parameter.grad /= ranks


def train(args, model, optimizer, scheduler):
    rank, ranks = join()
    torch.manual_seed(args.seed + rank)  # for windows and dropout
    text = Text(args.text, args.length)
    text = Subset(text, range(rank, len(text), ranks))
    loader = DataLoader(text, batch_size=args.batch, shuffle=True)
    losses = []
    while True:
        for tokens, targets in loader:
            tokens, targets = tokens.to(args.device), targets.to(args.device)
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            average_gradients(model, ranks)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            step = len(losses)
            if step % args.log_every == 0 and rank == 0:
                print(f"step {step} loss {losses[-1]:.4f}", flush=True)
            if args.checkpoint and step % args.checkpoint_every == 0 and rank == 0:
                torch.save({"step": step, "model": model.state_dict(),
                            "optimizer": optimizer.state_dict()}, args.checkpoint)
            if step == args.steps:
                return losses


def arguments(line=None):
    parser = argparse.ArgumentParser(description="Trains a small GPT on the bytes of a text file.")
    parser.add_argument("--text", default=__file__, help="the file (this one)")
    parser.add_argument("--checkpoint", help="file for checkpoints (none)")
    cuda = "cuda:" + os.environ.get("LOCAL_RANK", "0")
    parser.add_argument("--device", default=cuda if torch.cuda.is_available() else "cpu",
                        help="where to train (a CUDA device if there is one, else cpu)")
    parser.add_argument("--dropout", type=float, default=0.1)
    for name, default in {"steps": 50, "batch": 16, "length": 128, "layers": 4, "width": 256,
                          "heads": 4, "log_every": 10, "checkpoint_every": 25, "seed": 1}.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    return parser.parse_args(line)


def build(args):
    torch.manual_seed(args.seed)
    model = GPT(args.layers, args.width, args.heads, args.length, args.dropout).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / args.steps)))
    return model, optimizer, scheduler


def main():
    args = arguments()
    model, optimizer, scheduler = build(args)
    train(args, model, optimizer, scheduler)


if __name__ == "__main__":
    main()
