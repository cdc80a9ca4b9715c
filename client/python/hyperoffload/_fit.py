"""`fit`: an unmodified training script under a memory budget."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time
import types

import torch

from . import _library
from ._meter import Meter
from ._replay import Call, Part, Replay
from ._step import storage_of, tensors_of
from .recorder import Recorder

# Storages below this size stay on the device: a transfer costs more than it frees.
_BYTES_MIN = 4096
# Steps that are recorded: the first makes the optimizer's states, the second is as all later ones.
_RECORDED = 2
_MEASURED_BYTES = 32 << 20
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class _Recorder(Recorder):
    """Also counts bytes, and keeps the storages that a step begins with."""

    def __init__(self, model, optimizer, meter):
        super().__init__(model, optimizer)
        self.meter = meter
        self.present = {}

    def _call(self, function, args, kwargs):
        result = super()._call(function, args, kwargs)
        for tensor in tensors_of((*args, result), kwargs):
            storage = storage_of(tensor)
            if storage is not None:
                self.meter.see(storage)
        return result

    def _step_ended(self, step):
        self.present = step.present()


def _command():
    """The path of the `hyperoffload` command: HYPEROFFLOAD_COMMAND, or the one on the path."""
    command = os.environ.get("HYPEROFFLOAD_COMMAND") or shutil.which("hyperoffload")
    if command is None:
        raise FileNotFoundError("the command `hyperoffload` is not on the path; set "
                                "HYPEROFFLOAD_COMMAND to where it is")
    return command


def _budget(device_memory, plain_bytes):
    """Bytes of "60%" (of what the step holds plainly), "2GiB" or a number."""
    if isinstance(device_memory, int):
        return device_memory
    text = device_memory.strip()
    if text.endswith("%"):
        return int(plain_bytes * float(text[:-1]) / 100)
    for unit, size in reversed(_UNITS.items()):
        if text.endswith(unit):
            return int(float(text[:-len(unit)]) * size)
    raise ValueError(f'device_memory is {device_memory!r}; write "60%", "2GiB" or a number of bytes')


def _peak(graph):
    """The largest sum of bytes that a graph holds at a time in program order."""
    first, last, size, persistent = {}, {}, {}, 0
    for place, op in enumerate(graph["ops"]):
        for storage in op["reads"] + op["writes"]:
            first.setdefault(storage, place)
            last[storage] = place
    for storage in graph["storages"]:
        if storage["persistent"]:
            persistent += int(storage["bytes"])
        else:
            size[storage["id"]] = int(storage["bytes"])
    change = [0] * (len(graph["ops"]) + 1)
    for storage, bytes_ in size.items():
        change[first[storage]] += bytes_
        change[last[storage] + 1] -= bytes_
    live = peak = 0
    for each in change:
        live += each
        peak = max(peak, live)
    return persistent + peak


def _movable(present):
    """Tells which storages a plan may move: those whose memory PyTorch can free and allocate again."""
    def keep(storage):
        if storage.kind == "INPUT" or storage.resized or storage.bytes < _BYTES_MIN:
            return False
        if not storage.begins_before:
            return True
        memory = present.get(storage.number)
        if memory is None:
            return False
        try:
            memory.resize_(memory.nbytes())  # refused where the memory is numpy's or shared
        except RuntimeError:
            return False
        return True
    return keep


class Run:
    """What `fit` returns: a context manager, and what its steps did."""

    def __init__(self, model, optimizer, device_memory, pool, hardware):
        self._model = model
        self._optimizer = optimizer
        self._device_memory = device_memory
        self._address = pool
        self._hardware = hardware
        self._stack = contextlib.ExitStack()
        self._meter = Meter()
        self._recorder = None
        self._replay = None
        self._pool = None
        self._report = None
        self._plain_bytes = 0
        self._peak_bytes = None  # None: the run has not ended
        self._budget_bytes = 0
        self._graph = None
        self._steps = 0
        self._planned = 0
        self._departures = {}
        self._ended_at = None
        self._step_s = []
        self._stall_s = []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._pool = _library.Pool(self._address, "pytorch")
            stack.callback(self._pool.close)
            self._replace(stack, self._optimizer, "step", self._after_step)
            self._replace(stack, torch, "save", self._while_paused)
            self._recorder = _Recorder(self._model, self._optimizer, self._meter)
            stack.push(self._end_mode)
            self._recorder.__enter__()
            self._ended_at = time.perf_counter()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        return self._stack.__exit__(kind, error, trace)

    def _end_mode(self, kind, error, trace):
        if self._recorder is not None:
            self._recorder.__exit__(kind or GeneratorExit, error, trace)  # the step is not whole
        self._peak_bytes = self._meter.peak  # the end brings everything back
        if self._replay is not None:
            self._replay.__exit__(kind, error, trace)
            self._replay.close()

    @staticmethod
    def _replace(stack, owner, attribute, around):
        """Calls `around(original, ...)` in place of a function until the run ends."""
        original = getattr(owner, attribute)
        had_own = attribute in vars(owner)

        # A wrapper keeps the function's attributes, and a method stays one: schedulers look at both.
        @functools.wraps(original)
        def function(*args, **kwargs):
            return around(original, *args, **kwargs)

        @functools.wraps(original)
        def method(_, *args, **kwargs):
            return around(original, *args, **kwargs)

        def restore():
            if had_own:
                setattr(owner, attribute, original)
            else:
                delattr(owner, attribute)

        is_method = isinstance(owner, torch.optim.Optimizer)
        setattr(owner, attribute, types.MethodType(method, owner) if is_method else function)
        stack.callback(restore)

    # The end of each step.

    def _after_step(self, original, *args, **kwargs):
        result = original(*args, **kwargs)
        if self._replay is not None:
            if self._replay.step_ended():
                self._planned += 1
                if self._planned == 1:
                    self._meter.restart()  # what had to leave has left
                counters = self._replay.counters()
                self._stall_s.append(counters.last_step_stall_ns / 1e9)
        else:
            self._record_next()
        self._steps += 1
        now = time.perf_counter()
        if self._replay is not None and self._planned > 0:
            self._step_s.append(now - self._ended_at)
        self._ended_at = now
        return result

    def _record_next(self):
        recorder = self._recorder
        recorder.__exit__(None, None, None)
        if self._steps + 1 < _RECORDED:
            self._meter.restart()  # the first step has no states before its end
            recorder.__enter__()
            return
        self._recorder = None
        self._plain_bytes = self._meter.peak
        self._replay = self._plan(recorder)
        self._replay.__enter__()

    def _plan(self, recorder):
        """Makes a plan of the recorded step, and a replay of it."""
        present = recorder.present
        graph = recorder.graph(_movable(present))
        self._graph = graph
        step = recorder.last_step()
        self._budget_bytes = _budget(self._device_memory, self._plain_bytes)
        # What the plan does not know stays on the device all the time.
        unmanaged = max(0, self._plain_bytes - _peak(graph))
        schedule = self._analyze(graph, self._budget_bytes - unmanaged)
        managed = {storage.number: (int(entry["bytes"]), entry["id"], entry["persistent"])
                   for storage, entry in recorder.kept(graph)}
        last = {}
        for op in step.ops:
            for storage in op.reads + op.writes if op.place is not None else ():
                last[storage.number] = op.place
        calls = [Call(call.function, call.grad, self._managed(call.inputs, managed),
                      [self._part_of(op, outputs, managed, last) for op, outputs in call.parts])
                 for call in step.calls]
        kept = {number: present[number] for number, (_, _, persistent) in managed.items()
                if persistent}
        return Replay(_library, self._pool, schedule, calls, managed, kept, self._meter,
                      self._depart)

    @staticmethod
    def _managed(numbers, managed):
        return tuple(number if number in managed else None for number in numbers)

    @classmethod
    def _part_of(cls, op, outputs, managed, last):
        outputs = cls._managed(outputs, managed)
        if op is None or op.place is None:
            return Part(None, outputs, (), ())
        writes = [s.number for s in op.writes if s.number in managed]
        used = dict.fromkeys(s.number for s in op.reads + op.writes)
        ends = [number for number in used if number in managed and not managed[number][2]
                and last[number] == op.place]
        return Part(op.place, outputs, writes, ends)

    def _analyze(self, graph, budget_bytes):
        if budget_bytes <= 0:
            raise MemoryError(
                f"the budget of {self._budget_bytes} bytes is below what cannot leave the device")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="hyperoffload-"))
        try:
            (folder / "graph.json").write_text(json.dumps(graph), encoding="utf-8")
            hardware = self._hardware
            if hardware is None:
                hardware = folder / "hardware.json"
                hardware.write_text(json.dumps(self._measured(graph)), encoding="utf-8")
            done = subprocess.run(
                [_command(), "analyze", str(folder / "graph.json"), "--hardware", str(hardware),
                 "--device-memory", str(budget_bytes), "--out", str(folder / "step.hos"),
                 "--report", str(folder / "report.html")],
                capture_output=True, text=True, check=False)
            if done.returncode == 3:
                raise MemoryError(f"the budget cannot be met: {done.stderr.strip()}")
            if done.returncode != 0:
                raise RuntimeError(f"hyperoffload analyze failed: {done.stderr.strip()}")
            self._report = (folder / "report.html").read_text(encoding="utf-8")
            return (folder / "step.hos").read_bytes()
        finally:
            shutil.rmtree(folder)

    def _measured(self, graph):
        """A hardware description with the measured link to the pool."""
        put, get = self._pool.measure(_MEASURED_BYTES)
        total = sum(int(storage["bytes"]) for storage in graph["storages"])
        link = {"latencyNs": "50000"}
        return {"name": "measured", "deviceBytes": str(total), "localDdr": {
            "capacityBytes": str(4 * total),
            "read": {"bytesPerS": str(int(get)), **link},
            "write": {"bytesPerS": str(int(put)), **link}}}

    def _depart(self, cause):
        if cause not in self._departures:
            print(f"hyperoffload: step {self._steps + 1} departs from the plan: {cause}",
                  flush=True)
        self._departures[cause] = self._departures.get(cause, 0) + 1

    # For the script.

    def _while_paused(self, original, *args, **kwargs):
        with self.paused():
            return original(*args, **kwargs)

    @contextlib.contextmanager
    def paused(self):
        """Brings all values to the device while the block runs: for exports, and for code that reads
        memory without PyTorch's operators (numpy(), data_ptr()). The budget does not hold in it."""
        replay = self._replay
        if replay is not None:
            replay.pause()
        try:
            yield self
        finally:
            if replay is not None:
                replay.resume()

    def stats(self):
        """What the run did so far.

        steps; planned_steps: of them, whole under the plan; departures: steps that left it.
        peak_allocated_bytes: of tensor storages at a time, from the first step that ran under the
        plan to the end of the run; peak_plain_bytes: in the recorded step. step_ms_median and
        stall_ms_median: of planned steps, else None.
        """
        median = lambda seconds: statistics.median(seconds) * 1e3 if seconds else None  # noqa: E731
        return {"steps": self._steps, "planned_steps": self._planned,
                "departures": sum(self._departures.values()),
                "peak_allocated_bytes": (self._meter.peak if self._peak_bytes is None
                                         else self._peak_bytes),
                "peak_plain_bytes": self._plain_bytes,
                "budget_bytes": self._budget_bytes, "step_ms_median": median(self._step_s),
                "stall_ms_median": median(self._stall_s)}

    def summary(self):
        """stats() as a few lines for people."""
        now = self.stats()
        if self._replay is None:
            return f"{now['steps']} steps recorded; the plan begins after {_RECORDED}"
        lines = [f"{now['planned_steps']} of {now['steps']} steps ran under the plan",
                 f"peak {now['peak_allocated_bytes'] / 2**20:.1f} MiB of "
                 f"{now['peak_plain_bytes'] / 2**20:.1f} MiB that the step holds plainly "
                 f"(budget {now['budget_bytes'] / 2**20:.1f} MiB)"]
        if now["step_ms_median"] is not None:
            lines.append(f"step {now['step_ms_median']:.1f} ms, of it waited for transfers "
                         f"{now['stall_ms_median']:.1f} ms (medians)")
        lines += [f"left the plan {count} times: {cause}"
                  for cause, count in self._departures.items()]
        return "\n".join(lines)

    def report(self, path):
        """Writes the analyzer's page about the plan. Raises RuntimeError before there is a plan."""
        if self._report is None:
            raise RuntimeError(f"there is no plan before {_RECORDED} steps have run")
        pathlib.Path(path).write_text(self._report, encoding="utf-8")

    def trace(self, path):
        """Writes what the last step did, for chrome://tracing and Perfetto.

        One row for the ops, named as in PyTorch, and one for the transfers. Raises RuntimeError where
        no step ran under the plan since the last departure or fetch.
        """
        timeline = self._replay.timeline() if self._replay is not None else None
        if timeline is None:
            raise RuntimeError("no step has run under the plan since it was left")
        ops, transfers = timeline
        events = []
        for row, spans, names in ((0, ops, [op["name"] for op in self._graph["ops"]]),
                                  (1, transfers, [f"transfer {i}" for i in range(len(transfers))])):
            events += [{"ph": "X", "pid": 0, "tid": row, "name": name, "ts": span.start_ns / 1e3,
                        "dur": (span.end_ns - span.start_ns) / 1e3,
                        "args": {"stall_us": span.stall_ns / 1e3, "bytes": span.bytes}}
                       for span, name in zip(spans, names) if span.end_ns > 0]
        pathlib.Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def fit(model, optimizer, *, device_memory, pool, replan="once", hardware=None):
    """Runs the training steps of a `with` block within a device memory budget.

        with hyperoffload.fit(model, optimizer, device_memory="60%",
                              pool="unix:/run/hyperoffload/control.sock") as run:
            train()                       # unmodified; a step ends with optimizer.step()
        print(run.summary())

    The first two steps are recorded as they are, in full memory; in the third, what is too much
    leaves. From then on tensors come and go by the plan of the second step: results are the same bit
    for bit. A step that differs from it still runs, and what is away is brought when an operator
    takes it; `run.stats()` counts such departures. Afterwards all values are on the device again.

    model: a torch.nn.Module on the CPU. optimizer: a torch.optim.Optimizer whose step() ends a step.
    device_memory: "60%" of what the recorded step holds, "2GiB", or bytes.
    pool: control addresses of HyperOffload's daemons, comma-separated.
    replan: "once", the only one there is: one plan for the run.
    hardware: path of a hardware file; None: the link to the pool is measured.

    Raises MemoryError where the budget cannot be met, naming the op, and Error where the pool fails.
    Threads: the one that trains. Tensors that are not in the model or the optimizer and exist before
    the step, as batches and frozen weights elsewhere, stay on the device, like all below 4 KiB.
    """
    if replan != "once":
        raise ValueError(f'replan is {replan!r}; only "once" is supported')
    for parameter in model.parameters():
        if parameter.device.type != "cpu":
            raise ValueError(f"the model is on {parameter.device}; only the CPU is supported")
    return Run(model, optimizer, device_memory, pool, hardware)
