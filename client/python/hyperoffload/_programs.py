"""Programs that `hyperoffload analyze-programs` planned together: who publishes what, and how fast readers read."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ._objects import Publisher, Subscriber, Tile


class Programs:
    """A folder that `hyperoffload analyze-programs --out FOLDER` has written.

        programs = hyperoffload.Programs("plan")
        publisher = programs.publisher(pool, "policy", "learner", weights, rank=rank, run=run)   # in each learner
        subscriber = programs.subscriber(pool, "policy", "actor", weights, rank=rank)            # in each actor

    `weights`: this rank's tile of each tensor of the object, by name; shapes and layouts are the plan's. Raises
    FileNotFoundError, and ValueError where the file is not such a plan."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = pathlib.Path(folder)
        path = self._folder / "programs.json"
        try:
            self._plan = json.loads(path.read_text(encoding="utf-8"))
            self._meshes = {one["name"]: one["mesh"] for one in self._plan["programs"]}
            self._objects = [(one["name"], one["from"], one["to"]) for one in self._plan["objects"]]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a plan of hyperoffload analyze-programs: {error!r}") from error

    def _edge(self, name, program, end):
        for at, edge in enumerate(self._objects):
            if (edge[0], edge[end]) == (name, program):
                return self._plan["objects"][at]
        does = "publishes" if end == 1 else "reads"
        known = ", ".join(f"{edge[end]} {does} {edge[0]}" for edge in self._objects) or "nobody does"
        raise ValueError(f"{program!r} {does} no object {name!r} in this plan: {known}")

    @staticmethod
    def _of_rank(ranks, rank, program):
        for one in ranks:
            if one["rank"] == rank:
                return one
        raise ValueError(f"{program!r} has no rank {rank} in this plan, but {[one['rank'] for one in ranks]}")

    @staticmethod
    def _tiles(edge, tensors, side, every):
        planned = {one["name"]: one for one in edge["tensors"]}
        strange = sorted(set(tensors) - set(planned))
        missing = sorted(set(planned) - set(tensors)) if every else []
        if strange or missing:
            raise ValueError(f"object {edge['name']!r}: not in the plan: {strange}; missing: {missing}")
        return {name: Tile(tensor, planned[name][side], planned[name]["shape"]) for name, tensor in tensors.items()}

    def publisher(self, pool: str, name: str, program: str, tensors: Mapping[str, Any], *, rank: int, run: int = 0,
                  secret: str = "") -> Publisher:
        """Opens the publisher of an object on one rank of a program, with all tensors of the object. `rank`: of the
        supernode, as in the plan. Raises ValueError where the plan has no such program, rank or tensor; as
        Publisher()."""
        edge = self._edge(name, program, 1)
        self._of_rank(edge["publishers"], rank, program)
        return Publisher(pool, name, self._tiles(edge, tensors, "from", True), mesh=self._meshes[program], rank=rank,
                         run=run, versions=edge["versions"], secret=secret)

    def subscriber(self, pool: str, name: str, program: str, tensors: Mapping[str, Any], *, rank: int,
                   secret: str = "") -> Subscriber:
        """Opens a reader of an object on one rank of a program, held to the plan's rate. Raises ValueError as
        publisher(); as Subscriber()."""
        edge = self._edge(name, program, 2)
        reader = self._of_rank(edge["readers"], rank, program)
        return Subscriber(pool, name, self._tiles(edge, tensors, "to", False), mesh=self._meshes[program], rank=rank,
                          secret=secret, link=reader["link_bytes_per_s"])

    def schedule(self, program: str, rank: int) -> tuple[pathlib.Path, int, int]:
        """Returns a rank's schedule, how many nanoseconds its job waits once, after the first step of all, and
        the bytes per second that its link is held to (0: no limit). Raises ValueError where there is none."""
        for one in self._plan["programs"]:
            if one["name"] == program:
                found = self._of_rank(one["ranks"], rank, program)
                return self._folder / found["schedule"], found["start_ns"], found["link_bytes_per_s"]
        raise ValueError(f"no program {program!r} in this plan, but {sorted(self._meshes)}")
