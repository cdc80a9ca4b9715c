"""`Run`: the steps of a script under a memory budget, and what they did."""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._memory.demand import Demand
from .._memory.meter import Meter
from .._memory.readers import Readers
from .._memory.resizable import make_resizable, watch_loads
from .._memory.saving import bring_all, watch_saves
from .._plan.analyze import Links
from .._plan.graph import Graph, RunRecorder, show_model, storages_by_name, tensors_of_job
from .._plan.plan import Plan, plan_of
from .._pool import library
from .._pool.notice import Notice, notice_of
from .._torch.compiled import refuse_compiled
from .._torch.devices import device_of
from .._torch.hooks import before_forks, mode_of, replace
from .._torch.interrupts import Guard
from .._torch.script import said_call
from .._torch.script import say as _say
from .._torch.step import bytes_of, local_of, storage_of, tensors_of
from .drift import Drift, ops_s_of
from .figures import Figures, Step, lines_of, nodes_of
from .plans import PLANS_MAX, RECORD, Plans, signature_of, steps_calls
from .replay import Replay, State
from .trace import write_trace

# Steps that are recorded: the first makes the optimizer's states, the second is as all later ones; the third with
# averages of weights, and with DistributedDataParallel, which makes its buckets anew in its second step.
_RECORDED, _RECORDED_PARALLEL = 2, 3
# A plan that left too little room for what it does not move is made again with this part of the budget more.
_MORE = 32


