"""A real CUDA device, in place of the test device (torch_device.py): the same names, as far as a real one has them."""

import gc

import torch

from hyperoffload._torch import devices as _devices

NAME = "cuda"
IS_REAL = True  # nobody watches its order, and its memory cannot be limited to the byte
Device = _devices.Cuda


def load(device_library, driver_library):
    """Begins to use it: PyTorch's and the driver's own memory is taken before the tests look."""
    values = torch.ones(64, 64, device=NAME, requires_grad=True)
    (values @ values).sum().backward()
    torch.cuda.synchronize()


def reset(seed=1, delay_us=0, own_stream=False, limit_bytes=0):
    """Begins anew."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()


def violations():
    """Waits for the device, which says where a call has failed."""
    torch.cuda.synchronize()
    return ""


def stream():
    return None
