"""A step's measured times as a file for trace viewers, on the clock of PyTorch's profiler."""

import json
import os
import pathlib
import time

import torch

# Since PyTorch 2.4 the profiler counts from the last multiple of this since 1970, so that a double holds its times, and
# before that from 1970. Source: Kineto, libkineto/src/output_json.h, May 2024.
_BASE_NS = 7_889_238 * 10**9
# Row of the operators; that of the transfers is the next one. No thread has such an id: Linux gives less than this.
_FIRST_ROW = 1 << 22


def _base_ns():
    """Where the profiler of this PyTorch counts from. It has times in ns since it has a base."""
    results = getattr(torch._C._autograd, "_ProfilerResult", None)
    return time.time_ns() // _BASE_NS * _BASE_NS if hasattr(results, "trace_start_ns") else 0


def write_trace(path, replay):
    """Writes what the last step of a Replay did; None: there is none. See Run.trace()."""
    timeline = replay.timeline() if replay is not None else None
    if timeline is None:
        raise RuntimeError("no step has run under the plan since it was left")
    pathlib.Path(path).write_text(json.dumps(_trace_of(timeline, replay.graph.movable["ops"])), encoding="utf-8")


def _trace_of(timeline, ops):
    """A trace, as JSON has it, of a step: one row for the ops, named as in PyTorch, and one for the transfers. timeline:
    library.Plan.timeline(). ops: of the graph. Times are us, as the format wants them."""
    begun_ns, spans_of_ops, transfers = timeline
    base_ns, pid, events = _base_ns(), os.getpid(), []
    rows = (("operators", spans_of_ops, [op["name"] for op in ops]),
            ("transfers", transfers, [f"transfer {i}" for i in range(len(transfers))]))
    for row, (what, spans, names) in enumerate(rows, _FIRST_ROW):
        events.append({"ph": "M", "pid": pid, "tid": row, "name": "thread_name", "args": {"name": f"hyperoffload {what}"}})
        events += [{"ph": "X", "pid": pid, "tid": row, "name": name, "cat": f"hyperoffload {what}",
                    "ts": (begun_ns - base_ns + span.start_ns) / 1e3, "dur": (span.end_ns - span.start_ns) / 1e3,
                    "args": {"stall_us": span.stall_ns / 1e3, "bytes": span.bytes}}
                   for span, name in zip(spans, names) if span.end_ns > 0]
    return {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns, "traceEvents": events}
