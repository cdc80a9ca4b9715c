"""Measures train_gpt.py plainly, under HyperOffload, and with two other ways to save memory.

Usage: [ranks.py RANKS] compare.py --pool ADDRESS [--repeat N] [--only VARIANT ...] [-o FILE]
    [options of train_gpt.py]

The variants run one after another in one process, `repeat` times. Prints a table; -o writes JSON. On
several ranks the first one prints it: peaks are the highest of a rank, losses those of all ranks.
"""

import argparse
import contextlib
import json
import os
import statistics
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads are its own: read when it is loaded
import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode

import hyperoffload
import train_gpt
from hyperoffload._memory.meter import Meter
from hyperoffload._torch.step import storage_of, tensors_in, tensors_of

METERED_STEPS = 4
WARM_STEPS = 4  # two steps are recorded before the plan begins


class Metered(TorchDispatchMode):
    """Counts the bytes that tensors hold."""

    def __init__(self):
        super().__init__()
        self.meter = Meter()
        self.sees_operands = self.sees_results = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, float) and function is torch.ops.aten.detach.default:
            result = torch.tensor(result)  # PyTorch 1.13 hands over tensors of numbers as numbers
        tensors = tensors_of(args, kwargs or {}) if self.sees_operands else []
        tensors += [each for each, _ in tensors_in(result)] if self.sees_results else []
        for tensor in tensors:
            self.meter.see(storage_of(tensor))
        return result


def save_on_host(metered):
    """As torch.autograd.graph.save_on_cpu, which makes no copy of what is on the CPU already."""
    def clone(tensor, is_result_seen):
        metered.sees_operands, metered.sees_results = False, is_result_seen
        try:
            return tensor.clone()
        finally:
            metered.sees_operands = metered.sees_results = True

    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: clone(tensor, False) if tensor.dim() else tensor,
        lambda tensor: clone(tensor, True) if tensor.dim() else tensor)


def run_plainly(args, hooks):
    """Returns (losses, seconds of each step, peak bytes); the peak is that of a run of its own."""
    metered = Metered()
    short = argparse.Namespace(**{**vars(args), "steps": METERED_STEPS})
    with metered, hooks(metered):
        train_gpt.train(short, *train_gpt.build(short))
    metered.meter.sweep()
    with hooks(Metered()):
        losses, seconds = timed(args, *train_gpt.build(args))
    return losses, seconds, metered.meter.peak


def run_within(args, memory, replan):
    model, optimizer, scheduler = train_gpt.build(args)
    with hyperoffload.fit(model, optimizer, device_memory=memory, pool=args.pool,
                          replan=replan) as run:
        losses, seconds = timed(args, model, optimizer, scheduler)
    return losses, seconds, run.stats()["peak_allocated_bytes"]


def timed(args, model, optimizer, scheduler):
    """Returns (losses, (seconds, seconds of processor time) of each step)."""
    ends = []
    step = scheduler.step

    def stamped():
        ends.append((time.perf_counter(), time.process_time()))
        step()

    scheduler.step = stamped
    losses = train_gpt.train(args, model, optimizer, scheduler)
    ends = ends[WARM_STEPS - 1:]
    return losses, [(end[0] - begin[0], end[1] - begin[1]) for begin, end in zip(ends, ends[1:])]


VARIANTS = {
    "plain": lambda args: run_plainly(args, lambda _: contextlib.nullcontext()),
    "saved tensors on the host": lambda args: run_plainly(args, save_on_host),
    "on demand, 60%": lambda args: run_within(args, "60%", "never"),
    "on demand, 40%": lambda args: run_within(args, "40%", "never"),
    "fit, 60%": lambda args: run_within(args, "60%", "once"),
    "fit, 40%": lambda args: run_within(args, "40%", "once"),
}


def of_all_ranks(combine, value):
    """A value of each rank as one: a peak by max(), whether losses are the same by all()."""
    _, ranks = train_gpt.join()
    values = [value] * ranks
    if ranks > 1:
        torch.distributed.all_gather_object(values, value)
    return combine(values)


def compare(args, repeat, names):
    """Returns a row for each variant; ratios are to the plain run's median step."""
    runs = {name: [] for name in VARIANTS if name in names}
    for _ in range(repeat):
        for name in runs:
            runs[name].append(VARIANTS[name](args))
    plain_losses, _, plain_peak = runs["plain"][0]
    plain_peak = of_all_ranks(max, plain_peak)
    median = {name: [[statistics.median(step[clock] for step in steps) for _, steps, _ in done]
                     for clock in (0, 1)] for name, done in runs.items()}
    rows = []
    for name, done in runs.items():
        wall, processor = (statistics.median(ours / plain for ours, plain in zip(*both))
                           for both in zip(median[name], median["plain"]))
        peak = of_all_ranks(max, max(peak for _, _, peak in done))
        rows.append({"variant": name, "peak_bytes": peak, "peak_share": peak / plain_peak,
                     "step_ms": statistics.median(median[name][0]) * 1e3, "step_ratio": wall,
                     "processor_ratio": processor,
                     "same_losses": of_all_ranks(all, all(
                         losses == plain_losses for losses, _, _ in done))})
    return rows


class Counted(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


def dispatch_cost(args):
    """Returns (us of processor time that a call under a plan costs, calls of a step), where nothing
    has to leave. The least of all steps counts: what else runs on the machine costs, too."""
    two = argparse.Namespace(**{**vars(args), "steps": 2})  # the first makes the optimizer's states
    model, optimizer, scheduler = train_gpt.build(two)
    with Counted() as counted:
        counts, step = [], scheduler.step
        scheduler.step = lambda: (counts.append(counted.calls), step())
        train_gpt.train(two, model, optimizer, scheduler)
    calls = counts[1] - counts[0]
    model, optimizer, scheduler = train_gpt.build(args)
    plain_s = min(step[1] for step in timed(args, model, optimizer, scheduler)[1])
    model, optimizer, scheduler = train_gpt.build(args)
    with hyperoffload.fit(model, optimizer, device_memory="200%", pool=args.pool):
        ours_s = min(step[1] for step in timed(args, model, optimizer, scheduler)[1])
    return (ours_s - plain_s) / calls * 1e6, calls


def main():
    parser = argparse.ArgumentParser(description="Compares ways to train within less memory.")
    parser.add_argument("--pool", required=True, help="control address of a daemon")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=VARIANTS,
                        metavar="VARIANT", help="beside the plain run (all)")
    parser.add_argument("-o", "--out", help="JSON file")
    ours, rest = parser.parse_known_args()
    args = train_gpt.arguments(rest)
    args.pool, args.log_every = ours.pool, args.steps + 1
    torch.set_num_threads(1)
    rank, ranks = train_gpt.join()
    rows = compare(args, ours.repeat, {"plain", *ours.only})
    if rank > 0:
        return
    print(f"{'variant':27} {'peak MiB':>9} {'of plain':>9} {'step ms':>9} {'ratio':>6} "
          f"{'processor':>9} same losses")
    for row in rows:
        print(f"{row['variant']:27} {row['peak_bytes'] / 2**20:9.1f} {row['peak_share']:9.1%} "
              f"{row['step_ms']:9.1f} {row['step_ratio']:6.2f} "
              f"{row['processor_ratio']:9.2f} {row['same_losses']}")
    if ranks == 1:
        cost_us, calls = dispatch_cost(args)
        print(f"a call under a plan costs {cost_us:.1f} us; a step has {calls}")
    if ours.out:
        with open(ours.out, "w", encoding="utf-8") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
