"""What a run did: its steps, added up, and as lines for people."""

import collections
import statistics
from typing import NamedTuple

from .._memory.beyond import is_small_part

# Planned steps that a departed one is compared with: the last ones.
_RECENT = 1000
_HINT_AT = 2  # after so many departures a person hears of replan="auto"


def _median_ms(seconds):
    return statistics.median(seconds) * 1e3 if seconds else None


class Step(NamedTuple):
    """A step that has ended. fetched_bytes: on demand, of all steps so far. counts: its time does, in medians. stall_s,
    ops_s: if it ran as a whole under the plan, what it waited for transfers, and what its operators took when they were
    recorded."""

    seconds: float
    peak_bytes: int
    fetched_bytes: int
    is_recorded: bool
    counts: bool
    stall_s: float | None = None
    ops_s: float | None = None


def nodes_of(counters):
    """This part of Run.stats(): what the library counts of nodes, and of values on two of them; None: nothing yet."""
    names = {"nodes": "nodes", "nodes_lost": "nodes_lost", "values_doubled": "doubled_storages",
             "values_halved": "halved_storages", "values_repaired": "repaired_storages"}
    return {name: getattr(counters, field, 0) for name, field in names.items()}


class Departures:
    """Steps that left the plan for one cause, and what that cost: bytes that they fetched on demand afterwards, and by how
    much they were longer than planned ones; None: there were none yet."""

    def __init__(self):
        self.steps, self.fetched_bytes, self.more_s = 0, 0, None
        self.is_told = False

    def add(self, fetched_bytes, more_s):
        self.fetched_bytes += fetched_bytes
        if more_s is not None:
            self.more_s = (self.more_s or 0) + more_s


def _cost(fetched_bytes, more_s):
    """For a person."""
    fetched = f"fetched {fetched_bytes / 2**20:.1f} MiB on demand"
    if more_s is None:
        return fetched
    return f"{fetched} and took {abs(more_s) * 1e3:.1f} ms {'more' if more_s >= 0 else 'less'} than planned steps"


class Figures:
    """What the steps of a run did so far. say(text) tells a person something; hints: also of replan="auto"."""

    def __init__(self, say, hints):
        self._say, self._hints = say, hints
        self._cause = None  # for which the step that runs has left its plan
        self._fetched_bytes = 0  # on demand, before this step, or before it left its plan
        self.steps = 0  # that have ended
        self.replans = 0  # plans that took the place of one that steps did not keep to
        self.departures = {}  # cause -> Departures
        self.detours = {}  # line of the script -> times
        self._step_s = []
        self._stall_s, self._ops_s, self._longer = [], [], []  # planned steps alone; longer: their time, by that of their ops
        self._planned_s = collections.deque(maxlen=_RECENT)

    def ended(self, step):
        """A step (Step) has ended. Returns it as a line."""
        self.steps += 1
        cause, self._cause = self._cause, None
        fetched_bytes = step.fetched_bytes - self._fetched_bytes
        if step.counts:
            self._step_s.append(step.seconds)
        what = "record" if step.is_recorded else "departed" if cause else "on demand"
        if step.stall_s is not None:
            what = "replay"
            self._stall_s.append(step.stall_s)
            self._ops_s.append(step.ops_s)
            if step.ops_s > 0:
                self._longer.append(step.seconds / step.ops_s)
            self._planned_s.append(step.seconds)
        elif cause:
            more_s = step.seconds - statistics.median(self._planned_s) if self._planned_s else None
            self.departures[cause].add(fetched_bytes, more_s)
            self._tell(cause, f"step {self.steps} departed from the plan: {cause}; it {_cost(fetched_bytes, more_s)}")
            if self._hints and self.departed_steps() == _HINT_AT:
                self._say('steps that come back in a few shapes get a plan each with replan="auto"')
        return (f"step {self.steps}: {what}, {step.seconds * 1e3:.1f} ms"
                + (f", waited {step.stall_s * 1e3:.1f} ms" if step.stall_s is not None else "")
                + (f", fetched {fetched_bytes / 2**20:.1f} MiB" if fetched_bytes > 0 else "")
                + f", peak {step.peak_bytes / 2**20:.1f} MiB" + (f"; left the plan: {cause}" if cause else ""))

    def begins(self, fetched_bytes):
        """A step begins. fetched_bytes: on demand, until now."""
        self._fetched_bytes = fetched_bytes

    def departed(self, cause, fetched_bytes):
        """The step that runs has left its plan. fetched_bytes: on demand, of all steps so far; None: it was never under
        the plan. A person hears of it when it ends, with what it cost."""
        self._cause = cause
        if fetched_bytes is not None:
            self._fetched_bytes = fetched_bytes
        self.departures.setdefault(cause, Departures()).steps += 1

    def run_ended(self):
        """The step that runs does not end any more."""
        if self._cause is not None:
            self._tell(self._cause, f"step {self.steps + 1} departed from the plan, and did not end: {self._cause}")

    def _tell(self, cause, text):
        """Once for each cause of departures."""
        if not self.departures[cause].is_told:
            self._say(text)
        self.departures[cause].is_told = True

    def departed_steps(self):
        return sum(each.steps for each in self.departures.values())

    def detoured(self, line, cause):
        """The step that runs has done work that its plan does not have, and goes on under the plan."""
        if line not in self.detours:
            self._say(f"step {self.steps + 1} does work that its plan does not have, on demand, and goes on "
                      f"under the plan: {cause}")
        self.detours[line] = self.detours.get(line, 0) + 1

    def stats(self):
        """This part of Run.stats()."""
        return {"steps": self.steps, "planned_steps": len(self._stall_s),
                "departures": self.departed_steps(), "departure_causes": {
                    cause: {"steps": each.steps, "fetched_bytes": each.fetched_bytes,
                            "more_ms": None if each.more_s is None else each.more_s * 1e3}
                    for cause, each in self.departures.items()},
                "detours": sum(self.detours.values()),
                "replans": self.replans, "step_ms_median": _median_ms(self._step_s),
                "stall_ms_median": _median_ms(self._stall_s), "ops_ms_median": _median_ms(self._ops_s),
                "overhead": statistics.median(self._longer) - 1 if self._longer else None}


