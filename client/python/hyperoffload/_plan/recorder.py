"""Records one step of an unmodified PyTorch loop as a graph for `hyperoffload analyze`.

    recorder = Recorder(model, optimizer)
    for batch in batches:              # the second or a later step is the steady state
        with recorder:
            optimizer.zero_grad(); model(batch).loss.backward(); optimizer.step()
    recorder.write("graph.json")

Below autograd every kernel is one call of a dispatch mode. So the recorder sees forward, backward and
optimizer in the same way. A storage is an alias set: all tensors that share memory. The recorder holds a
weak reference to each storage, so that it can distinguish two storages that used the same address.

The graph is that of the last recorded step. Durations are medians over the recorded steps with the same
calls. Works with PyTorch 1.13 and 2.x. Compiled functions are refused: their calls do not come here.
"""

import contextlib
import functools
import json
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .._torch.collectives import communicates, is_point_to_point
from .._torch.compiled import refuse_compiled
from .._torch.devices import device_of
from .._torch.hooks import mode_of, replace
from .._torch.step import (ON_LISTS, Call, Op, Operand, Step, Storage, arguments_of, bytes_of, bytes_taken, shapes_of,
                           storage_of, tensors_in, tensors_of, written_names)
from .arguments import check_training

# Calls that change a tensor in place without reading it.
_OVERWRITES = {"zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "_foreach_zero_",
               "bernoulli_", "exponential_"}
# Calls that allocate without writing, and use only sizes.
_ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
# Calls that give a storage other memory. A plan cannot, so the graph leaves them out.
RESIZES = {"resize_", "resize_as_", "set_"}
# These calls use only the shape of their inputs.
_SHAPE_ONLY = ("_like",)
_RANDOM = ("dropout", "bernoulli", "rand", "normal", "uniform", "multinomial", "exponential",
           "rrelu", "poisson")
# Calls that write a part of their first operand.
_EXTENDS = {"index_copy_", "index_put_", "_index_put_impl_", "scatter_", "index_add_"}
# Indices are a step's input, also where they stay the same.
_INDICES = {torch.int64, torch.int32, torch.bool}
# Limit for tensors outside the lists, which every part reads. Beyond it, the call stays one op.
_SHARED_MAX = 8


def _is_random(function, name):
    tag = getattr(getattr(torch, "Tag", None), "nondeterministic_seeded", None)
    tagged = tag is not None and tag in getattr(function, "tags", ())
    return tagged or any(word in name for word in _RANDOM)


