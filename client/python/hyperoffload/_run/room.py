"""Room in a step for what its plan brings, beside what the plan does not know."""

from .._pool import library
from .._torch.step import storages_taken, tensors_of

# The library refuses memory ahead of its need, and says so where an operand is long on its way. Its own may come still.
_FAILURES = 3


class Room:
    """Makes room within the budget for the calls of a step under a plan (library.Plan).

    Storages leave that the plan does not know, as gradients after their last use. Where that is not enough, as for
    batches of another process, whose memory cannot leave, the step has to go on without the plan.
    kept: number -> untyped storage; size: number -> bytes; number_of(tensor): that of its storage, or None. All are
    the replay's. others_bytes: the most at a time of what the plan does not move, where there was no room; else 0.
    """

    def __init__(self, demand, plan, kept, size, number_of):
        self._demand, self._meter, self._plan = demand, demand.meter, plan
        self._kept, self._size, self._number_of = kept, size, number_of
        self.others_bytes = 0

    def before(self, part, args, kwargs):
        """Waits for the operands of a part of a call. Returns False where they, or what it returns, have no room."""
        demand, pending = self._demand, 0
        for number in part.writes:
            if number not in self._kept:
                pending += self._size[number]
        demand.pending = pending
        most_bytes = demand.limit() - pending
        refused, failures, evicts = bool(demand.short) or self._meter.bytes > most_bytes, 0, False
        while True:
            if refused:
                evicts, need = True, pending + sum(demand.short.values())
                demand.short.clear()
                demand.refuses = demand.room_between_calls(need)
                if failures == _FAILURES and demand.lacks(need) > 0:
                    return self._is_missing(0)
            try:
                self._plan.before(part.place)
                break
            except library.Error as error:
                if error.name != "exhausted" or not demand.short:
                    raise
                refused, failures = True, min(failures + 1, _FAILURES)
        if self._meter.bytes > most_bytes:  # what leaves by the plan has left now
            evicts = True
            demand.room_between_calls(pending)
            if demand.lacks(pending) > 0:
                return self._is_missing(0)
        return not evicts or self.bring(None, tensors_of(args, kwargs), args)  # what left may be what the call takes

    def bring(self, function, tensors, args):
        """Brings what a call takes and the plan does not move. function: of a call that may take what does not count yet;
        None: another one. Returns False where there is no room."""
        demand = self._demand
        if function is None and not demand.away:
            return True
        others = [tensor for tensor in tensors if self._number_of(tensor) is None]
        need = demand.claim(others) + demand.meter.unseen_bytes(storages_taken(function, others, args))
        if need > 0:
            result = demand.pending if function is None else 0  # what a planned call returns
            demand.room(need + result)
            if demand.lacks(need + result) > 0:
                return self._is_missing(need)
            demand.bring(others)
            demand.refuses = True  # it may leave again for the plan
        return True

    def _is_missing(self, others_bytes):
        kept = sum(storage.nbytes() for storage in self._kept.values())
        self.others_bytes = max(self.others_bytes, self._meter.bytes - kept + others_bytes)
        return False
