"""Programs that `hyperoffload analyze-programs` planned together: who publishes what, and how fast readers read."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from .objects import Publisher, Subscriber, Tile


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    element_bytes: int
    layouts: dict[str, str]  # by program that has it


class _Edge(NamedTuple):
    """An object, with its publisher and one reader."""
    name: str
    publisher: str
    reader: str
    versions: int
    chunks: str
    rates: dict[str, dict[int, int]]  # by program and rank; 0: no limit
    tensors: dict[str, _Tensor]


def _edge(one):
    ends = one["from"], one["to"]
    return _Edge(one["name"], *ends, one["versions"], one["chunks"],
                 {ends[0]: {rank["rank"]: 0 for rank in one["publishers"]},
                  ends[1]: {rank["rank"]: rank["link_bytes_per_s"] for rank in one["readers"]}},
                 {tensor["name"]: _Tensor(tuple(tensor["shape"]), tensor["element_bytes"],
                                          {program: tensor[end] for program, end in zip(ends, ("from", "to")) if end in tensor})
                  for tensor in one["tensors"]})


class Programs:
    """A folder that `hyperoffload analyze-programs --out FOLDER` has written.

        programs = hyperoffload.Programs("plan")
        publisher = programs.publisher(pool, "policy", "learner", weights, rank=rank, run=run)   # in each learner
        subscriber = programs.subscriber(pool, "policy", "actor", weights, rank=rank)            # in each actor

    `weights`: this rank's tile of each tensor of the object, by name; shapes and layouts are the plan's. Raises
    FileNotFoundError, and ValueError where the file is not such a plan."""

    __module__ = "hyperoffload"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = pathlib.Path(folder) / "programs.json"
        try:
            plan = json.loads(path.read_text(encoding="utf-8"))
            self._meshes = {one["name"]: one["mesh"] for one in plan["programs"]}
            self._schedules = {(one["name"], rank["rank"]): (path.parent / rank["schedule"], rank["start_ns"],
                                                            rank["link_bytes_per_s"])
                               for one in plan["programs"] for rank in one["ranks"]}
            self._edges = [_edge(one) for one in plan["objects"]]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a plan of hyperoffload analyze-programs: {error!r}") from error

    def _find(self, name, program, end, rank):
        for edge in self._edges:
            if edge.name == name and getattr(edge, end) == program:
                break
        else:
            known = ", ".join(f"{getattr(edge, end)} of {edge.name}" for edge in self._edges) or "none"
            raise ValueError(f"this plan has no {end} of {name!r} {program!r}, but {known}")
        if rank not in edge.rates[program]:
            raise ValueError(f"{program!r} has no rank {rank} in this plan, but {sorted(edge.rates[program])}")
        return edge

    @staticmethod
    def _tiles(edge, program, tensors):
        strange = sorted(name for name in tensors if program not in getattr(edge.tensors.get(name), "layouts", ()))
        missing = sorted(set(edge.tensors) - set(tensors)) if program == edge.publisher else []
        if strange or missing:
            raise ValueError(f"object {edge.name!r}: not in the plan: {strange}; missing: {missing}")
        for name, tensor in tensors.items():
            size = tensor.element_size() if hasattr(tensor, "element_size") else memoryview(tensor).itemsize
            if size != edge.tensors[name].element_bytes:
                raise ValueError(f"{name}: {size} bytes an element; the plan is for {edge.tensors[name].element_bytes}")
        return {name: Tile(tensor, edge.tensors[name].layouts[program], edge.tensors[name].shape)
                for name, tensor in tensors.items()}

    def publisher(self, pool: str, name: str, program: str, tensors: Mapping[str, Any], *, rank: int, run: int = 0,
                  secret: str = "") -> Publisher:
        """Opens the publisher of an object on one rank of a program, with all tensors of the object. `rank`: its number
        in the plan. Raises ValueError where the plan has no such program, rank or tensor; as Publisher()."""
        edge = self._find(name, program, "publisher", rank)
        return Publisher(pool, name, self._tiles(edge, program, tensors), mesh=self._meshes[program], rank=rank, run=run,
                         versions=edge.versions, chunks=edge.chunks, secret=secret)

    def subscriber(self, pool: str, name: str, program: str, tensors: Mapping[str, Any], *, rank: int,
                   secret: str = "", relay: str = "", run: int = 0) -> Subscriber:
        """Opens a reader of an object on one rank of a program, held to the plan's rate. `relay`, `run`: as for
        Subscriber(). Raises ValueError as publisher(); as Subscriber()."""
        edge = self._find(name, program, "reader", rank)
        return Subscriber(pool, name, self._tiles(edge, program, tensors), mesh=self._meshes[program], rank=rank,
                          secret=secret, link=edge.rates[program][rank], relay=relay, run=run)

    def schedule(self, program: str, rank: int) -> tuple[pathlib.Path, int, int]:
        """Returns a rank's schedule, how many nanoseconds its job waits once, after the first step of all, and the
        bytes per second that its link is held to (0: no limit). Raises ValueError where there is none."""
        if (program, rank) not in self._schedules:
            raise ValueError(f"no schedule of {program!r} rank {rank} in this plan, but {sorted(self._schedules)}")
        return self._schedules[program, rank]
