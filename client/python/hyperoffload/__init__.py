"""HyperOffload for PyTorch: training within a device memory budget, and recording of steps.

Train within a budget. Start a daemon (`hyperoffloadd`) on a machine with memory to lend, then:

    import hyperoffload

    with hyperoffload.fit(model, optimizer, device_memory="60%",
                          pool="unix:/run/hyperoffload/control.sock") as run:
        train()             # unmodified; a step ends with optimizer.step()
    print(run.summary())

The losses are those of the plain run, bit for bit. Tensors that the next operators do not need are
in the pool: their storages have 0 bytes until they come back. So all of PyTorch works on them, but
code that uses a pointer from data_ptr(), or writes to memory that it shares with numpy, does so in

    with run.paused():      # all values are on the device
        export(model)

See what happens:

    run.summary()           # peak, median step, time that it waited, steps that left the plan and why
    run.stats()             # the same as a dict
    run.report("r.html")    # the plan: what is on the device when
    run.trace("t.json")     # the last step, for chrome://tracing and Perfetto

A step that differs from the recorded one is not an error: it runs without the plan, within the
budget, and is slower. The first of each cause is printed with the script's line. Where a few shapes
take turns, replan="auto" makes a plan for each. A budget that cannot be met raises MemoryError when
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

Environment: HYPEROFFLOAD_LIBRARY is the path of libhyperoffload.so.0, HYPEROFFLOAD_COMMAND that of
the command `hyperoffload`, where the loader and the path do not find them. HYPEROFFLOAD_TLS is the
folder of the job's certificate (node.crt, node.key, ca.crt), for pools that are reached over TCP.
HYPEROFFLOAD_REPAIR_AFTER_MS: so long after a node is lost, values of fit(copies=2) that had a copy
there get another; 60000 if it is not set.
"""

import importlib

from ._library import Error

# Loaded at their first use: connectors run where there is no PyTorch.
_HOMES = {"Graph": "._graph", "Plan": "._plan", "Publisher": "._objects", "Recorder": ".recorder",
          "Run": "._fit", "Subscriber": "._objects", "Tile": "._objects", "from_dtensor": "._layouts",
          "from_hypershard": "._layouts", "analyze": "._plan", "fit": "._fit", "record": "._graph"}

__all__ = ["Error", *_HOMES]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
    return value
