"""The test device (tests/support/cuda/torch_device.cpp): what a script on it needs of Python, and what tests ask."""

import ctypes
import functools
import pathlib
import time
import types

import torch

from hyperoffload._torch import devices as _devices
from hyperoffload._torch.step import storage_of

NAME = "privateuseone"
IS_REAL = False
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
    _library.torch_device_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    _library.torch_device_stream.restype = ctypes.c_void_p
    for name in ("peak", "used"):
        getattr(_library, f"torch_device_{name}_bytes").restype = ctypes.c_size_t
    _devices.KINDS[NAME] = Device
    Device.library = str(pathlib.Path(driver_library).resolve())
    # Python of PyTorch 1.13 refuses storages of devices that it does not know. Tests load what they have saved to
    # the processor, and do not pickle tensors.
    torch.UntypedStorage.cpu = _for_device(torch.UntypedStorage.cpu, _on_processor)
    torch.Tensor.__deepcopy__ = _for_device(torch.Tensor.__deepcopy__, _deepcopy)
    if hasattr(torch, "_register_device_module"):  # from PyTorch 2 on
        module = types.ModuleType(f"torch.{NAME}")
        module._lazy_init = lambda: None
        module.is_available = module.is_initialized = lambda: True
        module._is_in_bad_fork, module.manual_seed_all = lambda: False, lambda seed: None
        module.current_device, module.device_count = lambda: 0, lambda: 1
        module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
        torch._register_device_module(NAME, module)
    torch.serialization.register_package(
        0, lambda storage: NAME if storage.device.type == NAME else None, lambda storage, place: None)


def _for_device(original, ours):
    @functools.wraps(original)
    def method(self, *args):
        return (ours if self.device.type == NAME else original)(self, *args)

    return method


def _on_processor(storage):
    copied = torch.UntypedStorage(storage.nbytes())
    _library.torch_device_read(copied.data_ptr(), storage.data_ptr(), storage.nbytes())
    return copied


def _deepcopy(tensor, memo):
    """As PyTorch's for devices whose storages Python does not know."""
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


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


def stream():
    """That of all kernels; None: the legacy default one."""
    return _library.torch_device_stream()


def used_bytes():
    return _library.torch_device_used_bytes()


class Device(_devices.Device):
    """As _devices.Cuda, for the test device."""

    kind, is_accelerator = 1, True

    def __init__(self, place):
        super().__init__(place)
        self.stream = stream()

    @staticmethod
    def resize(storage, size):
        if _library.torch_device_resize(storage._cdata, size) != 0:
            raise RuntimeError(f"no memory for {size} bytes")

    def can_resize(self, storage):
        return True

    def new_storage(self, size):
        disabled = torch._C._DisableTorchDispatch()  # as long as it exists
        storage = storage_of(torch.empty(size, dtype=torch.uint8, device=self.where))
        del disabled
        return storage

    def synchronize(self):
        _library.torch_device_synchronize()

    def mark(self):
        _library.torch_device_synchronize()
        return time.perf_counter_ns()
