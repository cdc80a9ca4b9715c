"""`fit`: an unmodified training script under a memory budget."""

import os
from collections.abc import Callable
from typing import Any, Literal

import torch

from .._plan.arguments import (budget_of, check_hardware, check_log, check_pool, check_training, copies_of, link_of,
                               seconds_of)
from .run import Run


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, device_memory: str | int, pool: str,
        replan: Literal["once", "auto", "never"] = "once", hardware: str | os.PathLike | None = None,
        copies: int | None = None, wait: float | None = None, link: int | None = None,
        log: Callable[[str], Any] | None = None) -> Run:
    """Runs the training steps of a `with` block within a device memory budget.

        with hyperoffload.fit(model, optimizer, device_memory="60%",
                              pool="unix:/run/hyperoffload/control.sock") as run:
            train()                       # unmodified; a step ends with optimizer.step()
        print(run.summary())

    The first two or three steps are recorded; what is too much leaves when memory is needed, and comes back when
    an operator takes it. From then on tensors come and go by the plan of the second step. Results are
    the same bit for bit. Work that a step does now and then, as logging, runs beside the plan. A step that
    differs otherwise still runs, and what is away is brought when an operator takes it; `run.stats()`
    counts both. After the block all values are on the device again; where it has no room for all, the
    optimizer's states are on the CPU.

    model: a torch.nn.Module, all of it on the CPU or on one CUDA device. optimizer: a
        torch.optim.Optimizer whose step() ends a step.
    device_memory: "60%" of what the recorded step holds, "2GiB", or bytes. It holds from the first step
    on: of a share, the share of what was needed so far.
    pool: control addresses of HyperOffload's daemons, comma-separated. Over TCP, HYPEROFFLOAD_TLS
        names the folder of the job's certificate.
    replan: "once": one plan at a time, made again only if it does not fit the steps any more. "auto": a plan
        for each shape of step that comes back, up to 8; the second step of a shape is recorded; and a new
        plan, of what is measured then, where steps wait longer for transfers or their operators take longer than
        planned, which "once" only says. "never": no plan, all values come and go on demand.
    hardware: path of a hardware file; None: the link to the pool is measured.
    copies: of each value in the pool, on different nodes. None and 1: one; a node that is lost ends
        the job. 2: when a node is lost, the job goes on with the same results, as long as no other
        node is lost that has the second copy of a value; after a minute values get new second copies,
        if the pool has a third node. It needs twice the memory in the pool, and what leaves the device
        goes out twice.

    wait: seconds for which the job waits for memory of the pool that other jobs hold, each time it needs
        some, before it ends with Error "exhausted"; None: it does not wait.
    link: bytes per second, each way, that the job takes of its links, as `hyperoffload analyze-programs`
        names them; None: no limit. The plan is made for it.
    log: a function that takes a line of text for each step, when it has ended, as log=print:

            step 3: replay, 14.1 ms, waited 1.9 ms, peak 5.0 MiB
            step 4: departed, 21.7 ms, fetched 5.2 MiB, peak 5.0 MiB; left the plan: CAUSE (train.py:12)

        A step is one of record, replay, departed (what CAUSE names is not in the plan) and "on demand"
        (without a plan). The peak is that of tensors since the run began.

    run.notice says when the job should leave a node (an administrator drains it, or its daemon ends):

        if run.notice:
            save_checkpoint()

    Raises TypeError, ValueError and FileNotFoundError for bad arguments, at once. The `with` raises Error
    where the pool cannot be reached, ImportError where libhyperoffload cannot be loaded, and RuntimeError
    where another run has not ended. The steps in it raise MemoryError where the budget cannot be met,
    naming the op; Error where the pool fails; RuntimeError where the plan cannot be made otherwise, and
    for compiled parts, other threads and other streams; FileNotFoundError, at the end of the recorded
    step, where the command `hyperoffload` is missing. Threads: the one that trains. Batches that exist
    before a step stay on the device, like all tensors below 4 KiB.
    """
    check_training(model, optimizer)
    check_pool(pool)
    check_hardware(hardware)
    check_log(log)
    if replan not in ("once", "auto", "never"):
        raise ValueError(f'replan is {replan!r}; write "once", "auto" or "never"')
    return Run(model, optimizer, budget_of(device_memory), pool, replan, hardware, copies_of(copies),
               pool_options={"wait_s": seconds_of(wait), "link": link_of(link)}, log=log)