class Recorder:
    """Records the steps that run while it is entered.

    model: the torch.nn.Module whose parameters are the weights; its device is recorded, one.
    optimizer: a torch.optim.Optimizer, or None for inference. name: of the graph.

        recorder = hyperoffload.Recorder(model, optimizer)
        for batch in batches[:3]:       # the second or a later step is the steady state
            with recorder:
                step(batch)
        recorder.write("graph.json")    # hyperoffload analyze graph.json --device-memory 60% ...

    A step that ends with an exception is not kept. Raises TypeError and ValueError for bad arguments.
    """

    __module__ = "hyperoffload"

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None,
                 name: str = "pytorch") -> None:
        check_training(model, optimizer, may_lack_optimizer=True)
        self._model = model
        self._optimizer = optimizer
        self._name = name
        self._steps = []
        self._step = None
        self._phase = "forward"
        self._undo = contextlib.ExitStack()  # what is replaced while a step is recorded
        self._modules = []  # names of the modules whose forward() runs
        self._in_optimizer = False
        self._outside = {}  # address -> (weak reference, version, name) of what is not of the model
        self._outside_now = {}
        self._outside_count = 0
        self._device = device_of(model)

    # Entering and leaving a step.

    def __enter__(self) -> "Recorder":
        self.begin()
        refuse_compiled(self._undo, lambda: False)
        self._undo.enter_context(mode_of(self._device, self.call))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.end(kind is None)
        return False

    def begin(self) -> None:
        """Begins a step; its calls are to come to call(). `with recorder:` does this. Raises RuntimeError
        where a step has begun."""
        if self._step is not None:
            raise RuntimeError("the recorder is already recording a step")
        self._step = Step(self._device.where, self._bytes_of)
        self._phase = "forward"
        for name, parameter in self._model.named_parameters():
            self._step.mark(parameter, "WEIGHT", name, True)
        for name, buffer in self._model.named_buffers():
            self._step.mark(buffer, "WEIGHT", name, True)
        self._mark_gradients()
        self._mark_states()
        replaced = [(torch.autograd, "backward", "backward"), (torch.autograd, "grad", "backward")]
        if self._optimizer is not None:
            replaced += [(self._optimizer, "zero_grad", "zero_grad"), (self._optimizer, "step", "optimizer")]
        for owner, attribute, phase in replaced:
            replace(self._undo, owner, attribute, functools.partial(self._in_phase, phase))
        self._watch_modules()

    def end(self, is_whole: bool) -> None:
        """Ends the step; it is kept if it is whole."""
        self._undo.close()
        step, self._step = self._step, None
        if is_whole:
            self._read_clocks(step)
            self._steps.append(step)
            self._outside, self._outside_now = self._outside_now, {}
            for number in step.alive():
                step.storages[number].outlives = True
            self._step_ended(step)
        step.release()

    @staticmethod
    def _bytes_of(memory):
        """Bytes of a storage."""
        return memory.nbytes()

    def _step_ended(self, step):
        """A step is complete; its storages are still known by their tensors."""

    def _watch_modules(self):
        """Keeps the names of the modules whose forward() runs: what a call makes is named so."""
        names = {module: name for name, module in self._model.named_modules() if name}
        self._modules.clear()

        def begins(module, _):
            if module in names:
                self._modules.append(names[module])

        def ends(module, *_):
            if names.get(module) in self._modules:  # an exception may have ended others
                while self._modules.pop() != names[module]:
                    pass

        hooks = torch.nn.modules.module
        self._undo.callback(hooks.register_module_forward_pre_hook(begins).remove)
        self._undo.callback(hooks.register_module_forward_hook(ends).remove)

    def _look_outside(self, storage, tensor):
        """A storage that is not of the model and that nothing has written since the last step's use of
        it is a frozen weight; what the script writes between steps is an INPUT."""
        if storage.kind != "ACTIVATION" or tensor.is_inference():
            return
        memory = storage_of(tensor)
        reference, version, name = self._outside.get(memory._cdata, (None, None, None))
        if reference is None or reference.expired():
            self._outside_count += 1
            reference, name = StorageWeakRef(memory), f"outside.{self._outside_count}"
        else:
            storage.is_kept = True
            storage.is_frozen = version == tensor._version and tensor.dtype not in _INDICES
        storage.name = name
        self._outside_now[memory._cdata] = (reference, tensor._version, name)

    def _in_phase(self, phase, original, /, *args, **kwargs):
        """Calls a function; the operators that run meanwhile are of the phase."""
        before, self._phase = self._phase, phase
        # Clipping comes after backward: the next forward begins when a weight is read.
        after = {"backward": "optimizer", "optimizer": "forward"}.get(phase, before)
        self._in_optimizer = phase == "optimizer"
        try:
            if phase == "optimizer":
                self._mark_gradients()
            return original(*args, **kwargs)
        finally:
            self._phase, self._in_optimizer = after, False
            if phase == "optimizer" and self._step is not None:
                self._mark_states()

    def _mark_gradients(self):
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                # It outlives the step if an op reads its old value; _set_lifetimes() finds out.
                self._step.mark(parameter.grad, "GRADIENT", name + ".grad", False)

    def _mark_states(self):
        if self._optimizer is None:
            return
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        for number, (parameter, state) in enumerate(self._optimizer.state.items()):
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    name = f"{names.get(parameter, f'parameter{number}')}.{key}"
                    self._step.mark(value, "OPTIMIZER_STATE", name, True)

    # One call.

    def call(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs a call below autograd, and records it. Returns its result."""
        # Inputs first: the call may free or create storages.
        operands = self._operands(function, args, kwargs)
        for operand in operands if function.__name__.split(".")[0] in RESIZES else ():
            operand.storage.resized = True
        tensors = tensors_of(args, kwargs)
        call = Call(function, tuple(map(self._step.number, tensors)), shapes_of(tensors))
        result, marks = self._run(function, args, kwargs)
        for op, outputs in self._ops_of(function, operands, list(tensors_in(result))):
            if op is not None:
                op.marks = marks
                self._step.ops.append(op)
            call.parts.append((op, tuple(self._step.number(tensor) for tensor, _ in outputs)))
        self._step.calls.append(call)
        return result

    def _run(self, function, args, kwargs):
        """Returns the call's result, and pairs of marks around it: the device runs it later."""
        begin = self._device.mark()
        result = function(*args, **kwargs)
        return result, [(begin, self._device.mark())]

    def _operands(self, function, args, kwargs):
        """The inputs as Operand, without tensors of other devices."""
        overwrites = function.__name__.split(".")[0] in _OVERWRITES
        out = []
        names = written_names(function, args, kwargs)
        for argument, value in arguments_of(function, args, kwargs):
            written = argument.name in names
            for tensor, place in tensors_in(value):
                is_new = self._step.number(tensor) is None
                storage = self._step.find(tensor, "input", True)
                if storage is not None:
                    if is_new:
                        self._look_outside(storage, tensor)
                    size = bytes_of(tensor)
                    whole = (overwrites or argument.name == "out") and size >= storage.bytes
                    out.append(Operand(storage, place, size, written, written and whole))
        return out

    @staticmethod
    def _parts(name, operands, results):
        """Splits a call on lists into (operands, results) per index; any other call is one part.

        A fused op would need a budget for all parameters and their states.
        """
        whole = [(operands, results)]
        if not name.startswith(ON_LISTS):
            return whole
        shared = [operand for operand in operands if operand.place is None]
        by_place = {}
        for operand in operands:
            if operand.place is not None:
                by_place.setdefault(operand.place, ([], []))[0].append(operand)
        for tensor, place in results:
            by_place.setdefault(place, ([], []))[1].append((tensor, place))
        sizes = {(len(ins), len(outs)) for ins, outs in by_place.values()}
        if len(by_place) < 2 or len(sizes) != 1 or None in by_place or len(shared) > _SHARED_MAX:
            return whole
        # A tuple of results has indices too, while its operands are not in a list.
        if any(not ins for ins, _ in by_place.values()):
            return whole
        return [(ins + shared, outs) for _, (ins, outs) in sorted(by_place.items())]

    def _ops_of(self, function, operands, results):
        """Returns (op or None, its results) for each part of a call. The ops share its time in
        proportion to the bytes that they use."""
        parts, weights = [], []
        name = function.__name__.split(".")[0]
        for ins, outs in self._parts(name, operands, results):
            place = f"{name}#{len(self._step.ops) + len(parts)}"
            module = self._modules[-1] + "." if self._modules else ""
            op = self._op_of(function, ins, outs, module + place)
            parts.append((op, outs))
            weights.append(sum(operand.bytes for operand in ins)
                           + sum(bytes_of(tensor) for tensor, _ in outs))
        weights = [weight if op is not None else 0 for (op, _), weight in zip(parts, weights)]
        total = sum(weights)
        for (op, _), weight in zip(parts, weights):
            if op is not None:
                op.share = weight / total if total else 1 / len(parts)
        return parts

    def _op_of(self, function, operands, results, result_name):
        name = function.__name__.split(".")[0]
        if self._phase == "optimizer" and not self._in_optimizer and any(
                operand.storage.kind == "WEIGHT" for operand in operands):
            self._phase = "forward"  # the next part of the batch
        op = Op(str(function), self._phase)
        op.fixed = communicates(function)
        op.group = "ranks" if op.fixed and not is_point_to_point(function) else ""
        for operand in operands:
            if operand.written and operand.storage not in op.writes:
                op.writes.append(operand.storage)
            reads = not operand.whole and not name.endswith(_SHAPE_ONLY) and name not in _ALLOCATES
            if reads and operand.storage not in op.reads:
                op.reads.append(operand.storage)
        for tensor, _ in results:
            is_new = self._step.number(tensor) is None
            storage = self._step.find(tensor, result_name, False)
            if storage is None:
                continue
            if is_new:
                op.writes.append(storage)
            elif storage not in op.reads and storage not in op.writes:
                op.reads.append(storage)  # a part of a sparse tensor
        if op.fixed and (op.reads or op.writes):
            return op  # also if it only waits for another process
        op.moves_nothing = name in _ALLOCATES or (not op.writes and bool(results))
        made_bytes = sum(bytes_of(tensor) for tensor, _ in results)
        for operand in operands if not op.moves_nothing else ():
            operand.storage.taken_bytes += bytes_taken(function, operand.bytes, made_bytes)
            operand.storage.extended |= operand.written and (
                name in _EXTENDS or 2 * operand.bytes < operand.storage.bytes)
        if name in RESIZES or not (op.writes or op.reads):
            return None  # or no storage of this device
        in_place = any(storage in op.reads for storage in op.writes)
        random = _is_random(function, name)
        op.recomputable = not in_place and not random and op.phase in ("forward", "backward")
        return op

    def _read_clocks(self, step):
        self._device.synchronize()
        took = {}  # by the list of marks, which ops of one call share
        for op in step.ops:
            if id(op.marks) not in took:
                took[id(op.marks)] = sum(self._device.elapsed_ns(*pair) for pair in op.marks)
            op.duration_ns = int(op.share * took[id(op.marks)])
        for op in step.ops:
            op.marks = ()

    # The result.

    def graph(self, keep: Callable[[Storage], bool] | None = None) -> dict[str, Any]:
        """Returns the graph in the JSON mapping of graph.proto. Raises RuntimeError before a whole step.

        keep: for a job that will be replayed, a function that says which storages the plan may move.
        The others, and ops that use none that it may move, are left out; their time counts with the
        next op, or the last. Views are ops then, since PyTorch refuses one of a storage that is away, and so are
        allocations, for which the plan makes room. No op is moved or run again, storages that exist before
        the step are persistent, and no value is lost before a call overwrites it: the script may read it,
        as a gradient before zero_grad().
        """
        if not self._steps:
            raise RuntimeError("no step was recorded")
        last = self._steps[-1]
        alike = [step for step in self._steps if step.shape() == last.shape()]
        ops = [op for op in self._without_first_states(last) if keep is not None or not op.moves_nothing]
        self._set_lifetimes(last, ops)
        used = {storage.number for op in ops for storage in op.reads + op.writes}
        kept = [s for s in last.storages
                if (s.number in used or s.persistent) and not s.is_host_data()]
        if keep is not None:
            kept = [s for s in kept if keep(s)]
            for storage in kept:
                storage.persistent = storage.persistent or storage.begins_before
        self._kept = [storage.number for storage in kept]
        ids = {number: place for place, number in enumerate(self._kept)}
        places = {id(op): place for place, op in enumerate(last.ops)}
        valued = {ids[s.number] for s in kept if s.persistent}
        out, carried_ns = [], 0
        for op in ops:
            reads = [ids[s.number] for s in op.reads if s.number in ids]
            writes = [ids[s.number] for s in op.writes if s.number in ids]
            if keep is not None:
                reads += [number for number in writes if number in valued and number not in reads]
                valued.update(() if op.moves_nothing else writes)  # an allocation has no value
            took_ns = carried_ns + int(statistics.median(
                step.ops[places[id(op)]].duration_ns for step in alike))
            op.place = None if keep is not None and not reads and not writes else len(out)
            carried_ns = took_ns if op.place is None else 0
            if op.place is None:
                continue
            out.append({"id": len(out), "name": op.name, "durationNs": str(took_ns), "reads": reads,
                        "writes": writes, "phase": op.phase, "fixed": op.fixed or keep is not None,
                        "recomputable": op.recomputable and keep is None})
            if op.group:
                out[-1]["group"] = op.group
        if out:  # what follows the last op that moves
            out[-1]["durationNs"] = str(int(out[-1]["durationNs"]) + carried_ns)
        outputs = {s.number for s in kept if keep is None and s.is_output()}
        return {
            "version": 1,
            "name": self._name,
            "storages": [{"id": ids[s.number], "name": s.name, "bytes": str(s.bytes),
                          "kind": "OUTPUT" if s.number in outputs else s.kind,
                          "persistent": s.persistent or s.number in outputs} for s in kept],
            "ops": out,
        }

    def last_step(self) -> Step:
        """The step that was recorded last."""
        return self._steps[-1]

    def kept(self, graph: dict[str, Any]) -> list[tuple[Storage, dict[str, Any]]]:
        """Pairs (storage of the last step, its entry in the graph that was made last)."""
        return [(self._steps[-1].storages[number], entry)
                for number, entry in zip(self._kept, graph["storages"])]

    def write(self, path: str | os.PathLike) -> None:
        """Writes graph() as a .json file for `hyperoffload analyze`. Raises OSError, and RuntimeError before
        a whole step."""
        with open(path, "w", encoding="utf-8") as out:
            json.dump(self.graph(), out)

    @staticmethod
    def _without_first_states(step):
        """Removes ops that only initialize optimizer states: later steps have none."""
        return [op for op in step.ops
                if op.reads or not op.writes
                or not all(s.kind == "OPTIMIZER_STATE" for s in op.writes)]

    @staticmethod
    def _set_lifetimes(step, ops):
        """Decides which storages are persistent, and turns reads of undefined values into writes."""
        for storage in step.storages:
            storage.written = False
        written_ever = {s.number for op in ops for s in op.writes}
        for op in ops:
            for storage in list(op.reads):
                if storage.written or storage.persistent or storage.kind == "INPUT":
                    continue
                if not storage.begins_before:  # no op has written it
                    op.reads.remove(storage)
                    if storage not in op.writes:
                        op.writes.append(storage)
                elif storage.kind == "GRADIENT":
                    storage.persistent = True  # accumulates over steps
                elif storage.number in written_ever and storage.is_kept:  # as an average of weights
                    storage.kind, storage.persistent = "WEIGHT", True
                elif (storage.is_frozen and storage.number not in written_ever
                      and not storage.is_host_data()):
                    storage.kind, storage.persistent = "WEIGHT", True
                else:
                    storage.kind = "INPUT"
                    storage.persistent = storage.number in written_ever
            for storage in op.writes:
                storage.written = True
        for storage in step.storages:  # what a step adds a part to
            if (storage.persistent and storage.extended and not storage.is_parameter
                    and storage.kind in ("WEIGHT", "INPUT")):
                storage.kind = "KV_CACHE"
