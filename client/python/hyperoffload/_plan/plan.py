"""A plan of a recorded step: made by `analyze`, run by `fit` and `Plan.applied`, kept in a file."""

import base64
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .._pool import library
from .analyze import Links, schedule_of
from .arguments import budget_of, check_hardware, check_log, check_pool, check_training, copies_of
from .graph import Call, Graph, Managed, Part, duration_ns

if TYPE_CHECKING:
    from .._run.run import Run

_VERSION = 1


class Plan:
    """When the tensors of a step come and go, so that it fits a budget.

    budget_bytes: of all tensors at a time. schedule: the bytes of a .hos file, for `hyperoffload verify`
    and `explain`. page: the analyzer's report, as HTML. copies: of each value in the pool, on different
    nodes. graph: the Graph that it is of; that of a plan from a file has only what can move.
    """

    __module__ = "hyperoffload"

    def __init__(self, graph: Graph, budget_bytes: int, schedule: bytes, page: str, pool: str | None = None,
                 copies: int = 1) -> None:
        self.graph, self.budget_bytes, self.copies = graph, budget_bytes, copies
        self.schedule, self.page = schedule, page
        self._pool = pool

    def applied(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *,
                pool: str | None = None, log: Callable[[str], Any] | None = None) -> "Run":
        """Runs the training steps of a `with` block under the plan; returns a Run as fit() does.

            with plan.applied(model, optimizer) as run:
                train()                     # unmodified; a step ends with optimizer.step()

        model, optimizer: those that were recorded, or others with the same names and sizes, as in a
        later run of the script. Until the optimizer has its states, after its first step, steps run on
        demand, within the budget. pool: control addresses of the daemons; None: those of analyze().
        log: as of fit().
        Raises TypeError and ValueError for bad arguments, and where the plan moves something that model
        and optimizer do not have; Error where the pool fails.
        """
        from .._run.run import Run  # it needs this module

        check_training(model, optimizer)
        check_log(log)
        pool = pool or self._pool
        if pool is None:
            raise ValueError("no pool is named: applied(model, optimizer, pool=ADDRESS)")
        check_pool(pool)
        return Run(model, optimizer, lambda _: self.budget_bytes, pool, "once", None, self.copies, self, log=log)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan to a file, for load() in a later run of the same script."""
        graph = self.graph
        text = {"version": _VERSION, "budgetBytes": self.budget_bytes, "pool": self._pool,
                "copies": self.copies,
                "schedule": base64.b64encode(self.schedule).decode(), "page": self.page,
                "fixedBytes": graph.fixed_bytes, "plainBytes": graph.plain_bytes,
                "graph": graph.movable,
                "managed": {number: vars(each) for number, each in graph.managed.items()},
                "calls": [[str(call.function), call.grad, call.inputs,
                           [[list(shape), str(dtype).split(".")[-1]] for shape, dtype in call.shapes],
                           [[getattr(part, each) for each in Part.__slots__] for part in call.parts], call.optional]
                          for call in graph.calls]}
        with open(path, "w", encoding="utf-8") as out:
            json.dump(text, out)

    @staticmethod
    def load(path: str | os.PathLike) -> "Plan":
        """Reads a plan that save() wrote. Raises OSError if it cannot be read, ValueError if it is not one."""
        with open(path, encoding="utf-8") as file:
            try:
                text = json.load(file)
                if text["version"] != _VERSION:
                    raise ValueError(f"{path} is a plan of version {text['version']}; this package "
                                     f"reads version {_VERSION}: make the plan again")
                return Plan(_saved_graph(text), text["budgetBytes"],
                            base64.b64decode(text["schedule"]), text["page"], text["pool"],
                            copies_of(text.get("copies")))
            except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
                raise ValueError(f"{path} is not a plan: {error!r}") from error

    def __repr__(self) -> str:
        return (f"<Plan of {len(self.graph.calls)} calls within {self.budget_bytes / 2**20:.1f} of "
                f"{self.graph.plain_bytes / 2**20:.1f} MiB>")


def _saved_graph(text):
    """What a run needs of a graph whose plan was saved."""
    graph = Graph.__new__(Graph)
    graph.fixed_bytes, graph.plain_bytes = text["fixedBytes"], text["plainBytes"]
    graph.movable = graph.whole = text["graph"]
    graph.ops_ns = duration_ns(graph.movable)
    graph.managed = {int(number): Managed(each["bytes"], each["id"], each["name"], each["persistent"])
                     for number, each in text["managed"].items()}
    graph.calls = [Call(_function_of(name), grad, tuple(inputs),
                        tuple((torch.Size(shape), getattr(torch, dtype)) for shape, dtype in shapes),
                        [Part(place, tuple(outputs), writes, ends, others)
                         for place, outputs, writes, ends, others in parts], *optional)
                   for name, grad, inputs, shapes, parts, *optional in text["calls"]]
    return graph


def _function_of(name):
    """An operator by its name, as "aten.add.Tensor"."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def plan_of(graph, budget_bytes, hardware, links, copies, address=None):
    """The plan of a Graph within `budget_bytes`; see analyze(). links: Links, or None."""
    # What the plan does not know stays on the device all the time.
    schedule, page = schedule_of(graph.movable, budget_bytes, graph.fixed_bytes, hardware, links, copies)
    return Plan(graph, budget_bytes, schedule, page, address, copies)


def analyze(graph: Graph, *, device_memory: str | int, pool: str | None = None,
            hardware: str | os.PathLike | None = None, copies: int | None = None) -> Plan:
    """Plans a step that record() returned, and returns a Plan.

    device_memory: "60%" of what the step holds plainly, "2GiB", or bytes. pool: control addresses of
    the daemons, comma-separated, whose link is measured. hardware: path of a hardware file instead,
    such as `hyperoffload bench profile` writes; then no pool is needed to plan. copies: as of fit().

    Takes seconds: it runs the command `hyperoffload analyze`. Raises MemoryError where the budget cannot
    be met, naming the op; TypeError, ValueError and FileNotFoundError for bad arguments, and where the
    command is missing; RuntimeError where it fails otherwise; Error where the pool fails.
    """
    library.check_kind("graph", graph, Graph, "the Graph that record() returned")
    check_hardware(hardware)
    if pool is not None:
        check_pool(pool)
    budget = budget_of(device_memory)(graph.plain_bytes)
    copies = copies_of(copies)
    if hardware is not None:
        return plan_of(graph, budget, hardware, None, copies, pool)
    if pool is None:
        raise ValueError("name a pool, whose link is measured, or a hardware file")
    connection = library.Pool(pool, "pytorch-plan")
    try:
        return plan_of(graph, budget, None, Links(connection, graph.device), copies, pool)
    finally:
        connection.close()
