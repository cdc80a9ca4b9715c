"""HyperOffload for PyTorch: training within a device memory budget, and recording of steps.

Start a daemon (`hyperoffloadd`) on a machine with memory to lend. Then three lines make a training
script fit a budget: the import, the `with`, and the print. A whole script:

    import hyperoffload
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())

    def train():                    # unmodified; a step ends with optimizer.step()
        for _ in range(20):
            loss = model(torch.randn(64, 256)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with hyperoffload.fit(model, optimizer, device_memory="60%",
                          pool="unix:/run/hyperoffload/control.sock") as run:
        train()
    print(run.summary())

It prints

    18 of 20 steps ran under the plan
    peak 5.0 MiB of 8.3 MiB that the step holds plainly (budget 5.0 MiB)
    median step 14.1 ms, of it waited for transfers 1.9 ms
    overhead 24% in planned steps: the step's operators took 11.4 ms when it was recorded

The losses are those of the plain run, bit for bit. Tensors that the next operators do not need are
in the pool: their storages have 0 bytes until they come back. So all of PyTorch works on them, but
code that uses a pointer from data_ptr(), or writes to memory that it shares with numpy, does so in

    with run.paused():      # all values are on the device
        export(model)

See what happens:

    run.summary()           # peaks, median step, its overhead and stall, steps that left the plan and why
    run.stats()             # the same as a dict
    fit(..., log=print)     # a line for each step, when it has ended
    run.report("r.html")    # the plan: what is on the device when
    run.trace("t.json")     # the last step, for chrome://tracing and Perfetto, on torch.profiler's clock

A step that differs from the recorded one is not an error. Work that it does now and then, as logging
and evaluation, runs beside the plan. A step of another shape runs without the plan, within the
budget, and is slower; where a few shapes take turns, replan="auto" makes a plan for each. The first
of each cause is printed with the script's line. A budget that cannot be met raises MemoryError when
the second step ends, and names the op that needs more.

The same in single steps, to plan once and run often, or to look at a plan first:

    graph = hyperoffload.record(lambda: train_step(batch), model, optimizer)
    plan = hyperoffload.analyze(graph, device_memory="60%", pool="unix:/run/hyperoffload/control.sock")
    plan.save("step.plan")      # hyperoffload.Plan.load("step.plan") in later runs
    with plan.applied(model, optimizer) as run:
        train()

Record the graph of a step whose parts are not one function:

    recorder = hyperoffload.Recorder(model, optimizer)
    for batch in batches[:3]:
        with recorder:
            step(batch)
    recorder.write("graph.json")    # hyperoffload analyze graph.json --device-memory 60% ...

Give tensors to other programs, as versions that never change (docs/objects.md):

    publisher = hyperoffload.Publisher(pool, "policy", dict(model.named_parameters()))
    publisher.publish(step)
    subscriber = hyperoffload.Subscriber(pool, "policy", weights)    # in another program
    version = subscriber.acquire(last + 1, timeout=60)
    subscriber.read()

Keep KV blocks of a serving job where its tenant's other jobs find them (docs/blocks.md):

    with hyperoffload.Blocks(pool, tenant="chat", model="llama-3-8b") as blocks:
        blocks.put([(key, address, size)])
        found, pin = blocks.match(keys)

Errors: TypeError, ValueError and FileNotFoundError for arguments, at once; MemoryError for a budget
that cannot be met; hyperoffload.Error where the pool fails, with the script's line, the operator and
its tensors if it was in a step. RuntimeError for parts that are compiled and for other threads;
ImportError without libhyperoffload, and FileNotFoundError without the command `hyperoffload`.

Log lines of the library go to stderr, as that a node is lost; after

    hyperoffload.use_logging()

to logging.getLogger("hyperoffload").

Environment: HYPEROFFLOAD_LOG is the least level of log lines: "debug", "info" (as if it is not set), "warning" or
"error". HYPEROFFLOAD_LIBRARY is the path of libhyperoffload.so.0, HYPEROFFLOAD_COMMAND that of
the command `hyperoffload`, where the package does not have them, and the loader and the path do not
find them. HYPEROFFLOAD_TLS is the folder of the job's certificate (node.crt, node.key, ca.crt), for
pools that are reached over TCP.
HYPEROFFLOAD_REPAIR_AFTER_MS: so long after a node is lost, values of fit(copies=2) that had a copy
there get another; 60000 if it is not set.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ._pool.library import Error, use_logging

if TYPE_CHECKING:
    from ._plan.graph import Graph, record
    from ._plan.plan import Plan, analyze
    from ._plan.recorder import Recorder
    from ._pool.blocks import Blocks
    from ._pool.layouts import from_dtensor, from_hypershard
    from ._pool.notice import Notice
    from ._pool.objects import Publisher, Subscriber, Tile
    from ._pool.programs import Programs
    from ._run.fit import fit
    from ._run.run import Run

__all__ = ["Blocks", "Error", "Graph", "Notice", "Plan", "Programs", "Publisher", "Recorder", "Run", "Subscriber",
           "Tile", "analyze", "fit", "from_dtensor", "from_hypershard", "record", "use_logging"]

# Loaded at their first use: connectors run where there is no PyTorch.
_WITHOUT_TORCH = {"Blocks": "._pool.blocks", "Notice": "._pool.notice", "Programs": "._pool.programs",
                  "Publisher": "._pool.objects", "Subscriber": "._pool.objects", "Tile": "._pool.objects",
                  "from_dtensor": "._pool.layouts", "from_hypershard": "._pool.layouts"}
_WITH_TORCH = {"Graph": "._plan.graph", "Plan": "._plan.plan", "Recorder": "._plan.recorder", "Run": "._run.run",
               "analyze": "._plan.plan", "fit": "._run.fit", "record": "._plan.graph"}


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def __getattr__(name: str) -> Any:
    home = _WITHOUT_TORCH.get(name) or _WITH_TORCH.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _WITH_TORCH and not _has_torch():
        raise ImportError(f"hyperoffload.{name} needs PyTorch, which this Python does not have")
    value = globals()[name] = getattr(importlib.import_module(home, __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(name for name in __all__ if name not in _WITH_TORCH or _has_torch())
