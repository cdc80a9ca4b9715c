"""What a run did, as lines for people and as events for trace viewers."""


def lines_of(now, peak_line, departures, detours):
    """stats(), the script's line at the peak, and the causes of departures and detours, as the lines of summary()."""
    lines = [f"{now['planned_steps']} of {now['steps']} steps ran under the plan",
             f"peak {now['peak_allocated_bytes'] / 2**20:.1f} MiB of "
             f"{now['peak_plain_bytes'] / 2**20:.1f} MiB that the step holds plainly "
             f"(budget {now['budget_bytes'] / 2**20:.1f} MiB)"]
    over = now["peak_allocated_bytes"] - now["budget_bytes"]
    if over * 100 > now["budget_bytes"]:
        lines.append(f"the peak exceeded the budget by {over / 2**20:.1f} MiB{peak_line and ' at ' + peak_line}: what cannot "
                     "leave, what one call takes and makes, or paused() and torch.save() needed it")
    if now["step_ms_median"] is not None:
        lines.append(f"median step {now['step_ms_median']:.1f} ms")
    if now["stall_ms_median"] is not None:
        lines[-1] += f", of it waited for transfers {now['stall_ms_median']:.1f} ms"
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
    return [*lines, *(f"left the plan {count} times: {cause}" for cause, count in departures.items()),
            *(f"did other work {count} times, and went on under the plan: at {line}"
              for line, count in detours.items())]


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
