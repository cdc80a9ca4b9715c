"""What a recorded step consists of: alias sets, calls, and the ops that they are in the graph."""

import functools
import math

import torch
from torch.multiprocessing.reductions import StorageWeakRef

# Arguments that normalisations update in training; their schemas do not show it.
_RUNNING = {"running_mean", "running_var"}
_TRAINING = {"training", "train", "use_input_stats"}
_IS_2X = hasattr(torch.Tensor, "untyped_storage")


# The untyped storage of a tensor. Raises NotImplementedError or RuntimeError if it has no memory.
memory_of = torch.Tensor.untyped_storage if _IS_2X else torch.Tensor._storage
_PLAIN = {torch.Tensor, torch.nn.Parameter}


def is_wrapper(kind):
    """Whether a type of tensors keeps its values in another tensor, as DTensor does: its operators are made of others,
    which come to the dispatch mode then."""
    return hasattr(kind, "__tensor_flatten__")


def local_of(tensor):
    """The tensor that has the values of one in this process: of a DTensor, its part."""
    while type(tensor) not in _PLAIN and is_wrapper(type(tensor)):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # among them a DTensor's mesh
        parts = [part for part in parts if isinstance(part, torch.Tensor)]
        if len(parts) != 1:
            break
        tensor = parts[0]
    return tensor


def storage_of(tensor):
    """Returns the untyped storage of a tensor, or None if it has no memory (sparse, meta, fake) or not one alone (made
    of several tensors)."""
    try:
        if type(tensor) in _PLAIN:
            return memory_of(tensor)
        tensor = local_of(tensor)
        memory = memory_of(tensor)
        has_none = memory.device.type == "meta" or (memory.nbytes() > 0 and memory.data_ptr() == 0)
        return None if has_none or is_wrapper(type(tensor)) else memory
    except (NotImplementedError, RuntimeError):
        return None


def _parts_of(tensor):
    """The tensors that have the memory of one: a sparse one has none itself."""
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)


def tensors_in(value, place=None):
    """Yields (tensor, its index in its list) for an argument or result; None if it is not in a list."""
    if isinstance(value, torch.Tensor):
        for part in _parts_of(value):
            yield part, place
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from tensors_in(each, number)


def tensors_of(args, kwargs):
    """All tensors that a call takes, in the order of its arguments."""
    out = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            if value.is_sparse:
                out += _parts_of(value)
            else:
                out.append(value)
        elif isinstance(value, (list, tuple)):
            out += [tensor for tensor, _ in tensors_in(value)]
    return out


def shapes_of(tensors):
    """What tells steps of one shape from those of another."""
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


@functools.lru_cache(maxsize=None)
def _element_bytes(dtype):
    return torch.empty((), dtype=dtype, device="meta").element_size()


def bytes_as(shape, dtype):
    """Bytes of a tensor of which shapes_of() has the shape and type."""
    return shape.numel() * _element_bytes(dtype)


# Calls that take as much of an operand as they return.
_SELECTS = {"index", "index_select", "gather", "take"}


def bytes_taken(function, size, returned_bytes):
    """How much a call takes of a tensor of `size` bytes."""
    return min(size, returned_bytes) if function.__name__.split(".")[0] in _SELECTS else size


def arguments_of(function, args, kwargs):
    """Yields (argument of the schema, its value); the value is None if the call omits it."""
    for place, argument in enumerate(function._schema.arguments):
        yield argument, args[place] if place < len(args) else kwargs.get(argument.name)


@functools.lru_cache(maxsize=None)
def _written_by(function):
    """Name -> place, of the arguments that a function always writes to, and of those that it does in
    training."""
    arguments, received = function._schema.arguments, _received(function)
    always = {argument.name: place for place, argument in enumerate(arguments)
              if argument.name == received
              or (argument.alias_info is not None and argument.alias_info.is_write)}
    trains = "backward" not in function.__name__ and any(each.name in _TRAINING for each in arguments)
    return always, {argument.name: place for place, argument in enumerate(arguments)
                    if trains and argument.name in _RUNNING}


