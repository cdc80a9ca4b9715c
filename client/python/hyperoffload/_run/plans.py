"""Which plan a step takes, where a run has several, and which steps are recorded for another one."""

import collections

from .._memory.meter import BYTES_MIN
from .._pool.library import Error
from .._torch.step import bytes_as, shapes_of

# So many plans are kept at a time; each has homes and a replay.
PLANS_MAX = 8
# Steps that are looked back at, and the longest pattern, to tell which shape comes next.
_HISTORY, _PATTERN_MAX = 64, 16
# Shapes that have departed and may come back.
_SEEN_MAX = 64
# A plan that does not fit its steps is made again so often where replan is "once".
_AGAIN_MAX = 3
# So often a plan is made anew that leaves more room for what it does not move.
_ROOMS_MAX = 16
# So often plans end for one that has homes of their values on another tier: each costs a plan made anew.
_CHANGES_MAX = 3
# Where replan is "once", so many steps of another shape in succession show that it stays so.
_LASTING = 4
# A plan that was refused is tried again when this part is gone of what could not leave, so many bytes at least.
_FREED, _FREED_MIN = 0.1, 1 << 16

RECORD = object()  # what choose() returns for a step that is to be recorded


def _extended(signature, function, shapes):
    """The signature of a step with one call more. Calls on small tensors do not count: logging has them."""
    large = any(bytes_as(*each) >= BYTES_MIN for each in shapes)
    return hash((signature, function, shapes)) if large else signature


def steps_calls(graph):
    """The calls of a recorded step. It is recorded from the end of the last one: what logs the loss comes
    first."""
    first = next(i for i, call in enumerate(graph.calls) if not call.is_plain)
    return graph.calls[first:]


def signature_of(calls):
    """What tells a step's shape from others: its calls on large tensors, and their shapes."""
    signature = 0
    for call in calls:
        signature = _extended(signature, call.function, call.shapes)
    return signature


