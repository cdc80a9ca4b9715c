"""Layouts of other frameworks as HyperOffload's words: a mesh "4x2:dp,tp@0,1,2" and, for each dimension of
a tensor, the axes that divide it from major to minor, "dp,tp;-".
"""

import operator
from collections.abc import Sequence
from typing import Any


def _mesh(sizes, names, ranks=None):
    if not all(operator.index(size) > 0 for size in sizes):
        raise ValueError(f"a mesh has sizes from 1: {tuple(sizes)}")
    for name in names:
        if name in ("", "-") or any(letter.isspace() or letter in ",;:+@" for letter in name):
            raise ValueError(f"an axis has a name without blanks and any of ,;:+@ and not {name!r}")
    words = "x".join(str(size) for size in sizes) + ":" + ",".join(names)
    count = 1
    for size in sizes:
        count *= size
    ranks = list(range(count)) if ranks is None else [operator.index(rank) for rank in ranks]
    if len(ranks) != count:
        raise ValueError(f"a mesh of {count} places, and {len(ranks)} ranks")
    if any(rank < 0 for rank in ranks):
        raise ValueError(f"ranks are from 0: {ranks}")
    if len(set(ranks)) != count or len(set(names)) != len(names):
        raise ValueError(f"a rank or a name occurs twice: {ranks}, {names}")
    return words if ranks == list(range(count)) else words + "@" + ",".join(map(str, ranks))


def from_dtensor(mesh: Any, placements: Sequence[Any], dimensions: int) -> tuple[str, str]:
    """The words (mesh, layout) of a torch DTensor's `device_mesh` and `placements`, for a tensor of so many
    dimensions. Mesh dimensions without names are m0, m1, ... Raises ValueError for placements that have no
    words, as strided shards, and for a shard of a dimension that the tensor lacks."""
    if len(placements) != len(mesh.mesh.shape):
        raise ValueError(f"{len(placements)} placements on a mesh of {len(mesh.mesh.shape)} dimensions")
    names = list(mesh.mesh_dim_names or [f"m{i}" for i in range(len(placements))])
    axes = [[] for _ in range(dimensions)]
    partial = {}
    for name, placement in zip(names, placements):
        kind = type(placement).__name__
        if kind == "Shard":
            if not -dimensions <= placement.dim < dimensions:
                raise ValueError(f"a shard of dimension {placement.dim}, and a tensor of {dimensions}")
            # torch divides by the mesh's dimensions one after the other: the first one is the major one.
            axes[placement.dim].append(name)
        elif kind in ("Partial", "_Partial"):
            partial.setdefault(str(placement.reduce_op).rsplit(".", 1)[-1].lower(), []).append(name)
        elif kind != "Replicate":
            raise ValueError(f"a placement that cannot be said in words: {placement}")
    layout = ";".join(",".join(one) or "-" for one in axes)
    for how, over in partial.items():
        if how not in ("sum", "min", "max"):
            raise ValueError(f"a partial value by {how}")
        layout += f"+{how}:" + ",".join(over)
    return _mesh(mesh.mesh.shape, names, mesh.mesh.flatten().tolist()), layout


def from_hypershard(mesh_shape: Sequence[int], alias_name: Sequence[str], tensor_map: Sequence[Any],
                    rank_list: Sequence[int] | None = None) -> tuple[str, str]:
    """The words (mesh, layout) of HyperShard's Layout(mesh_shape, alias_name, rank_list). `tensor_map` has for
    each dimension an alias, "None" or None, or a tuple of aliases from major to minor; or, as in the layout's
    own `tensor_map`, numbers: they count the mesh's axes from the right, and -1 is none. Raises ValueError
    where names, axes and ranks do not fit one another, or one of them is used twice."""
    names = list(alias_name)
    if len(names) != len(mesh_shape):
        raise ValueError(f"{len(names)} names for {len(mesh_shape)} axes")

    def axis(word):
        if word is None or word == "None":
            return None
        if isinstance(word, str):
            if word not in names:
                raise ValueError(f"no axis {word!r}")
            return word
        place = operator.index(word)
        if not -1 <= place < len(names):
            raise ValueError(f"no axis {place}")
        return None if place == -1 else names[len(names) - 1 - place]

    parts, used = [], []
    for entry in tensor_map:
        group = [axis(word) for word in (entry if isinstance(entry, (tuple, list)) else (entry,))]
        group = [name for name in group if name]
        used += group
        parts.append(",".join(group) or "-")
    if len(set(used)) != len(used):
        raise ValueError(f"an axis divides twice: {used}")
    return _mesh(mesh_shape, names, rank_list), ";".join(parts)
