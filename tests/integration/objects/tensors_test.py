"""Which memory is published as a tensor, and read into: names of types.

Usage: tensors_test.py CLI DAEMON LIBRARY PACKAGE
"""
import ctypes
import os
import pathlib
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
sys.path.insert(0, sys.argv[4])
os.environ["HYPEROFFLOAD_LIBRARY"] = sys.argv[3]
import hyperoffload  # noqa: E402
from one_node import Node  # noqa: E402
from hyperoffload import Publisher, Subscriber  # noqa: E402


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


with Node(sys.argv[1], sys.argv[2]) as node:
    names_of_types(node.pool)
