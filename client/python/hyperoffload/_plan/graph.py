"""A recorded step, as a graph for the analyzer and as the calls that a replay follows; `record`."""

import contextlib
import copy
import gc
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._memory.demand import Demand
from .._memory.meter import BYTES_MIN, Meter, may_leave_by_size
from .._memory.resizable import make_resizable, said_staying
from .._torch.collectives import communicates, is_point_to_point
from .._torch.compiled import refuse_compiled
from .._torch.devices import Device, device_of
from .._torch.hooks import mode_of, replace
from .._torch.step import bytes_as, local_of, returns_operands, storage_of, takes_lists, takes_storage, tensors_of
from .arguments import check_training
from .recorder import RESIZES, Recorder

# What the script holds for at most so many calls after its last use counts until then. What it holds
# for longer leaves when memory is needed.
_HELD_CALLS = 32


class Part:
    """What the plan knows of a call, or of one index of a call on lists.

    place: its position in the plan; None: the plan has none. outputs: numbers of the storages of the
    tensors that it returns. writes: numbers of managed storages that it writes. ends: numbers of those
    that nothing in the step needs afterwards. others: whether it writes or resizes storages that are not
    managed.
    """

    __slots__ = ("place", "outputs", "writes", "ends", "others")

    def __init__(self, place, outputs, writes, ends, others):
        self.place, self.outputs, self.writes, self.ends = place, outputs, writes, ends
        self.others = others


class Call:
    """A call of the recorded step. grad: whether gradients were enabled, which evaluation disables.
    inputs: numbers of the managed storages that it takes, None for others. shapes: shapes_of() them.
    optional: a step can do without it. is_plain: it is nothing to the plan, so that it can be at another place.
    takes_others: of what is not managed, large tensors or a storage. is_simple: it does not, all its tensors
    are arguments by place, and no other thread works on them. makes_nothing: what it returns is managed memory
    of what it takes."""

    __slots__ = ("function", "grad", "inputs", "parts", "shapes", "optional", "communicates", "is_plain", "takes_others",
                 "is_simple", "makes_nothing")

    def __init__(self, function, grad, inputs, shapes, parts, optional=False):
        self.function, self.grad, self.inputs, self.parts = function, grad, inputs, parts
        self.shapes, self.optional = shapes, optional
        self.communicates = communicates(function)
        self.is_plain = all(part.place is None and part.outputs.count(None) == len(part.outputs) for part in parts)
        self.takes_others = takes_storage(function) or any(
            number is None and bytes_as(*shape) >= BYTES_MIN for number, shape in zip(inputs, shapes))
        self.is_simple = len(parts) == 1 and not (self.communicates or self.takes_others or takes_lists(function))
        self.makes_nothing = self.is_simple and returns_operands(function) and all(
            number is not None and number in inputs for number in parts[0].outputs)


class Managed:
    """A storage that the plan may move: its bytes, its id and name in the graph; persistent: it exists
    between steps."""

    def __init__(self, size, graph_id, name, persistent):
        self.bytes, self.id, self.name, self.persistent = size, graph_id, name, persistent


class StepRecorder(Recorder):
    """Records steps of a job whose tensors `demand` keeps within its limit, and keeps the storages that
    a step begins with."""

    def __init__(self, model, optimizer, demand):
        super().__init__(model, optimizer)
        self._demand = demand
        self._bytes_of = demand.meter.plain_bytes_of
        self.present = {}
        self.begins_alike = False  # the step's first call is that of a step with a plan, and stays so

    def call(self, function, args, kwargs):
        if self._demand.paused:  # not of the step
            return self._demand.run(function, tensors_of(args, kwargs), args, kwargs)
        self._step.note_ended()
        result = super().call(function, args, kwargs)
        if communicates(function):
            self._keep_here(function, tensors_of(args, kwargs))
        elif function.__name__.startswith("set_."):
            self._keep_foreign(result)
        return result

    def _keep_foreign(self, tensor):
        """A tensor has got memory that no operator made. Where PyTorch cannot free that, as of a batch that a DataLoader's
        worker shares, it stays, and the plan does not have it."""
        storage, memory = self._step.of(tensor), storage_of(tensor)
        if storage is not None and not self._demand.can_leave(memory):
            storage.stays = True
            self._demand.stay(memory)
            self._demand.fixed.see(memory)

    def _keep_here(self, function, tensors):
        """Tensors that are sent or received, and buffers from outside the model, as those of
        DistributedDataParallel, stay on the device. Gradients and what the step makes may leave when the
        collective has ended."""
        for tensor in tensors:
            storage = self._step.of(tensor)
            if storage is not None and (is_point_to_point(function) or (
                    storage.begins_before and storage.kind == "ACTIVATION")):
                storage.stays = True
                self._demand.stay(storage_of(tensor))

    def _run(self, function, args, kwargs):
        self._demand.marks = marks = []
        try:
            return self._demand.run(function, tensors_of(args, kwargs), args, kwargs), marks
        finally:
            self._demand.marks = None

    def _step_ended(self, step):
        self.present = step.present()
        step.note_ended()
        if self._optimizer is not None:
            step.find_optional(drops_first=not self.begins_alike)
        step.hold_until_ended(_HELD_CALLS)


