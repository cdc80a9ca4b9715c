"""What a run did: its steps, added up; as lines for people, and as events for trace viewers."""

import statistics


def _median_ms(seconds):
    return statistics.median(seconds) * 1e3 if seconds else None


class Figures:
    """What the steps of a run did so far. say(text) tells a person something."""

    def __init__(self, say):
        self._say = say
        self._cause = None  # for which the step that runs has left its plan
        self.steps = 0  # that have ended
        self.replans = 0  # plans that took the place of one that steps did not keep to
        self.departures = {}  # cause -> steps
        self.detours = {}  # line of the script -> times
        self._step_s = []
        self._stall_s, self._ops_s = [], []  # planned steps alone

    def ended(self, step_s, planned_s, is_recorded, counts):
        """A step has ended. planned_s: None, or if it ran as a whole under the plan, (what it has waited, what its
        operators took when they were recorded). counts: its time does. Returns (what it was, why it has left its plan or
        None)."""
        self.steps += 1
        cause, self._cause = self._cause, None
        if counts:
            self._step_s.append(step_s)
        if planned_s is not None:
            self._stall_s.append(planned_s[0])
            self._ops_s.append(planned_s[1])
            return "replay", None
        return "record" if is_recorded else "departed" if cause else "on demand", cause

    def departed(self, cause):
        """The step that runs has left its plan."""
        self._cause = cause
        if cause not in self.departures:
            self._say(f"step {self.steps + 1} departs from the plan: {cause}")
        self.departures[cause] = self.departures.get(cause, 0) + 1

    def detoured(self, line, cause):
        """The step that runs has done work that its plan does not have, and goes on under the plan."""
        if line not in self.detours:
            self._say(f"step {self.steps + 1} does work that its plan does not have, on demand, and goes on "
                      f"under the plan: {cause}")
        self.detours[line] = self.detours.get(line, 0) + 1

    def stats(self):
        """This part of Run.stats()."""
        step_ms, ops_ms = _median_ms(self._step_s), _median_ms(self._ops_s)
        return {"steps": self.steps, "planned_steps": len(self._stall_s),
                "departures": sum(self.departures.values()), "detours": sum(self.detours.values()),
                "replans": self.replans, "step_ms_median": step_ms, "stall_ms_median": _median_ms(self._stall_s),
                "ops_ms_median": ops_ms, "overhead": step_ms / ops_ms - 1 if step_ms and ops_ms else None}


def line_of(step, what, step_s, stall_s, peak_bytes, cause):
    """A step as a line. what, cause: as Figures.ended() returns them."""
    waited = "" if stall_s is None else f", waited {stall_s * 1e3:.1f} ms"
    return (f"step {step}: {what}, {step_s * 1e3:.1f} ms{waited}, peak {peak_bytes / 2**20:.1f} MiB"
            + (f"; left the plan: {cause}" if cause else ""))


def lines_of(now, peak_line, figures):
    """stats(), the script's line at the peak, and the figures, as the lines of summary()."""
    lines = [f"{now['planned_steps']} of {now['steps']} steps ran under the plan",
             f"peak {now['peak_allocated_bytes'] / 2**20:.1f} MiB of "
             f"{now['peak_plain_bytes'] / 2**20:.1f} MiB that the step holds plainly "
             f"(budget {now['budget_bytes'] / 2**20:.1f} MiB)"]
    if now["peak_reserved_bytes"] is not None:
        lines[-1] += f"; PyTorch's allocator reserved {now['peak_reserved_bytes'] / 2**20:.1f} MiB"
    over = now["peak_allocated_bytes"] - now["budget_bytes"]
    if over * 100 > now["budget_bytes"]:
        lines.append(f"the peak exceeded the budget by {over / 2**20:.1f} MiB{peak_line and ' at ' + peak_line}: what cannot "
                     "leave, what one call takes and makes, or paused() and torch.save() needed it")
    if now["step_ms_median"] is not None:
        lines.append(f"median step {now['step_ms_median']:.1f} ms")
    if now["stall_ms_median"] is not None:
        lines[-1] += f", of it waited for transfers {now['stall_ms_median']:.1f} ms"
    if now["overhead"] is not None:
        lines.append(f"overhead {now['overhead']:.0%}: the step's operators took {now['ops_ms_median']:.1f} ms when it was "
                     "recorded")
    if now["replans"] > 0:
        lines.append(f"planned again {now['replans']} times, since the speed of transfers or "
                     "operators changed")
    if now["copies"] > 1:
        lines.append(f"{now['values_doubled']} values have two copies on different nodes")
    if now["nodes_lost"] > 0:
        lines.append(f"lost {now['nodes_lost']} of {now['nodes']} nodes; {now['values_halved']} "
                     f"values have lost one of two copies, {now['values_repaired']} got another")
    if now["plans"] > 1:
        lines.append(f"{now['plans']} shapes of step have a plan each")
    return [*lines, *(f"left the plan {count} times: {cause}" for cause, count in figures.departures.items()),
            *(f"did other work {count} times, and went on under the plan: at {line}"
              for line, count in figures.detours.items())]


def events_of(timeline, ops):
    """Trace events of a step: one row for the ops, named as in PyTorch, and one for the transfers."""
    spans_of_ops, transfers = timeline
    events = []
    for row, spans, names in ((0, spans_of_ops, [op["name"] for op in ops]),
                              (1, transfers, [f"transfer {i}" for i in range(len(transfers))])):
        events += [{"ph": "X", "pid": 0, "tid": row, "name": name, "ts": span.start_ns / 1e3,
                    "dur": (span.end_ns - span.start_ns) / 1e3,
                    "args": {"stall_us": span.stall_ns / 1e3, "bytes": span.bytes}}
                   for span, name in zip(spans, names) if span.end_ns > 0]
    return events