def written_names(function, args, kwargs):
    """Name -> place, of the arguments that a call writes to."""
    always, in_training = _written_by(function)
    if in_training and any(argument.name in _TRAINING and value
                           for argument, value in arguments_of(function, args, kwargs)):
        return {**always, **in_training}
    return always


def namespace_of(function):
    return function._schema.name.split("::")[0]


def _received(function):
    """The argument that a collective writes its result to; the schemas of c10d do not show it."""
    if namespace_of(function) != "c10d" or function.__name__.startswith("send"):
        return None
    names = [argument.name for argument in function._schema.arguments]
    return next((name for name in names if name.startswith("output")), names[0] if names else None)


def own_bytes_taken(function, tensor, result):
    """bytes_taken() of a tensor's own memory: where it is expanded, elements have one place."""
    own = math.prod(count for count, stride in zip(tensor.shape, tensor.stride()) if stride != 0)
    return bytes_taken(function, own * tensor.element_size(), sum(bytes_of(each) for each, _ in tensors_in(result)))


@functools.lru_cache(maxsize=None)
def is_view(function):
    """Whether a call of a function neither reads nor writes memory: it returns views."""
    schema = function._schema
    return bool(schema.returns) and all(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)


def written_in(function, args, kwargs):
    """The tensors to whose memory a call writes."""
    if function.__name__.startswith("set_."):
        return []  # it gives a tensor other memory
    return [tensor for name, place in written_names(function, args, kwargs).items()
            for tensor, _ in tensors_in(args[place] if place < len(args) else kwargs.get(name))]


@functools.lru_cache(maxsize=None)
def takes_lists(function):
    """Whether a function may take tensors in lists, or by name."""
    return any("Tensor" in str(argument.type) and (argument.kwarg_only or "List" in str(argument.type))
               for argument in function._schema.arguments)


def takes_storage(function):
    """Whether a call gives a tensor the memory of the storage that is its second argument."""
    return function is not None and function.__name__.startswith("set_.source_Storage")


def storages_taken(function, tensors, args):
    """The storages that a call takes, by its tensors (None: no storage) or itself, as a batch that another process has
    sent comes."""
    return [*map(storage_of, tensors), *(args[1:2] if takes_storage(function) else ())]


@functools.lru_cache(maxsize=None)
def returns_operands(function):
    """Whether all that a function returns has memory of what it takes: views, and results in place."""
    return not function.__name__.startswith("set_.") and all(
        each.alias_info is not None for each in function._schema.returns)


# Operators on lists of tensors that treat each index of their lists on its own. The last are of GradScaler.
ON_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")


def list_length(function, args, kwargs):
    """How many calls a call on lists can be split into; 1 for any other call."""
    if not function.__name__.startswith(ON_LISTS):
        return 1
    lengths = {len(value) for value in (*args, *kwargs.values())
               if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor)}
    return lengths.pop() if len(lengths) == 1 else 1


def at_index(value, count, index):
    """One index of an argument of a call on lists."""
    if isinstance(value, (list, tuple)) and len(value) == count:
        return [value[index]]
    return value


def split(args, kwargs, count):
    """Yields the arguments of each of the calls that a call on lists is split into."""
    for index in range(count):
        yield ([at_index(value, count, index) for value in args],
               {key: at_index(value, count, index) for key, value in kwargs.items()})


def _without_memory(value):
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_memory, value))
    return value


@functools.lru_cache(maxsize=None)
def _makes_tensors(function):
    """Whether a function may return tensors with memory of their own."""
    if namespace_of(function) == "c10d":
        return False  # it returns what it takes; a process group is not to be asked without memory
    return any(each.alias_info is None and "Tensor" in str(each.type)
               for each in function._schema.returns)


