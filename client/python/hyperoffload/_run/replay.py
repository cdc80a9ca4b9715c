"""Runs steps of a PyTorch job under a plan.

Every call below autograd comes here. While a step goes as recorded, call k of the step
is call k of the plan: the plan waits for the operands, the call runs, and its outputs are named. Storages
leave and come back by resizing: tensors, views and autograd's references stay valid, their bytes do not.
A call that differs ends the plan's part in this step: what is away is then fetched when a call takes it.

Calls that the recorded step does not have, as logging, run beside the plan, which waits at its position;
calls of it that nothing needs may be missing.

    BETWEEN --first call as recorded--> IN_STEP --end of the optimizer's step--> BETWEEN
                                           +--another call, or an error--> DEPARTED --+
"""

import enum
import functools

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .._pool import library
from .._torch.script import where
from .._torch.step import memory_of, shapes_of, split, storage_of, tensors_in, tensors_of
from .beside import Beside
from .plans import signature_of, steps_calls
from .room import Room


_NO_ROOM = "what the plan does not move, as batches, takes more room than when the step was recorded"


class State(enum.Enum):
    BETWEEN = "between steps"
    IN_STEP = "in a step"
    DEPARTED = "departed"


class Replay:
    """Runs steps under a plan (Plan). One thread: the one that calls the job's operators.

    present: number -> untyped storage, of those that exist between steps and that the plan moves.
    plans: where departures are noted. run: three functions. departed(cause) is called when a step departs,
    detoured(line, cause) when it has done other work and is back at the plan, choose(function, tensors)
    between steps: it returns what runs the calls of a step that begins so, or None. drift: of its steps.
    is_proven: a whole step has run. misses: steps in succession that should have, and departed.
    is_full: no other plan leaves more room for what it does not move.
    """

    def __init__(self, demand, plan, present, plans, run, drift):
        self.drift = drift
        self.is_proven, self.misses, self.is_full = False, 0, False
        self.state = State.BETWEEN
        self.graph = plan.graph
        managed = plan.graph.managed
        self._calls = steps_calls(plan.graph)
        self._bytes = {number: each.bytes for number, each in managed.items()}
        self._demand = demand
        self._meter = demand.meter
        self._departed, self._detoured, self._choose = run
        self._note, self._noted_departure = plans.note, plans.departed
        self.signature = signature_of(self._calls)
        self._at = 0  # the next call of the step
        self._kept = dict(present)  # number -> untyped storage, while the plan needs it
        self._left = {}  # number -> weak reference, of a step that departed
        self._number = {storage._cdata: number for number, storage in present.items()}
        self._persistent = set(present)
        self._through = []  # weak references of storages that the plan needs no more since that op
        self._ended = None  # the op that has run, and of which the plan does not know
        self._op = None  # (part that runs, numbers of storages made for it), until its after()
        self._last_timeline = None  # timeline() when the replay was closed
        self._runtime = demand.runtime
        self._plan = library.Plan(self._runtime, plan.schedule)
        needs = library.schedule_info(plan.schedule)
        self._peak_bytes, self.uses_flash = needs.arena_bytes, needs.flash_bytes > 0
        self._held = {number: self._plan.storage_of(each.id) for number, each in managed.items()}
        self._room = Room(demand, self._plan, self._kept, self._bytes, self._number_of)
        self._beside = Beside(demand, managed, self._kept, self._held, self._number_of)
        self._reserved = frozenset(self._held.values())
        self._moving = frozenset(self._held[number] for number in self._persistent)  # while the next step is not there
        # A persistent storage of an earlier plan may be another object now, and that one may have another name.
        self.displaces = False
        for number, held in self._held.items():
            earlier = demand.find[held]() if held in demand.find else None
            if earlier is not None and self._held.get(self._number.get(earlier._cdata)) != held:
                demand.unshare(earlier._cdata)
                self.displaces = True
            demand.find[held] = functools.partial(self._storage, number)
        for number, storage in present.items():
            self.displaces = demand.rename(storage, self._held[number]) or self.displaces
        demand.forget_free()
        demand.room(0)

    def _storage(self, number):
        """The storage that has a number now, or None."""
        storage = self._kept.get(number)
        if storage is None and number in self._left:
            reference = self._left[number]
            storage = None if reference.expired() else torch.UntypedStorage._new_with_weak_ptr(
                reference.cdata)
        return storage

    # Calls.

    def call(self, function, args, kwargs):
        """Runs a call below autograd."""
        if self.state is State.IN_STEP and self._at < len(self._calls):
            call = self._calls[self._at]
            if call.function is function and call.is_simple and self._is_next(call, args):
                self._at += 1
                return self._part(call, call.parts[0], args, kwargs)
        tensors = tensors_of(args, kwargs)
        if self.state is State.IN_STEP:
            call = self._next(function, tensors)
            if call is not None:
                return self._planned(call, tensors, args, kwargs)
            return self._unplanned(function, tensors, args, kwargs)
        if not self._demand.paused:
            other = self._choose(function, tensors) if self.state is State.BETWEEN else None
            if other is not None:
                return other(function, args, kwargs)
            self._note(function, tensors)
        return self._demand.run(function, tensors, args, kwargs)

    def begin_with(self, function, args, kwargs):
        """Begins a step with its first call."""
        self._begin()
        return self.call(function, args, kwargs)

    def begins_with(self, function, tensors):
        """Whether a step of the plan begins with such a call, shapes apart."""
        return self._find(0, function, tensors) is not None

    def _is_next(self, call, args):
        """Whether a simple call is the step's next one, with all that it takes on the device: most are."""
        number, wanted, away, at = self._number, call.inputs, self._demand.away, 0
        try:
            for value in args:
                if isinstance(value, torch.Tensor):
                    address = memory_of(value)._cdata
                    if number.get(address) != wanted[at] or address in away:
                        return False
                    at += 1
        except (IndexError, NotImplementedError, RuntimeError):  # more tensors; one without memory
            return False
        return at == len(wanted) and call.grad == torch.is_grad_enabled() and not self._beside.calls

    def _next(self, function, tensors):
        """The step's next call, if this is it; else None."""
        if self._at == len(self._calls):
            return None
        call = self._calls[self._at]
        inputs, number = call.inputs, self._number.get
        if (call.function is not function or call.grad != torch.is_grad_enabled()
                or len(inputs) != len(tensors)):
            return None
        for tensor, wanted in zip(tensors, inputs):
            storage = storage_of(tensor)
            if (None if storage is None else number(storage._cdata)) != wanted:
                return None
        return call

    def _find(self, begin, function, tensors):
        """The place of this call, where the step does without the calls from `begin` to there; or None."""
        grad, inputs = torch.is_grad_enabled(), tuple(map(self._number_of, tensors))
        # Operands that the plan does not know may be any: their shapes say more.
        shapes = shapes_of(tensors) if inputs.count(None) == len(inputs) else None
        for at in range(begin, len(self._calls)):
            call = self._calls[at]
            if (call.function is function and call.grad == grad and call.inputs == inputs
                    and (shapes is None or call.shapes == shapes)
                    and (at == begin or not call.is_plain)):  # many calls are as such a one
                return at
            if not (call.optional or call.is_plain):
                return None
        return None

    def _number_of(self, tensor):
        storage = storage_of(tensor)
        return None if storage is None else self._number.get(storage._cdata)

    def _begin(self):
        self._demand.settle()  # a collective between the steps may work on what the plan moves
        if self._demand.moving is not self._moving:
            self._demand.arrive()  # another plan ends, which waits for what it has on its way and gets no memory in a step
        for number, held in self._held.items():  # what a departed step had is over
            if number not in self._persistent:
                self._demand.placed.discard(held)
        self._demand.reserved = self._reserved
        self._demand.refuses = True
        self._plan.step_begin()
        self._demand.step_begins()
        self.state = State.IN_STEP

    def _planned(self, call, tensors, args, kwargs):
        if self._beside.calls:
            self._goes_on()
        self._at += 1
        count = len(call.parts)
        if count == 1:
            return self._bring_for(call, call.parts[0], tensors, args, kwargs)
        results = []
        for part, (own, named) in zip(call.parts, split(args, kwargs, count)):
            if self.state is State.IN_STEP:
                result = self._bring_for(call, part, tensors_of(own, named), own, named)
            else:  # an index before this one departed
                result = self._demand.run(call.function, tensors_of(own, named), own, named)
            if result is not None:
                results.extend(result)
        return results or None

    def _bring_for(self, call, part, tensors, args, kwargs):
        if self._room.bring(call.function if call.takes_others else None, tensors, args):
            return self._part(call, part, args, kwargs)
        return self._without_room(call, args, kwargs)

    def _without_room(self, call, args, kwargs):
        """The step departs with a call for which there is no room beside what the plan does not move."""
        self.depart(_NO_ROOM)
        return self._demand.run(call.function, tensors_of(args, kwargs), args, kwargs)

    def _part(self, call, part, args, kwargs):
        if part.place is None:
            result = call.function(*args, **kwargs)
        else:
            if self._ended is not None:
                self._end_op()
            if not self._room.before(part, args, kwargs):
                return self._without_room(call, args, kwargs)
            self._op = (part, self._made(part) if part.writes else ())
            try:
                result = call.function(*args, **kwargs)
            except BaseException:
                self.depart(f"{call.function} raised an exception")
                raise
            self._op = (part, ())
        if call.communicates:
            self._demand.hand_over(call.function, tensors_of(args, kwargs), result, part.place is not None)
        if not (call.makes_nothing or self._names_outputs(part.outputs, result)):
            self._at -= 1  # this call was another one
            self.depart(f"{call.function} returned other storages than recorded")
            self._note(call.function, tensors_of(args, kwargs))
            return result
        if part.others:
            self._demand.wrote(call.function, args, kwargs)
        if part.place is None:
            return result
        self._op_ran(part)
        return result

    def _made(self, part):
        """Gives memory to what a call writes as a whole, and is away. Returns the numbers."""
        made = [number for number in part.writes
                if number in self._kept and self._kept[number].nbytes() == 0]
        for number in made:
            self._demand.device.resize(self._kept[number], self._bytes[number])
            self._meter.see(self._kept[number])
        return made

    def _op_ran(self, part):
        """An op of the plan has run: its outputs have names by now."""
        placed = self._demand.placed
        for number in part.writes:
            held = self._held[number]
            if held not in placed:
                self._demand.adopt(held, self._kept[number])
        for number in part.ends:
            placed.discard(self._held[number])
            storage = self._kept.pop(number)
            del self._number[storage._cdata]
            self._through.append(StorageWeakRef(storage))
        self._op = None
        self._ended = part.place
        self._demand.pending = 0

    def _end_op(self):
        """The plan learns that an op has ended when the next one begins: until then PyTorch may hold
        its operands, and what the plan brings next has no room."""
        if self._ended is not None:
            if self._demand.works:
                self._demand.settle()
            place, self._ended = self._ended, None
            # Before the plan brings what follows: the script may have them, a cycle of objects that Python has
            # yet to find, or for a moment the thread of an accelerator's backward(), which has just ended.
            alive = [reference for reference in self._through if not reference.expired()]
            if alive:
                self._demand.ended += alive
                self._demand.refuses = True
            self._through.clear()
            self._plan.after(place)

    def _names_outputs(self, outputs, result):
        """Finds the storages that a call has made. Returns whether they are as in the recorded step."""
        tensors = ((result,) if isinstance(result, torch.Tensor) and not result.is_sparse
                   else [tensor for tensor, _ in tensors_in(result)])
        if len(tensors) != len(outputs):
            return False
        same = True
        for tensor, number in zip(tensors, outputs):
            storage = storage_of(tensor)
            if storage is None:
                continue
            address = storage._cdata
            known = self._number.get(address)
            if number is not None and known == number:
                continue
            self._meter.see(storage)
            if number is None:
                continue
            if known is not None or storage.nbytes() != self._bytes[number] or number in self._kept:
                same = False
                continue
            self._number[address] = number
            self._kept[number] = storage
        return same

    def _wrote(self, number):
        """A storage's value changed: what its home holds is out of date."""
        storage = self._storage(number)
        if storage is not None and storage.nbytes() > 0:
            self._demand.adopt(self._held[number], storage)

    # Calls that the step has more, or less, than the recorded one.

    def _unplanned(self, function, tensors, args, kwargs):
        """A call that is not the step's next one: the step does without those before it, or it is one
        beside the plan, or the step departs."""
        place = self._find(self._at, function, tensors)
        if place is not None:
            if self._skip_to(place):
                return self._planned(self._calls[place], tensors, args, kwargs)
            self._note(function, tensors)
            return self._demand.run(function, tensors, args, kwargs)
        self._beside.begin(self._calls[self._at] if self._at < len(self._calls) else None, function, tensors)
        self._end_op()  # first: what the plan brings then takes room
        why = self._beside.refuses(function, tensors, args, kwargs)
        if why is None:
            return self._beside.run(function, tensors, args, kwargs)
        self._depart(self._beside.cause + why)
        self._note(function, tensors)
        return self._demand.run(function, tensors, args, kwargs)

    def _skip_to(self, place):
        """The step does without the calls before this one. Returns whether there is room."""
        while self._at < place:
            self._at += 1
            if not all(map(self._skip, self._calls[self._at - 1].parts)):
                self.depart(_NO_ROOM)
                return False
        return True

    def _skip(self, part):
        """The same for a part of one. Its results are for other such calls alone: empty memory will do."""
        if part.place is None:
            return True
        self._end_op()
        if not self._room.before(part, (), {}):
            return False
        for number in part.writes:
            storage = self._kept.get(number)
            if storage is None:
                storage = self._kept[number] = self._demand.device.new_storage(self._bytes[number])
                self._number[storage._cdata] = number
            elif storage.nbytes() == 0:
                self._demand.device.resize(storage, self._bytes[number])
            self._meter.see(storage)
        self._op_ran(part)
        return True

    def fill(self, tensors, after, makes_bytes):
        """Within a step: brings values for a method that reads memory and makes so much of it, until the stack `after`
        ends. None: it keeps the memory. Returns False where there is no room, or it would keep what is to leave."""
        self._end_op()
        return self._room.bring(None, tensors, ()) and self._beside.fill(tensors, after, makes_bytes)

    def _goes_on(self):
        """The step is back at its plan."""
        self._beside.calls.clear()
        self._detoured(self._beside.line, self._beside.cause)

    # Steps.

    def depart(self, cause):
        """Ends the plan's part in this step; values stay where they are."""
        self._depart(f"{cause} ({where()})")

    def _depart(self, cause):
        self._noted_departure(self, self._at, self._beside.calls)
        self._beside.calls.clear()
        self._leave()
        self._departed(cause)

    def _leave(self):
        if self._op is None:
            self._end_op()
        self._plan.leave()
        self._rest()
        self.state = State.DEPARTED
        part, made = self._op or (None, ())
        self._op = None
        for number in made:  # for a call that did not run: the bytes are nothing
            self._demand.device.resize(self._kept[number], 0)
            self._meter.left(self._kept[number])
        # For the plan the call has not run; its writes are the latest values all the same.
        for number in part.writes if part is not None else ():
            self._wrote(number)
        for number in [n for n in self._kept if n not in self._persistent]:
            storage = self._kept.pop(number)
            self._left[number] = StorageWeakRef(storage)
            self._demand.share(storage, self._held[number], self._bytes[number])

    def _rest(self):
        """The plan moves nothing until its next step."""
        self._demand.reserved = frozenset()
        self._demand.refuses = False
        self._demand.short.clear()
        self._demand.pending = 0

    def step_ended(self):
        """The optimizer's step has ended. Returns whether the whole step ran under the plan."""
        planned = False
        if self.state is State.IN_STEP:
            if not all(call.optional or call.is_plain for call in self._calls[self._at:]):
                self.depart("the step ended early")
            elif self._skip_to(len(self._calls)):
                if self._beside.calls:
                    self._goes_on()
                self._end_op()
                self._plan.step_end()
                self._rest()
                self._demand.sent(self._moving, self._peak_bytes)
                planned = True
        elif self.state is State.BETWEEN:
            self._departed(f"the step begins with another call ({where()})")
        # Tensors of a departed step that live on need their bytes; the rest is PyTorch's.
        for number in list(self._left):
            self._demand.unshare(self._left[number].cdata)
            del self._number[self._left.pop(number).cdata]
        for number in [n for n in self._kept if n not in self._persistent]:
            del self._number[self._kept.pop(number)._cdata]
        self.state = State.BETWEEN
        self._at = 0
        return planned

    def name_of(self, storage):
        """A storage's name in the recorded step, or None."""
        number = self._number.get(storage._cdata)
        return None if number is None else self.graph.managed[number].name

    def others_bytes(self):
        """Room.others_bytes."""
        return self._room.others_bytes

    def first_shapes(self):
        """Those that the step's first call takes."""
        return self._calls[0].shapes

    def signature_until(self, count):
        """signature_of() the first calls of a step."""
        return signature_of(self._calls[:count])

    def present(self):
        """Number -> storage, of those that exist between steps."""
        return {number: self._kept[number] for number in self._persistent}

    def counters(self):
        return self._plan.counters()

    def timeline(self):
        """The last step: (its begin, ops by position, cache ops). None: no whole step has run since
        the plan began to run, which it does anew after a departure or a fetch."""
        if self._plan is None:
            return self._last_timeline
        try:
            self._demand.arrive()  # the plan waits for its transfers
            return self._plan.timeline()
        except library.Error:
            return None

    def end_step(self):
        """Ends the plan's part in a step that runs; values stay where they are."""
        if self.state is State.IN_STEP:
            self._leave()

    def finish(self):
        """Ends the plan, wherever it is; values stay where they are."""
        self.end_step()
        if self._plan is not None:
            self._last_timeline = self.timeline()
            self._plan.close()
            self._plan = None