class RunRecorder(StepRecorder):
    """Records steps of a Run."""

    def _step_ended(self, step):
        super()._step_ended(step)
        # Other storages that outlive the step, as frozen weights, may leave, too.
        for number, memory in self.present.items():
            storage = step.storages[number]
            if storage.kind == "ACTIVATION" and not (
                    storage.resized or storage.stays or storage.is_host_data()):
                self._demand.add(memory)
                self._demand.fixed.forget(memory)
        self._demand.fixed.restart()


    def needs_another(self):
        """Whether one more step is to show what all steps read and write outside the model, as averages of weights,
        which the first step did not have: they are of the time after it."""
        return any(storage.may_be_average() and storage.bytes >= BYTES_MIN and storage in op.reads
                   for op in self.last_step().ops for storage in op.writes)


def tensors_of_job(model, optimizer):
    """All tensors that exist of a model and its optimizer."""
    states = [value for state in optimizer.state.values() if isinstance(state, dict)
              for value in state.values()] if optimizer is not None else []
    gradients = [parameter.grad for parameter in model.parameters()]
    return [local_of(each) for each in (*model.parameters(), *model.buffers(), *gradients, *states)
            if isinstance(each, torch.Tensor)]


def show_model(model, optimizer, demand, say=lambda text: None):
    """Tells `demand` what exists of a model and its optimizer: it may leave. What PyTorch cannot free stays; say(text)
    tells a person, once for each."""
    staying = {}
    for name, storage in storages_by_name(model, optimizer).items():
        if storage.device == demand.device.where:
            is_new = not demand.knows(storage)
            if demand.add(storage) is not None and is_new and not demand.can_leave(storage):
                demand.stay(storage)
                staying[name] = storage
    if staying:
        say(said_staying(staying))


def storages_by_name(model, optimizer):
    """Name in a graph -> untyped storage, of what a model and its optimizer have between steps."""
    found = {}

    def add(name, tensor):
        storage = storage_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if storage is not None:
            found[name] = storage

    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        add(name, tensor)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, name in names.items():
        add(name + ".grad", parameter.grad)
    states = optimizer.state if optimizer is not None else {}
    for number, (parameter, state) in enumerate(states.items()):
        for key, value in state.items() if isinstance(state, dict) else ():
            add(f"{names.get(parameter, f'parameter{number}')}.{key}", value)
    return found