class Run:
    """What fit() and Plan.applied() return: a context manager, and what its steps did.

        with hyperoffload.fit(model, optimizer, device_memory="60%", pool=POOL) as run:
            train()
        print(run.summary())

    A run is entered once, and one at a time in a process: all operators of the process come to it.
    After the block, also after an exception in it, all values are on the device.
    """

    __module__ = "hyperoffload"
    _entered: "Run | None" = None  # the one that has begun and not ended

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, budget: Any, pool: str,
                 replan: str, hardware: Any, copies: int, plan: Plan | None = None,
                 pool_options: dict[str, Any] | None = None, log: Callable[[str], Any] | None = None) -> None:
        self._model, self._optimizer = model, optimizer
        self._budget, self._replan = budget, replan
        self._address, self._hardware, self._copies = pool, hardware, copies
        self._pool_options = pool_options or {}
        self._held = None  # _copies_held() at the end of the run
        self._stack = contextlib.ExitStack()
        self._device = device_of(model)
        self._meter, self._demand = Meter(self._device.counted), None
        self._guard = Guard()
        self._mode = mode_of(self._device, explain=self._explain, guard=self._guard)
        self._recorder, self._is_recording = None, False
        self._recorded_count = _RECORDED
        self._replay, self._pool, self._links = None, None, None
        self._plans = Plans(replan == "auto", _say)
        self._plan_given = plan
        self._page = None if plan is None else plan.page  # the analyzer's
        self._plain_bytes = 0 if plan is None else plan.graph.plain_bytes
        self._fixed_bytes = 0  # most bytes at a time of what cannot leave
        self._figures, self._log = Figures(_say, hints=replan == "once"), log
        self._steady = self._ended_at = None  # the replay under which the last step ran as a whole, and when that ended
        self._told_drift = set()  # what has changed since the plan, as Drift.found() says

    def __enter__(self) -> "Run":
        """Connects to the pool, and moves what is beyond the budget there. Raises Error where that fails."""
        if self._demand is not None:
            raise RuntimeError("a run is entered once; call fit() again")
        if Run._entered is not None:
            raise RuntimeError("another run has not ended: one fit() at a time in a process")
        try:
            with self._guard, contextlib.ExitStack() as stack:
                self._guard.install(stack)
                stack.callback(setattr, Run, "_entered", None)
                Run._entered = self
                self._pool = library.Pool(self._address, "pytorch", **self._pool_options)
                stack.callback(self._pool.close)
                self._demand = Demand(self._pool, self._device, self._meter, self._limit, self._copies)
                self._links = Links(self._pool, self._device, self._demand)
                stack.push(self._end)
                self._show_model()
                replace(stack, self._optimizer, "step", self._after_step)
                stack.callback(lambda: self._is_recording and self._recorder.end(False))
                watch_loads(stack, self._demand, self._guard)
                watch_saves(stack, self._demand, self._guard, self._leave_step)
                before_forks.append(self._before_fork)
                stack.callback(before_forks.remove, self._before_fork)
                Readers(stack, self._demand, self._guard, self._replay_in_step, self._leave_step, _say)
                replace(stack, torch.nn.parallel.DistributedDataParallel, "forward", self._in_parallel)
                refuse_compiled(stack, self._demand.is_paused)
                self._device.keep_stream(stack, self._demand.is_paused)
                self._mode.call = self._on_demand
                self._recorder = RunRecorder(self._model, self._optimizer, self._demand)
                if self._plan_given is not None:
                    self._apply()
                elif self._replan != "never":
                    self._record()
                stack.enter_context(self._mode)
                self._step_begins()
                self._stack = stack.pop_all()
        except BaseException as error:
            # The guard's end runs handlers that have waited. If one raises, Python does not call __exit__().
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _show_model(self):
        """What exists already may leave, and does at once what is too much."""
        make_resizable(map(storage_of, tensors_of_job(self._model, self._optimizer)), self._device)
        show_model(self._model, self._optimizer, self._demand, _say)
        # Each step holds at least the parameters and their gradients.
        self._plain_bytes = max(self._plain_bytes, self._meter.bytes + sum(
            bytes_of(local_of(each)) for each in self._model.parameters() if each.requires_grad))
        if self._hardware is None and self._replan != "never":
            self._links.measure_ahead(self._limit())
        self._demand.room(0)
        self._meter.restart()

    def _limit(self):
        """Bytes that tensors may hold at a time."""
        if self._replay is None:
            self._plain_bytes = max(self._plain_bytes, self._meter.plain_peak)
        return self._budget(self._plain_bytes)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        """Brings all values to the device, and disconnects."""
        if kind is None and self._figures.steps == 0:
            _say("no step ended: optimizer.step() of the optimizer that fit() was given was not called")
        with self._guard:
            return self._stack.__exit__(kind, error, trace)

    def _end(self, kind, error, trace):
        self._figures.run_ended()
        if kind is None:
            self._tell_beyond()
        self._meter.keep_peaks()  # the end brings everything back
        self._held = self._copies_held()
        try:
            try:
                for replay in self._plans.replays:
                    replay.end_step()
                # Before the plans end: they have the homes of the step's values.
                bring_all(self._model, self._optimizer, self._demand, _say)
                for replay in self._plans.replays:
                    replay.finish()
                self._demand.pause()  # what was on its way
            except library.Error as lost:
                raise self._demand.rescued(lost)
            finally:
                self._demand.close()
        except library.Error as lost:
            if kind is None:
                raise
            _say(f"not all values are on the device again: {lost}")  # the first error says more

    def _on_demand(self, function, args, kwargs):
        return self._demand.run(function, tensors_of(args, kwargs), args, kwargs)

    def _explain(self, error, function, args, kwargs):
        """Adds to an error where in the script it came up, and in which call."""
        names = {storage._cdata: name
                 for name, storage in storages_by_name(self._model, self._optimizer).items()}

        def name_of(storage):
            return names.get(storage._cdata) or (self._replay and self._replay.name_of(storage))

        error.args = (f"{error}\n  in step {self._figures.steps + 1} at {said_call(function, args, kwargs, name_of)}",)

    # The end of each step.

    def _after_step(self, original, *args, **kwargs):
        result = original(*args, **kwargs)
        with self._guard:
            self._step_ended()
        return result

    def _step_ended(self):
        replay, recorded, whole = self._replay, self._is_recording, False
        if recorded:
            self._end_recording()
        elif replay is not None:
            whole = bool(self._plans.replays) and replay.step_ended()  # without plans, an ended one's
        line, page, begun = self._count(recorded, replay if whole else None), self._page, time.perf_counter()
        try:
            if recorded:
                self._recorded()
            elif replay is not None:
                if self._plans.ended(replay if whole else None, self._demand.fixed.swept_bytes):
                    self._record()
                elif whole:
                    self._judge(replay)
                elif replay.others_bytes() > 0 and self._plans.may_have_room(replay):
                    self._make_room(replay)
                if not whole:
                    self._steady = None
            elif self._plan_given is not None:
                self._apply()
        finally:  # a step whose plan fails is a line, too
            if self._log is not None:
                took_ms = (time.perf_counter() - begun) * 1e3
                self._log(line if self._page is page else f"{line}; planned in {took_ms:.0f} ms")
        self._tell_beyond()
        self._step_begins()

    def _tell_beyond(self):
        """Tells of calls that the budget is too small for, once it is known."""
        told = self._demand.beyond.told(self._limit()) if self._figures.steps >= self._recorded_count else None
        if told is not None:
            _say(told)

    def _step_begins(self):
        """No step counts bytes that were fetched for a plan."""
        self._figures.begins(self._fetched_bytes())
        self._ended_at = time.perf_counter()

    def _count(self, recorded, replay):
        """A step has ended. recorded: it was. replay: under which it ran as a whole, or None. Returns its line."""
        figures = self._figures
        planned = () if replay is None else (replay.counters().last_step_stall_ns / 1e9, replay.graph.ops_ns / 1e9)
        return figures.ended(Step(time.perf_counter() - self._ended_at, self._meter.peak, self._fetched_bytes(), recorded,
                                  figures.steps >= self._recorded_count, *planned))

    def _judge(self, replay):
        """Compares a whole step with its plan."""
        counters = replay.counters()
        step_s, stall_s = counters.last_step_ns / 1e9, counters.last_step_stall_ns / 1e9
        # A first step under a plan brings what later ones find on the device. An accelerator's times are
        # those at which work was queued.
        if self._steady is replay and not self._device.is_accelerator:
            what = replay.drift.found(step_s, stall_s, lambda: ops_s_of(replay.timeline()))
            if what is not None:
                self._drifted(what, stall_s)
        self._steady = replay

    def _drifted(self, what, stall_s):
        """Transfers or operators have another speed than planned, and the plan has no room for it."""
        again = self._replan == "auto"
        if not again and what in self._told_drift:
            return
        self._told_drift.add(what)
        advice = ("planning again" if again else "a plan of now may be faster: analyze again"
                  if self._plan_given is not None else 'a plan of now may be faster: replan="auto"')
        _say(f"step {self._figures.steps} {self._replay.drift.told(stall_s, ops_s_of(self._replay.timeline()))}; {advice}")
        if again:
            _, ops, _ = self._replay.timeline()
            graph = self._replay.graph.retimed([op.end_ns - op.start_ns for op in ops])
            self._plan_anew(self._replay, [graph], None, self._replay.drift)

    def _make_room(self, earlier):
        """Replaces a plan by one that leaves room for what it does not move to grow again, or for a part of the budget."""
        graph, part = earlier.graph, int(self._limit()) // _MORE
        others_bytes = max(graph.fixed_bytes, earlier.others_bytes())
        sizes = sorted({others_bytes + part, 2 * others_bytes - graph.fixed_bytes + part}, reverse=True)
        self._plan_anew(earlier, map(graph.with_fixed, sizes), self._hardware, None)

    def _plan_anew(self, earlier, graphs, hardware, drift):
        """Replaces a plan by one of the first of these Graphs of its step that can have one."""
        for graph in graphs:
            try:
                plan = plan_of(graph, self._limit(), hardware, self._links, self._copies_now())
                replay = self._replay_of(plan, earlier.present(), drift)
            except (MemoryError, RuntimeError) as error:
                why = error
                continue
            self._page = plan.page
            self._plans.replace(earlier, replay)
            self._use(replay)
            self._figures.replans += 1
            return
        earlier.is_full = True
        _say(f"{'the plan stays' if earlier in self._plans.replays else 'steps run on demand'}: {why}")

    def _record(self, begins_alike=False):
        """Records a step from here on. begins_alike: with the first call of one that has a plan."""
        show_model(self._model, self._optimizer, self._demand, _say)  # states may be others than before
        self._demand.fixed.restart()
        self._demand.adopts_read = False
        self._recorder.begins_alike = begins_alike
        self._recorder.begin()
        self._is_recording = True
        self._mode.call = self._recorder.call

    def _end_recording(self):
        """The step that was recorded has ended."""
        self._fixed_bytes = self._demand.fixed.peak
        self._is_recording, self._demand.adopts_read = False, True
        self._recorder.end(True)

    def _recorded(self):
        """Records the next step, or plans."""
        if self._figures.steps == self._recorded_count == _RECORDED and self._recorder.needs_another():
            self._recorded_count += 1
        if self._figures.steps < self._recorded_count:
            self._limit()
            if self._figures.steps == 1:
                self._meter.restart_plain()  # the first step has no states before its end
            self._record()
        elif self._replay is None:
            self._plain_bytes = self._meter.plain_peak
            self._mode.call = self._on_demand
            self._use(self._plan(Graph(self._recorder, self._demand, self._fixed_bytes, self._plain_bytes)))
            self._plans.add(self._replay)
            self._plans.recorded(self._replay.signature, self._recorded_count)
        else:
            self._plan_more()

    def _use(self, replay):
        self._replay = replay
        limit = self._limit()  # from now on it stays
        self._demand.limit = lambda: limit
        self._mode.call = replay.call

    def _plan_more(self):
        """Plans the recorded step, which is of another shape than those with a plan, or whose plan does not
        fit it any more."""
        self._mode.call = self._replay.call
        graph = Graph(self._recorder, self._demand, self._fixed_bytes, self._plain_bytes)
        signature = signature_of(steps_calls(graph))
        self._plans.recorded(signature)
        known = self._plans.with_signature(signature)
        if known is not None:  # another shape was expected
            self._use(known)
            return
        try:
            replay = self._plan(graph)
        except (MemoryError, RuntimeError) as error:
            _say(f"steps as step {self._figures.steps} run on demand: {error}")
            self._plans.refuse(signature, self._demand.fixed.swept_bytes())
            return
        self._plans.add(replay)
        self._use(replay)
        if len(self._plans.replays) > 1:
            _say(f"step {self._figures.steps} has a shape that comes back: a plan of its own, "
                 f"{len(self._plans.replays)} of at most {PLANS_MAX}")

    def _choose(self, function, tensors):
        """For replays: what runs the calls of a step that begins with this one; None: none does."""
        chosen = self._plans.choose(function, tensors)
        if chosen is None:
            return None
        if chosen is RECORD:
            self._record(begins_alike=True)
            return self._mode.call
        self._use(chosen)
        return chosen.begin_with

    def _plan(self, graph):
        """Makes a plan of a recorded step, and a replay of it."""
        plan = plan_of(graph, self._limit(), self._hardware, self._links, self._copies_now())
        self._page = plan.page
        present = {number: self._recorder.present[number] for number, each in graph.managed.items()
                   if each.persistent}
        return self._replay_of(plan, present)

    def _replay_of(self, plan, present, earlier=None):
        """A replay of a plan. earlier: the Drift of the plan that it replaces."""
        needs = library.schedule_info(plan.schedule)
        acts = self._note_departure, self._figures.detoured, self._choose
        drift = (Drift if earlier is None else earlier.planned_again)(needs.step_ns, needs.stall_ns)
        return self._plans.loaded(lambda: Replay(self._demand, plan, present, self._plans, acts, drift), needs.flash_bytes > 0)

    def _apply(self):
        """Begins to run under the plan that was given, if what it moves exists by now. Else the first
        step runs on demand, which makes the optimizer's states."""
        named = storages_by_name(self._model, self._optimizer)
        present = self._plan_given.graph.present_of(named, self._meter.plain_bytes_of, self._figures.steps == 0)
        if present is not None:
            self._use(self._replay_of(self._plan_given, present))
            self._plans.add(self._replay)

    def _note_departure(self, cause):
        """For replays: a step has left its plan."""
        has_left = self._replay.state is State.DEPARTED  # else the step began with another call than the plan
        self._figures.departed(cause, self._fetched_bytes() if has_left else None)

    def _fetched_bytes(self):
        return self._demand.runtime.counters().fetched_bytes

    # For the script.

    def _in_parallel(self, original, *args, **kwargs):
        self._recorded_count = _RECORDED_PARALLEL
        return original(*args, **kwargs)

    def _before_fork(self):
        if self._demand.is_ours(()) and not self._device.is_accelerator:  # no child can use its values
            with self._guard.quietly():  # Python drops what is raised before a fork
                self._demand.bring_all_but(storages_by_name(self._model, self._optimizer).values())

    def _replay_in_step(self):
        return self._replay if self._replay is not None and self._replay.state is State.IN_STEP else None

    def _leave_step(self, cause):
        replay = self._replay_in_step()
        if replay is not None:
            replay.depart(cause)

    @contextlib.contextmanager
    def paused(self) -> Iterator["Run"]:
        """Brings all values to the device while a block runs.

            with run.paused():
                export(model)

        For exports, and for code that uses memory without PyTorch's operators, as what data_ptr() gave or
        writes to what numpy() gave. The budget does not hold in the block, so all values have to fit. In
        the middle of a step, the rest of the step runs on demand. Raises RuntimeError where the run has not
        begun or has ended, Error where the pool fails.
        """
        if Run._entered is not self:
            raise RuntimeError("the run has not begun" if self._demand is None else "the run has ended")
        with contextlib.ExitStack() as stack:
            with self._guard:  # its end may raise, as in __enter__()
                self._leave_step("paused within a step")
                self._demand.pause()
                stack.callback(self._resume)
            yield self

    def _resume(self):
        with self._guard:
            self._demand.resume()

    def _copies_held(self):
        return self._held or nodes_of(None if self._demand is None else self._demand.runtime.counters())

    def _copies_now(self):
        """Copies that a new plan can have: two need two nodes."""
        held = self._copies_held()
        return min(self._copies, max(1, held["nodes"] - held["nodes_lost"]))

    @property
    def notice(self) -> Notice | None:
        """None, or a Notice: nodes that the job should leave. Write a checkpoint and end, or go on without
        what it has there. Asks nobody: it is as old as a third of the daemons' lease, 3 s by default."""
        told = self._pool.notice() if self._pool is not None and self._pool.handle is not None else None
        return notice_of(told)

    def stats(self) -> dict[str, Any]:
        """What the run did so far. Raises nothing.

        steps; planned_steps: of them, whole under a plan; departures: steps that left it;
        departure_causes: for each cause, how many of them ("steps"), what they fetched on demand afterwards
        ("fetched_bytes"), and by how much they were longer than the median of planned steps in all
        ("more_ms"; None before there is one). detours: times that a step did other work and went on under
        its plan; plans: that there are now; replans: new plans since the speed of transfers or operators
        changed, or what the plan does not move took more room than it left.
        peak_allocated_bytes: of tensor storages at a time, from the first step to the end of the run;
        budget_bytes: what they may hold; peak_plain_bytes: what the recorded step would hold plainly.
        peak_reserved_bytes: by torch.cuda.max_memory_reserved(); None on the CPU. step_ms_median: of the steps
        after the recorded ones, stall_ms_median: of planned ones, what they waited for transfers; None
        before there is one. ops_ms_median: of planned ones, what their operators alone took in the step that
        was recorded; overhead: the part by which they are longer than that, as 0.04, the median. It has what
        the script does between operators, too.
        copies: of each value in the pool, as wished. nodes: of the pool, that the run reached,
        nodes_lost: of them, those it has lost since. With two copies, values_doubled: values that
        have a place on two nodes, values_halved: those that have lost one of the two with its node,
        values_repaired: how often one got another in place of a lost one.
        """
        return {**self._figures.stats(), "plans": len(self._plans.replays),
                "peak_allocated_bytes": self._meter.peak,
                "peak_plain_bytes": self._plain_bytes,
                "peak_reserved_bytes": self._device.peak_reserved_bytes(),
                "budget_bytes": self._limit(), "copies": self._copies, **self._copies_held()}

    def summary(self) -> str:
        """stats() as a few lines for people, with the causes for which steps left the plan, and what that cost."""
        return "\n".join(lines_of(self.stats(), self._meter.peak_line, self._figures))

    def report(self, path: str | os.PathLike) -> None:
        """Writes the analyzer's HTML page about the plan: what is on the device when. Raises RuntimeError
        before there is a plan, OSError where the file cannot be written."""
        if self._page is None:
            raise RuntimeError(f"there is no plan before {self._recorded_count} steps have run")
        pathlib.Path(path).write_text(self._page, encoding="utf-8")

    def trace(self, path: str | os.PathLike) -> None:
        """Writes what the last step did, for chrome://tracing and Perfetto.

        One row for the ops, named as in PyTorch, and one for the transfers, on the clock and with the process
        of torch.profiler: the "traceEvents" of both files in one list are one picture. Raises RuntimeError where
        no step ran under the plan since the last departure or fetch, OSError where the file cannot be
        written.
        """
        write_trace(path, self._replay)
