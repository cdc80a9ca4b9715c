"""The test device (tests/support/torch_device.cpp): what a script on it needs of Python, and what tests ask."""

import ctypes
import pathlib
import time

import torch

from hyperoffload import _devices

NAME = "privateuseone"
_library = None
_driver = None


def load(device_library, driver_library):
    """Makes the device known to PyTorch and to HyperOffload."""
    global _library, _driver
    _driver = ctypes.CDLL(driver_library)
    _driver.fake_cuda_violations.restype = ctypes.c_char_p
    _library = ctypes.CDLL(device_library)
    _library.torch_device_reset.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int, ctypes.c_size_t]
    _library.torch_device_resize.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _library.torch_device_stream.restype = ctypes.c_void_p
    for name in ("peak", "used"):
        getattr(_library, f"torch_device_{name}_bytes").restype = ctypes.c_size_t
    _devices.KINDS[NAME] = Device
    Device.library = str(pathlib.Path(driver_library).resolve())
    torch.serialization.register_package(
        0, lambda storage: NAME if storage.device.type == NAME else None,
        lambda storage, place: _on_device(storage) if place.startswith(NAME) else None)


def _on_device(storage):
    """A copy of a processor's storage, as torch.load() has it."""
    return torch.tensor([], dtype=torch.uint8).set_(storage).to(NAME)._storage()


def reset(seed=1, delay_us=50, own_stream=False, limit_bytes=1 << 28):
    """Begins anew: other delays, another choice of memory. limit_bytes: of the device."""
    _library.torch_device_reset(seed, delay_us, own_stream, limit_bytes)


def violations():
    """What the driver has seen that a device would not order, a line each."""
    _library.torch_device_synchronize()
    return _driver.fake_cuda_violations().decode()


def peak_bytes():
    """The most that tensors have held since reset(), by the allocator."""
    return _library.torch_device_peak_bytes()


def used_bytes():
    return _library.torch_device_used_bytes()


class Device(_devices.Device):
    """As _devices.Cuda, for the test device."""

    kind, is_accelerator = 1, True

    def __init__(self, place):
        super().__init__(place)
        self.stream = _library.torch_device_stream()

    @staticmethod
    def resize(storage, size):
        if _library.torch_device_resize(storage._cdata, size) != 0:
            raise RuntimeError(f"no memory for {size} bytes")

    def can_resize(self, storage):
        return True

    def new_storage(self, size):
        with torch._C._DisableTorchDispatch():
            return torch.empty(size, dtype=torch.uint8, device=self.where)._storage()

    def synchronize(self):
        _library.torch_device_synchronize()

    @staticmethod
    def mark():
        _library.torch_device_synchronize()
        return time.perf_counter_ns()
