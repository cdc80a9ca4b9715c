"""Checks of what a person hands over: wrong arguments are refused at once, and named."""

import math
import pathlib

from .._pool.library import check_kind

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTES_MIN = 1 << 10
_BYTES_END = 1 << 60  # bounds memory, and bytes that a link carries in a second


def check_training(model, optimizer, *, may_lack_optimizer=False):
    """model and optimizer belong together."""
    import torch

    from .._torch.compiled import check_eager

    check_kind("model", model, torch.nn.Module, "the torch.nn.Module that is trained")
    check_eager(model)
    if optimizer is None and may_lack_optimizer:
        return
    check_kind("optimizer", optimizer, torch.optim.Optimizer,
               "the torch.optim.Optimizer whose step() ends a step")
    ours = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("optimizer has no parameter of the model: make it of model.parameters()")


def check_pool(pool):
    """The address has the right type; what it names is found out when the job connects."""
    if not isinstance(pool, str) or not pool:
        raise TypeError(f"pool is {pool!r}; write the daemons' control addresses, as "
                        '"unix:/run/hyperoffload/control.sock" or "tcp:host:port,tcp:host:port"')


def check_hardware(hardware):
    """The file is there."""
    if hardware is not None and not pathlib.Path(hardware).is_file():
        raise FileNotFoundError(f"hardware is {str(hardware)!r}, which is not a file; leave it out to "
                                "measure the link to the pool")


def check_log(log):
    """A function, or None."""
    if log is not None and not callable(log):
        raise TypeError(f"log is {log!r}; give a function that takes a line of text, as print")


def seconds_of(wait):
    """Seconds that a job waits for memory; None: it does not."""
    if wait is None:
        return 0.0
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait < 1e9:
        raise ValueError(f"wait is {wait!r}; write seconds, as 60")
    return float(wait)


def link_of(link):
    """Bytes per second that a job takes of its links; None: as many as they carry, as 0 says."""
    if link is None:
        return 0
    if type(link) is not int or not 0 < link < _BYTES_END:
        raise ValueError(f"link is {link!r}; write bytes per second, as 2_000_000_000")
    return link


def budget_of(device_memory):
    """Returns what "60%" (of what the step holds plainly), "2GiB" or a number of bytes are of the
    step's bytes, as a function."""
    text = str(device_memory).strip()
    try:
        if isinstance(device_memory, bool):
            raise ValueError
        if text.endswith("%"):
            share = float(text[:-1]) / 100
            most, budget = share, lambda plain_bytes: int(plain_bytes * share)
        else:
            unit = next((unit for unit in reversed(_UNITS) if text.endswith(unit)), "")
            most = size_bytes = int(float(text[:-len(unit)]) * _UNITS[unit]) if unit else int(text)
            budget = lambda _: size_bytes  # noqa: E731
        if not math.isfinite(most):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f'device_memory is {device_memory!r}; write "60%", "2GiB" or a number of '
                         f"bytes; units are {', '.join(_UNITS)}") from None
    if most <= 0:
        raise ValueError(f"device_memory is {device_memory!r}; it has to be more than 0")
    if text.isdigit() and most < _BYTES_MIN:
        raise ValueError(f'device_memory is {device_memory!r}, a number of bytes, and no step fits in so few; write '
                         f'"{text}%" for a share of what the step holds')
    if most >= _BYTES_END:
        raise ValueError(f"device_memory is {device_memory!r}; no device has so much")
    return budget


def copies_of(wish):
    """Returns how many copies of each value in the pool a job wishes; None: one."""
    if wish is not None and (type(wish) is not int or wish not in (1, 2)):
        raise ValueError(f"copies is {wish!r}; write 1, or 2 for a job that goes on when one node is lost")
    return wish or 1