def lines_of(now, peak_line, figures):
    """stats(), the script's line at the peak, and the figures, as the lines of summary()."""
    lines = [f"{now['planned_steps']} of {now['steps']} steps ran under the plan",
             f"peak {now['peak_allocated_bytes'] / 2**20:.1f} MiB of "
             f"{now['peak_plain_bytes'] / 2**20:.1f} MiB that the step holds plainly "
             f"(budget {now['budget_bytes'] / 2**20:.1f} MiB)"]
    if now["peak_reserved_bytes"] is not None:
        lines[-1] += f"; PyTorch's allocator reserved {now['peak_reserved_bytes'] / 2**20:.1f} MiB"
    over = now["peak_allocated_bytes"] - now["budget_bytes"]
    if not is_small_part(over, now["budget_bytes"]):
        lines.append(f"the peak exceeded the budget by {over / 2**20:.1f} MiB{peak_line and ' at ' + peak_line}: what cannot "
                     "leave, what one call takes and makes, or paused() and torch.save() needed it")
    if now["step_ms_median"] is not None:
        lines.append(f"median step {now['step_ms_median']:.1f} ms")
    if now["stall_ms_median"] is not None:
        lines[-1] += f", of it waited for transfers {now['stall_ms_median']:.1f} ms"
    if now["overhead"] is not None:
        lines.append(f"overhead {now['overhead']:.0%} in planned steps: the step's operators took {now['ops_ms_median']:.1f} ms when it was "
                     "recorded")
    if now["replans"] > 0:
        lines.append(f"planned again {now['replans']} times, since transfers or operators changed their speed, or "
                     "what a plan does not move took more room")
    if now["copies"] > 1:
        lines.append(f"{now['values_doubled']} values have two copies on different nodes")
    if now["nodes_lost"] > 0:
        lines.append(f"lost {now['nodes_lost']} of {now['nodes']} nodes; {now['values_halved']} "
                     f"values have lost one of two copies, {now['values_repaired']} got another")
    if now["plans"] > 1:
        lines.append(f"{now['plans']} shapes of step have a plan each")
    return [*lines, *(f"left the plan {each.steps} times: {cause}; {_cost(each.fetched_bytes, each.more_s)}"
                     for cause, each in figures.departures.items()),
            *(f"did other work {count} times, and went on under the plan: at {line}"
              for line, count in figures.detours.items())]