class Graph:
    """A step of a training loop, as record() returns it.

    fixed_bytes: the most bytes at a time of tensors that cannot leave. plain_bytes: the most of all
    tensors at a time, if none leaves. ops_ns: what its operators took when it was recorded. whole: the
    step in the JSON mapping of graph.proto. movable: the same without what cannot leave; plans are made
    of it. calls, managed (number -> Managed): what a replay follows. device: devices.Device of its
    tensors, of which a file does not tell.
    """

    __module__ = "hyperoffload"
    device = Device(torch.device("cpu"))

    fixed_bytes: int
    plain_bytes: int
    ops_ns: int
    whole: dict[str, Any]
    movable: dict[str, Any]

    def __init__(self, recorder: "StepRecorder", demand: Demand, fixed_bytes: int, plain_bytes: int,
                 whole: dict[str, Any] | None = None) -> None:
        self.whole, self.device = whole, demand.device
        self.fixed_bytes, self.plain_bytes = fixed_bytes, plain_bytes
        self.movable = recorder.graph(_movable(recorder.present, demand))
        self.ops_ns = duration_ns(self.movable)
        self.managed = {storage.number: Managed(int(entry["bytes"]), entry["id"], entry["name"],
                                                entry["persistent"])
                        for storage, entry in recorder.kept(self.movable)}
        step = recorder.last_step()
        last = {}
        for op in step.ops:
            for storage in op.reads + op.writes if op.place is not None else ():
                last[storage.number] = op.place
        self.calls, ended = [], set()
        for call in step.calls:
            # The plan forgets a storage after its last op. Later calls take its shape, as ones_like() of a loss.
            inputs = tuple(None if number in ended else number for number in self._numbers(call.inputs))
            parts = [self._part_of(op, outputs, last) for op, outputs in call.parts]
            if call.function.__name__.split(".")[0] in RESIZES:
                resized = call.inputs[0] if call.inputs else None
                parts[0].others = resized is not None and step.storages[resized].begins_before
            ended.update(number for part in parts for number in part.ends)
            self.calls.append(Call(call.function, call.grad, inputs, call.shapes, parts, call.optional))

    def _numbers(self, numbers):
        return tuple(number if number in self.managed else None for number in numbers)

    def _part_of(self, op, outputs, last):
        outputs = self._numbers(outputs)
        others = op is not None and any(s.begins_before and s.number not in self.managed
                                        for s in op.writes)
        if op is None or op.place is None:
            return Part(None, outputs, (), (), others)
        writes = [s.number for s in op.writes if s.number in self.managed]
        used = dict.fromkeys(s.number for s in op.reads + op.writes)
        ends = [number for number in used if number in self.managed
                and not self.managed[number].persistent and last[number] == op.place]
        return Part(op.place, outputs, writes, ends, others)

    @property
    def ops(self) -> list[dict[str, Any]]:
        """The ops, in program order, as entries of graph.proto's JSON mapping."""
        return self.whole["ops"]

    @property
    def storages(self) -> list[dict[str, Any]]:
        """The storages, as entries of graph.proto's JSON mapping."""
        return self.whole["storages"]

    def present_of(self, named: dict[str, Any], bytes_of: Callable[[Any], int], may_lack: bool) -> dict[int, Any] | None:
        """Number -> untyped storage, of those that it has between steps, by their names. may_lack: one may not exist; then
        None. Raises ValueError where one is not as in the graph."""
        present = {number: named.get(each.name) for number, each in self.managed.items() if each.persistent}
        for number, storage in present.items():
            each = self.managed[number]
            size = None if storage is None else bytes_of(storage)
            if size == each.bytes:
                continue
            if size is None and may_lack:
                return None
            has = "does not exist" if size is None else f"has {size} bytes"
            raise ValueError(f"the plan moves {each.name} of {each.bytes} bytes, which {has}: apply it "
                             "to the model and optimizer that were recorded")
        return present

    def with_fixed(self, fixed_bytes: int) -> "Graph":
        """The same step, where tensors that cannot leave take so many bytes at a time."""
        other = copy.copy(self)
        other.fixed_bytes = fixed_bytes
        return other

    def retimed(self, durations_ns: Sequence[int]) -> "Graph":
        """The same step, its movable ops with other durations in ns, by position."""
        other = copy.copy(self)
        other.movable = {**self.movable, "ops": [
            {**op, "durationNs": str(ns)} for op, ns in zip(self.movable["ops"], durations_ns)]}
        return other

    def write(self, path: str | os.PathLike) -> None:
        """Writes the graph as a .json file for the command `hyperoffload analyze`. Raises OSError."""
        with open(path, "w", encoding="utf-8") as out:
            json.dump(self.whole, out)

    def __repr__(self) -> str:
        return (f"<Graph of {len(self.ops)} ops and {len(self.storages)} storages, "
                f"{self.plain_bytes / 2**20:.1f} MiB>")


def duration_ns(movable):
    """What the ops of a graph take in all."""
    return sum(int(op["durationNs"]) for op in movable["ops"])


def _movable(present, demand):
    """Tells which storages a plan may move: those whose memory PyTorch can free and allocate again."""
    def keep(storage):
        if (storage.kind == "INPUT" or storage.resized or storage.stays
                or not may_leave_by_size(storage.bytes)):
            return False
        if not storage.begins_before:
            return True
        memory = present.get(storage.number)
        return memory is not None and demand.can_leave(memory)
    return keep