def new_bytes_of(function, tensors, args, kwargs, device):
    """Bytes of the storages that a call is going to return, on a torch.device.

    The call runs without memory, on "meta" tensors. Where it cannot, as large as its operands.
    """
    if kwargs.get("device") is not None and kwargs["device"].type != device.type:
        return 0  # a copy to elsewhere
    if not _makes_tensors(function):
        return 0
    named = {key: _without_memory(value) for key, value in kwargs.items()}
    if any(argument.name == "device" for argument in function._schema.arguments):
        named["device"] = torch.device("meta")
    try:
        result = function(*map(_without_memory, args), **named)
    except Exception:  # some of PyTorch's shape functions are Python, and fail in any way
        return sum(map(bytes_of, tensors))
    return sum(bytes_of(tensor) for tensor, _ in tensors_in(result))


class Storage:
    """An alias set. `begins_before`: it existed before the step; else a call of the step created it."""

    def __init__(self, number, size, name, begins_before):
        self.number = number
        self.bytes = size
        self.name = name
        self.begins_before = begins_before
        self.kind = "ACTIVATION"
        self.persistent = False
        self.resized = False  # a call gives it other memory
        self.stays = False  # another thread may use it for longer than its calls show
        self.written = False
        self.extended = False  # a call writes a part of it
        self.is_parameter = False
        self.is_frozen = False  # not of the model, and not written since the last step
        self.is_kept = False  # not of the model, and the step that was recorded before had it, too
        self.last_call = None  # index of the last call at whose begin it existed, if it ended in the step
        self.taken_bytes = 0  # that calls take of it, views left out
        self.outlives = False  # it exists when the step has ended

    def may_be_average(self):
        """It is not of the model, the step before did not have it, and the step writes no small part of it alone."""
        return self.begins_before and self.kind == "ACTIVATION" and not (self.is_kept or self.extended)

    def is_output(self):
        """The step made it, and the script still has it afterwards, as a loss."""
        return self.outlives and not self.begins_before and self.kind == "ACTIVATION"

    def is_host_data(self):
        """It is not of the model, and the step takes little of it: a data set, of which the step's
        input is a copy."""
        return (self.begins_before and self.kind in ("ACTIVATION", "INPUT")
                and 2 * self.taken_bytes < self.bytes)


class Operand:
    """A tensor that a call takes: its storage, and how the call uses it."""

    def __init__(self, storage, place, size, written, whole):
        self.storage = storage
        self.place = place  # index in its list; None: not in a list
        self.bytes = size
        self.written = written
        self.whole = whole  # the call writes the whole storage


class Op:
    def __init__(self, name, phase):
        self.name = name
        self.moves_nothing = False  # a view, whose operand has to be there, or memory without a value
        self.place = None  # in the graph that was made last; None: it is not in it
        self.share = 1.0  # fraction of the call's time
        self.fixed = False
        self.group = ""  # that runs this collective
        self.phase = phase
        self.reads = []
        self.writes = []
        self.recomputable = False
        self.duration_ns = 0
        self.marks = ()  # pairs around its call, in the device's order of work, until the step ends


class Call:
    """A call below autograd, and the ops that it is in the graph: one for each part of its lists."""

    def __init__(self, function, inputs, shapes):
        self.function = function
        self.grad = torch.is_grad_enabled()
        self.shapes = shapes
        self.inputs = inputs  # numbers of the storages of all tensors that it takes; None: no storage
        self.optional = False  # a step can do without it: see Step.find_optional()
        self.parts = []  # (op or None, numbers of the storages of the tensors that the part returns)


