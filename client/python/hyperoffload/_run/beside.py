"""Calls that a step has and its plan does not, as logging and evaluation: they run while the plan waits."""

import contextlib

import torch

from .._memory.beyond import is_small_part
from .._pool.library import Error
from .._torch.collectives import communicates
from .._torch.script import where
from .._torch.step import new_bytes_of, shapes_of, storages_taken, written_in

# With gradients, so many calls in succession that the plan does not have are another step. Without, they
# may be an evaluation.
_CALLS_MAX = 64


class Beside:
    """Runs calls beside a plan, between two of its ops. What they take is where the plan has it, or comes
    for the one call.

    managed: number -> Managed; kept: number -> untyped storage; held: number -> that in the runtime;
    number_of(tensor): that of its storage, or None. All are the replay's.
    """

    def __init__(self, demand, managed, kept, held, number_of):
        self.calls = []  # in succession: (function, shapes of its tensors)
        self.line = ""  # the script's, at the first of them
        self.cause = ""  # what differs there, and the line
        self._demand, self._managed, self._kept = demand, managed, kept
        self._held, self._number_of = held, number_of

    def begin(self, expected, function, tensors):
        """A call comes that is not the plan's next one, `expected`; None: the step's end."""
        if not self.calls:
            self.line = where()
            self.cause = f"{self._difference(expected, function, tensors)} ({self.line})"

    def _difference(self, expected, function, tensors):
        if expected is None:
            return f"{function} in place of the end of the step"
        if expected.function is not function:
            return f"{function} in place of {expected.function}"

        def name(number):
            return "another tensor" if number is None else self._managed[number].name

        pairs = [(name(self._number_of(tensor)), name(number))
                 for tensor, number in zip(tensors, expected.inputs)]
        taken, wanted = next((pair for pair in pairs if pair[0] != pair[1]), ("other operands", "those recorded"))
        return f"{function} of {taken} in place of {wanted}"

    def refuses(self, function, tensors, args, kwargs):
        """Why a call cannot run beside the plan; None: it can."""
        for tensor in written_in(function, args, kwargs):
            number = self._number_of(tensor)
            if number is not None:
                return f": it writes to {self._managed[number].name}, which the plan moves"
        if communicates(function):
            for number in [number for number in map(self._number_of, tensors) if number is not None]:
                return f": another thread takes {self._managed[number].name}, which the plan moves"
        if torch.is_grad_enabled() and len(self.calls) == _CALLS_MAX:
            return ""
        need = new_bytes_of(function, tensors, args, kwargs, self._demand.device.where) + sum(
            self._managed[number].bytes for number in {self._number_of(tensor) for tensor in tensors}
            if number is not None and self._kept[number].nbytes() == 0)
        others = [tensor for tensor in tensors if self._number_of(tensor) is None]
        need += self._demand.claim(others) + self._demand.meter.unseen_bytes(
            storages_taken(function, others, args))
        return None if self._has_room(need) else ": the plan leaves no room for it"

    def _has_room(self, need):
        """Whether so many bytes have room, if what the plan does not know leaves for them."""
        demand = self._demand
        if is_small_part(need, demand.limit()) or demand.meter.bytes + need <= demand.limit():
            return True
        demand.room(need)
        return demand.lacks(need) == 0

    def run(self, function, tensors, args, kwargs):
        """Runs a call that refuses() does not refuse. No op of the plan runs."""
        demand = self._demand
        self.calls.append((function, shapes_of(tensors)))
        if demand.away:
            demand.bring([tensor for tensor in tensors if self._number_of(tensor) is None])
        with contextlib.ExitStack() as after:
            self.fill(tensors, after)
            result = function(*args, **kwargs)
        demand.ran(function, tensors, args, kwargs, result)
        demand.refuses = True  # what it has made may leave for the plan
        return result

    def fill(self, tensors, after, makes_bytes=None):
        """The plan's storages have their values, also those that are away or on their way, until the stack
        `after` ends. Returns False where there is no room for them and `makes_bytes`, if that is known, or no
        stack and a value is away."""
        numbers = [n for n in dict.fromkeys(map(self._number_of, tensors)) if n is not None]
        away = sum(self._managed[number].bytes for number in numbers if self._kept[number].nbytes() == 0)
        if makes_bytes is not None:  # what is about to be read does not leave for it
            self._demand.claim([tensor for tensor in tensors if self._number_of(tensor) is None])
        if (after is None and away > 0) or not (makes_bytes is None or self._has_room(away + makes_bytes)):
            return False
        for number in numbers:
            self._fill(self._kept[number], self._held[number], self._managed[number].bytes, after)
        return True

    def _fill(self, storage, held, size, after):
        away = storage.nbytes() == 0
        if away:
            self._demand.device.resize(storage, size)
            after.callback(self._empty, storage)
            self._demand.meter.see(storage)
        try:
            self._demand.runtime.peek(held, storage.data_ptr(), size)
        except Error as error:
            if away or error.name != "conflict":  # conflict: memory that nothing has written yet
                raise

    def _empty(self, storage):
        self._demand.device.resize(storage, 0)
        self._demand.meter.left(storage)
