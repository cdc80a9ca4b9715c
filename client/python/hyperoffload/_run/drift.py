"""Notices that transfers or operators take longer than their plan says."""

# A step is late where it waits for so many times of what is expected, and beyond that for so much of
# its own time, and so long; it is slow where its operators take so much longer.
_TIMES, _SHARE, _LEAST_S = 1.25, 0.1, 0.02
# So many slow steps in succession: other jobs slow a machine down for a moment, and no step waits for that.
_SLOW_NEEDED = 5


def ops_s_of(timeline):
    """What a step's operators took, by Replay.timeline(), without work beside the plan; each counts until the next begins."""
    return 0.0 if timeline is None else sum(span.end_ns - span.start_ns for span in timeline[1]) / 1e9


class Drift:
    """Watches the steps of one shape, over the plans that follow one another.

    step_ns, stall_ns: what the plan predicts of a step.
    """

    def __init__(self, step_ns, stall_ns, needed=2, settles=False):
        self.planned_stall_s, self.planned_ops_s = stall_ns / 1e9, (step_ns - stall_ns) / 1e9
        self._expected_s = self.planned_stall_s
        self._late = 0  # late steps in succession
        self._needed = needed  # so many in succession: a busy machine delays single ones
        self._settles = settles  # the next step is the first that shows what the plan does
        self._expected_rest_s = self._expected_ops_s = None  # with what the script does between operators
        self._slow = 0  # slow steps in succession

    def found(self, step_s, stall_s, ops_s):
        """Takes what a step took, whose step before ran under the same plan. Returns whether so many steps
        are late or slow that it is time to say so and plan again, as what has changed: "transfers",
        "operators", or None; not again for as much as that. ops_s(): what the operators took; few steps
        are asked for that."""
        margin_s = max(_SHARE * step_s, _LEAST_S)
        waits, is_slow = self._waits(stall_s, margin_s), self._is_slow(step_s - stall_s, ops_s, margin_s)
        return "transfers" if waits else "operators" if is_slow else None

    def _waits(self, stall_s, margin_s):
        late = stall_s > _TIMES * self._expected_s + margin_s
        if self._settles and late:  # the prediction leaves something out: to plan again does not help
            self._expected_s, self._needed, late = stall_s, 2 * self._needed, False
        self._settles = False
        self._late = self._late + 1 if late else 0
        if self._late < self._needed:
            return False
        self._late, self._expected_s = 0, stall_s
        return True

    def _is_slow(self, rest_s, ops_s, margin_s):
        """rest_s: what a step took without its stall, with work beside the plan."""
        if self._expected_ops_s is None:
            self._expected_ops_s = max(self.planned_ops_s, ops_s())
            self._expected_rest_s = max(self._expected_ops_s, rest_s)
        self._slow = self._slow + 1 if rest_s > _TIMES * self._expected_rest_s + margin_s else 0
        if self._slow < _SLOW_NEEDED:
            return False
        self._slow, self._expected_rest_s, now_s = 0, rest_s, ops_s()
        if now_s <= _TIMES * self._expected_ops_s + margin_s:
            return False  # the script does more beside the plan, which no other plan mends
        self._expected_ops_s = now_s
        return True

    def told(self, stall_s, ops_s):
        """What a step took, and what was planned, for a person."""
        return (f"waited {stall_s * 1e3:.0f} ms for transfers, planned {self.planned_stall_s * 1e3:.0f} ms; its "
                f"operators took {ops_s * 1e3:.0f} ms, planned {self.planned_ops_s * 1e3:.0f} ms")

    def planned_again(self, step_ns, stall_ns):
        """The drift of the plan that follows."""
        return Drift(step_ns, stall_ns, self._needed, True)