def _model_of(step):
    """Runs a step, and returns the outermost module with parameters that it calls."""
    inside, outermost = [0], []

    def begins(module, _):
        if inside[0] == 0 and module not in outermost and next(module.parameters(), None) is not None:
            outermost.append(module)
        inside[0] += 1

    def ends(*_):
        inside[0] = max(0, inside[0] - 1)

    hooks = torch.nn.modules.module
    handles = [hooks.register_module_forward_pre_hook(begins),
               hooks.register_module_forward_hook(ends)]
    try:
        step()
    finally:
        for handle in handles:
            handle.remove()
    if len(outermost) != 1:
        raise ValueError(f"the step calls {len(outermost)} models; name the one to plan for: "
                         "record(step, model, optimizer)")
    return outermost[0]


def _optimizer_of(model):
    """The optimizer of a model's parameters; None where there is none."""
    ours = {id(parameter) for parameter in model.parameters()}
    found = [each for each in gc.get_objects() if isinstance(each, torch.optim.Optimizer)
             and any(id(parameter) in ours for group in each.param_groups
                     for parameter in group["params"])]
    if len(found) > 1:
        raise ValueError(f"{len(found)} optimizers have the model's parameters; name the one of the "
                         "step: record(step, model, optimizer)")
    return found[0] if found else None


def record(step: Callable[[], Any], model: torch.nn.Module | None = None,
           optimizer: torch.optim.Optimizer | None = None, *, steps: int = 3) -> Graph:
    """Runs a training step a few times, and returns the last one as a Graph.

        graph = hyperoffload.record(lambda: train_step(batch), model, optimizer)
        plan = hyperoffload.analyze(graph, device_memory="60%", pool="unix:/run/hyperoffload/control.sock")
        with plan.applied(model, optimizer):
            train()

    step: a function without arguments that runs one whole step, to the end of optimizer.step(). It does
    train: use a batch of the real shape. model: the torch.nn.Module whose step it is;
    optimizer: its torch.optim.Optimizer. Without model, the one that the step calls; without optimizer,
    the one that has its parameters. steps: how often `step` runs, 2 or more: the first makes the
    optimizer's states, durations are medians of the others.

    The step runs plainly: it needs the memory that it needs without a plan. A job that does not fit
    records within its budget under fit(). Raises TypeError for bad arguments, ValueError where model or
    optimizer are not clear, and what the step raises.
    """
    if not callable(step):
        raise TypeError(f"step is a {type(step).__name__}; give a function that runs one training step")
    if type(steps) is not int:
        raise TypeError(f"steps is {steps!r}; write a number, as 3")
    if model is not None:
        check_training(model, optimizer, may_lack_optimizer=True)
    if steps < 2:
        raise ValueError(f"steps is {steps}; 2 or more are needed: the first makes the optimizer's states")
    if model is None:
        model = _model_of(step)
        steps -= 1
    if optimizer is None:
        optimizer = _optimizer_of(model)
    device = device_of(model)
    meter = Meter(device.counted)
    demand = Demand(None, device, meter, lambda: float("inf"))
    demand.adopts_written = False
    recorder = StepRecorder(model, optimizer, demand)

    def begin():
        show_model(model, optimizer, demand)
        meter.restart()
        demand.fixed.restart()
        recorder.begin()

    def end(original=lambda: None, *args, **kwargs):
        """The step has ended; what comes until the next one, as logging, is of the next."""
        result = original(*args, **kwargs)
        recorder.end(True)
        peaks.append((demand.fixed.peak, meter.plain_peak))
        begin()
        return result

    peaks = []
    with contextlib.ExitStack() as stack:
        make_resizable(map(storage_of, tensors_of_job(model, optimizer)), device)
        if optimizer is not None:
            replace(stack, optimizer, "step", end)
        refuse_compiled(stack, lambda: False)
        begin()
        stack.callback(recorder.end, False)
        with mode_of(device, recorder.call):
            for _ in range(steps):
                step()
                if optimizer is None:
                    end()
    if not peaks:
        raise ValueError("the step does not call the optimizer's step()")
    return Graph(recorder, demand, *peaks[-1], recorder.graph())