class Step:
    """The ops and storages of one step."""

    def __init__(self, device, size_of=lambda memory: memory.nbytes()):
        self.device = device
        self._size_of = size_of  # bytes of a storage, also while it is away
        self.calls = []
        self.ops = []
        self.storages = []
        self._known = {}  # address of the storage object -> Storage
        self._made = set()  # numbers of those that calls of the step have made and that exist
        self._references = []  # while they exist, no other storage gets the same address

    def find(self, tensor, name, begins_before):
        """Returns the alias set of a tensor, or None if it is on another device or has 0 bytes."""
        if tensor.device != self.device:
            return None
        memory = storage_of(tensor)
        size = self._size_of(memory) if memory is not None else 0
        if size == 0:
            return None
        known = self._known.get(memory._cdata)
        if known is None:
            known = Storage(len(self.storages), size, name, begins_before)
            self._references.append(StorageWeakRef(memory))
            self._known[memory._cdata] = known
            self.storages.append(known)
            if not begins_before:
                self._made.add(known.number)
        known.bytes = max(known.bytes, size)  # resize_() keeps the storage
        return known

    def number(self, tensor):
        """Returns the number of a tensor's alias set; None if the step does not know it."""
        memory = storage_of(tensor)
        known = self._known.get(memory._cdata) if memory is not None else None
        return None if known is None else known.number

    def of(self, tensor):
        """The alias set of a tensor that the step knows, or None."""
        number = self.number(tensor)
        return None if number is None else self.storages[number]

    def mark(self, tensor, kind, name, persistent):
        storage = self.find(tensor, name, True)
        if storage is not None:
            storage.kind, storage.name, storage.persistent = kind, name, persistent
            storage.is_parameter = isinstance(tensor, torch.nn.Parameter)

    def shape(self):
        """Equal for steps whose durations can be compared."""
        return [(op.name, [storage.bytes for storage in op.reads + op.writes]) for op in self.ops]

    def present(self):
        """Returns number -> untyped storage, of the alias sets that exist now and before the step."""
        return {known.number: torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
                for reference, known in zip(self._references, self.storages)
                if known.begins_before and not reference.expired()}

    def note_ended(self):
        """A call begins: notes which storages have ended since the one before."""
        for number in [n for n in self._made if self._references[n].expired()]:
            self._made.discard(number)
            self.storages[number].last_call = len(self.calls) - 1

    def hold_until_ended(self, calls_max):
        """Lets storages that the script held after their last use count until they end, as if the last
        op before had read them. Those that it held for more calls may leave."""
        last_use = {}
        for place, call in enumerate(self.calls):
            for op in (op for op, _ in call.parts if op is not None):
                last_use.update((storage.number, place) for storage in op.reads + op.writes)
        for number, place in last_use.items():
            storage = self.storages[number]
            if storage.last_call is None or storage.last_call <= place:
                continue
            if storage.last_call - place > calls_max:
                continue
            held = [op for call in self.calls[place + 1:storage.last_call + 1]
                    for op, _ in call.parts if op is not None]
            if held and storage not in held[-1].reads:
                held[-1].reads.append(storage)

    def find_optional(self, drops_first):
        """Marks calls whose results neither outlive the step nor go into a call that is needed: what the
        script does now and then, as logging and evaluation. drops_first: those that the step begins with
        are dropped."""
        needed, makes = set(), []
        for call in reversed(self.calls):
            written = {storage.number for op, _ in call.parts if op is not None for storage in op.writes}
            returned = {number for _, outputs in call.parts for number in outputs if number is not None}
            made = written | (returned - set(call.inputs))
            makes.insert(0, made)
            call.optional = (not any(op is not None and op.fixed for op, _ in call.parts)
                             and not any(self.storages[number].begins_before for number in made)
                             and not made & needed)
            if not call.optional:
                needed |= made | set(call.inputs)
        count = next((i for i, call in enumerate(self.calls) if not call.optional), 0) if drops_first else 0
        while count > 0:
            later = {number for call in self.calls[count:] for number in call.inputs}
            used = next((i for i in range(count) if makes[i] & later), None)
            if used is None:
                break
            count = used
        dropped = {id(op) for call in self.calls[:count] for op, _ in call.parts}
        self.ops = [op for op in self.ops if id(op) not in dropped]
        self.calls = self.calls[count:]
        for storage in self.storages:
            if storage.last_call is not None:
                storage.last_call -= count

    def alive(self):
        """Returns the numbers of the alias sets that exist now."""
        return {known.number for reference, known in zip(self._references, self.storages)
                if not reference.expired()}

    def release(self):
        """Drops the references: addresses are invalid from now on."""
        self._known.clear()
        self._references.clear()
