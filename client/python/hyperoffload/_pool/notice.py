"""What daemons say of nodes that a job should leave."""

from typing import NamedTuple


class Notice(NamedTuple):
    """Nodes of the pool that a job should leave, as run.notice gives them.

    drained_nodes: an administrator empties them; what no other node has room for stays. ending_nodes: their
    daemons end, with what the job has there; ending_s: seconds until the first of these ends, None
    where none does.
    """

    __module__ = "hyperoffload"
    drained_nodes: int
    ending_nodes: int
    ending_s: float | None


def notice_of(told):
    """A Notice of what the library says (a library.PoolNotice, or None); None: no node is to be left."""
    if told is None or told.drained_nodes + told.ending_nodes == 0:
        return None
    return Notice(told.drained_nodes, told.ending_nodes, told.ending_ms / 1e3 if told.ending_nodes > 0 else None)