class Plans:
    """The replays of a run. is_auto: each shape of step that comes back gets a plan; else one plan is kept,
    and made again where it does not fit the steps. say(text) tells a person something.

    The first call of a step says which plans fit it. Where several do, the order of the last steps says
    which one it is.
    """

    def __init__(self, is_auto, say):
        self.replays = []  # the one that was used last is the last one
        self._is_auto = is_auto
        self._say = say
        self._seen = {}  # signature of a step that departed -> its first call
        self._refused = {}  # signature for which no plan can be made -> bytes that could not leave then
        self._history = collections.deque(maxlen=_HISTORY)  # signatures
        self._first = None  # (function, shapes) of the first call of this step
        self._noted = 0  # the signature of this step so far
        self._left = _AGAIN_MAX
        self._has_dropped = False
        self._changes, self._rooms = 0, 0

    # A step.

    def choose(self, function, tensors):
        """A call comes between steps. Returns the replay whose step it begins, RECORD, or None: none."""
        fitting = [replay for replay in self.replays if replay.begins_with(function, tensors)]
        if not fitting:
            return None
        self._first = first = (function, shapes_of(tensors))
        known = {replay.signature: replay for replay in fitting if replay.first_shapes() == first[1]}
        waiting = [signature for signature, call in self._seen.items() if call == first]
        if not waiting and len(known) < 2:
            return next(iter(known.values()), fitting[-1])
        return known.get(self._expected([*known, *waiting]), RECORD)

    def _expected(self, signatures):
        """Which of them the next step has, by what followed the longest pattern that has just come
        again. In doubt, the first."""
        history = list(self._history)
        for length in range(min(_PATTERN_MAX, len(history) - 1), 0, -1):
            pattern = history[-length:]
            followed = collections.Counter(
                history[end] for end in range(length, len(history))
                if history[end - length:end] == pattern and history[end] in signatures)
            if followed:
                return max(signatures, key=lambda each: followed[each])
        return signatures[0]

    def note(self, function, tensors):
        """A call of a step that runs without a plan."""
        self._noted = _extended(self._noted, function, shapes_of(tensors))

    def departed(self, replay, count, beside):
        """So many calls of the step ran under a plan, and then those beside it."""
        self._noted = replay.signature_until(count)
        for function, shapes in beside:
            self._noted = _extended(self._noted, function, shapes)

    def ended(self, replay, fixed_bytes):
        """A step has ended. replay: under which it ran as a whole, or None. fixed_bytes(): of what cannot leave.
        Returns whether the next step is to be recorded from its beginning."""
        signature = self._noted if replay is None else replay.signature
        repeats = bool(self._history) and self._history[-1] == signature
        self._history.append(signature)
        first, self._first, self._noted = self._first, None, 0
        if replay is not None:
            self.replays.remove(replay)
            self.replays.append(replay)
            replay.is_proven, replay.misses = True, 0
            return False
        own = self.with_signature(signature)
        if own is not None:  # its tensors may be others now
            own.misses += 1
            if own.misses < 2 or not self._may_again():
                return False
            self._drop(own)
            return True
        if signature in self._refused:
            # A checkpoint of the script may have been in the way, and be gone.
            freed = self._refused[signature] - fixed_bytes()
            may = self._is_auto or not any(each.is_proven for each in self.replays)
            return freed >= max(_FREED * self._refused[signature], _FREED_MIN) and may and self._may_again()
        if self._is_auto and first is not None:
            self._seen[signature] = first
            if len(self._seen) > _SEEN_MAX:
                del self._seen[next(iter(self._seen))]
            return False
        lasts = list(self._history)[-_LASTING:].count(signature) == _LASTING
        return (lasts or repeats and not any(each.is_proven for each in self.replays)) and self._may_again()

    def recorded(self, signature, steps=1):
        """So many steps in succession have been recorded."""
        self._history.extend([signature] * steps)
        self._first, self._noted = None, 0

    def may_have_room(self, replay):
        """Whether a replay, in which something had no room, gets a plan with more: so often in a run."""
        if replay not in self.replays or replay.is_full:
            return False
        self._rooms += 1
        return self._rooms <= _ROOMS_MAX

    def _may_again(self):
        if not self._is_auto:
            self._left -= 1
        return self._left >= 0

    # Plans.

    def with_signature(self, signature):
        return next((each for each in self.replays if each.signature == signature), None)

    def add(self, replay):
        """A shape of step has a plan from now on."""
        if replay.displaces or not self._is_auto:
            while self.replays:
                self._drop(self.replays[0])
        if len(self.replays) == PLANS_MAX:
            if not self._has_dropped:
                self._say(f"more than {PLANS_MAX} shapes of step come back: the plan that was not used for "
                          "longest makes room for each new one")
            self._has_dropped = True
            self._drop(self.replays[0])
        self._seen.pop(replay.signature, None)
        self._refused.pop(replay.signature, None)
        self.replays.append(replay)

    def refuse(self, signature, fixed_bytes):
        """No plan can be made for such steps, while so many bytes cannot leave."""
        self._seen.pop(signature, None)
        self._refused[signature] = fixed_bytes

    def loaded(self, load, uses_flash):
        """Returns the replay that load() makes. Plans that have homes of the same values on another tier end before, a
        few times. uses_flash: whether the new plan has some on flash."""
        try:
            return load()
        except Error as error:
            on_flash = uses_flash or any(each.uses_flash for each in self.replays)
            if error.name != "conflict" or not on_flash or self._changes == _CHANGES_MAX:
                raise
        self._changes += 1
        while self.replays:
            self._drop(self.replays[0])
        return load()

    def replace(self, earlier, replay):
        """A plan of the same step takes the place of an earlier one, which may have ended."""
        if earlier in self.replays:
            self.replays.remove(earlier)
            earlier.finish()
        self.replays.append(replay)

    def _drop(self, replay):
        self.replays.remove(replay)
        replay.finish()
