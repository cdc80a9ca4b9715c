"""Which memory is published as a tensor, and read into: shapes of tiles, read-only memory, names of types, lazy values.

Usage: tensors_test.py CLI DAEMON LIBRARY PACKAGE
"""
import contextlib
import ctypes
import mmap
import os
import pathlib
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
sys.path.insert(0, sys.argv[4])
os.environ["HYPEROFFLOAD_LIBRARY"] = sys.argv[3]
import hyperoffload  # noqa: E402
from one_node import Node  # noqa: E402
from hyperoffload import Publisher, Subscriber, Tile  # noqa: E402


class Tensor:
    """The attributes of a torch tensor that are read."""

    def __init__(self, shape=(2, 3), dtype="torch.uint8", size=1, **lazy):
        self.shape, self.dtype, self.device, self._size = shape, dtype, types.SimpleNamespace(type="cpu"), size
        self.memory = ctypes.create_string_buffer(self.numel() * size)
        for name, value in lazy.items():
            setattr(self, name, lambda value=value: value)

    def is_contiguous(self):
        return True

    def element_size(self):
        return self._size

    def numel(self):
        count = 1
        for size in self.shape:
            count *= size
        return count

    def data_ptr(self):
        return ctypes.addressof(self.memory)


class Pair(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int64), ("value", ctypes.py_object)]


class Plain(ctypes.Structure):
    """Its field's name is that of no type."""
    _fields_ = [("Old", ctypes.c_int64)]


def refuses(error, call):
    try:
        call()
    except error as caught:
        return str(caught)
    raise AssertionError(f"no {error.__name__}")


def read(pool, name, **wanted):
    with Subscriber(pool, name, wanted) as reader:
        reader.acquire(timeout=20)
        reader.read()


def lazy_values(pool):
    """Memory of a conjugated or negated view has the values before that."""
    for kind in (Publisher, Subscriber):
        for name, mend in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
            said = refuses(ValueError, lambda: kind(pool, "lazy", {"w": Tensor(**{name: True})}))
            assert "w: " in said and f"{mend}()" in said, said
            kind(pool, "lazy", {"w": Tensor(**{name: False})}).close()


def shapes_of_tiles(pool):
    """A tile of another shape and the same size is refused; memory of one dimension is a tile's bytes in a row."""
    wide = memoryview(bytearray(12)).cast("B", (2, 6))
    for kind in (Publisher, Subscriber):
        for data, layout, rank, found in ((Tensor((3, 2)), "-;-", 0, "(3, 2)"), (Tensor((3, 2)), "-;tp", 1, "(3, 2)"),
                                          (wide, "tp;-", 0, "(2, 6)")):
            shape = (2, 3) if layout == "-;-" else (2, 6) if layout == "-;tp" else (6, 4)
            said = refuses(ValueError, lambda: kind(pool, "tiles", {"w": Tile(data, layout, shape)}, mesh="2:tp", rank=rank, run=1))
            assert said.startswith("w: ") and found in said, said
        for data in (Tensor((2, 3)), Tensor((6,)), bytearray(6)):
            kind(pool, "tiles", {"w": Tile(data, "-;tp", (2, 6))}, mesh="2:tp", rank=1, run=1).close()
    # An error of the layout comes from the library, as for memory of one dimension.
    said = refuses(hyperoffload.Error, lambda: Publisher(pool, "tiles", {"w": Tile(Tensor(), "-;dp", (2, 3))}, mesh="1:tp"))
    assert said.startswith("invalid-argument: w: "), said


def read_only(pool, folder):
    """Publishers only read; readers say the name of what they cannot write to."""
    (folder / "frozen").write_bytes(b"abcdefgh")
    with contextlib.ExitStack() as ends:
        file = ends.enter_context(open(folder / "frozen", "rb"))
        frozen = ends.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        with Publisher(pool, "frozen", {"file": memoryview(frozen), "bytes": b"01234567"}) as writer:
            writer.publish(1)
            got = {"file": bytearray(8), "bytes": bytearray(8)}
            read(pool, "frozen", **got)
            assert got == {"file": b"abcdefgh", "bytes": b"01234567"}, got
        assert "bytes: its memory is read-only" in refuses(ValueError, lambda: read(pool, "frozen", bytes=b"01234567"))


def names_of_types(pool):
    """One type has several names."""
    with Publisher(pool, "types", {"w": Tensor(dtype="bf16", size=2), "z": Tensor(dtype="Zd", size=16)}) as writer:
        writer.publish(1)
        for dtypes in (("torch.bfloat16", "torch.complex128"), ("bf16", "Zd")):
            read(pool, "types", w=Tensor(dtype=dtypes[0], size=2), z=Tensor(dtype=dtypes[1], size=16))
        assert "another type" in refuses(hyperoffload.Error, lambda: read(pool, "types", w=Tensor(dtype="torch.float16", size=2)))
    try:
        import numpy
    except ImportError:
        return
    with Publisher(pool, "numbers", {"z": numpy.full((3, 2), 2 - 1j, numpy.complex64)}) as writer:
        writer.publish(1)
        read(pool, "numbers", z=(got := numpy.zeros((3, 2), numpy.complex64)))
        assert (got == 2 - 1j).all()
        with Subscriber(pool, "numbers", {}) as reader:
            reader.acquire()
            assert reader.describe()["tensors"][0]["dtype"] == "complex64"


def buffers_of_other_kinds(pool):
    """Addresses of Python objects are not published. A refusal names the tensor. A type is the same in arrays of ctypes,
    which say the order of its bytes."""
    for kind in (Publisher, Subscriber):
        for array in (ctypes.py_object * 2, Pair * 2):
            said = refuses(ValueError, lambda: kind(pool, "kinds", {"w": array()}))
            assert said.startswith("w: its elements are addresses in this process"), said
        for value, tensor in (([1, 2], "w"), (None, "w"), (bytearray(8), 3)):
            said = refuses(TypeError, lambda: kind(pool, "kinds", {tensor: value}))
            assert "w: not a tensor" in said or "tensor 3 is a int; give a text" in said, said
    tensors = {"f": (ctypes.c_float * 4)(1.5), "l": (ctypes.c_int64 * 4)(7), "Old": (Plain * 4)()}
    with Publisher(pool, "kinds", tensors) as writer:
        writer.publish(1)
        got = {"f": Tensor((4,), "torch.float32", 4), "l": memoryview(bytearray(32)).cast("l")}
        read(pool, "kinds", **got)
        assert memoryview(got["f"].memory).cast("B").cast("f")[0] == 1.5 and got["l"][0] == 7


with Node(sys.argv[1], sys.argv[2]) as node:
    lazy_values(node.pool)
    shapes_of_tiles(node.pool)
    read_only(node.pool, node.folder)
    names_of_types(node.pool)
    buffers_of_other_kinds(node.pool)
