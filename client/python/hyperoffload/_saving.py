"""torch.save() of tensors that may be away: what it saves is brought first, and stays until it has ended."""

import contextlib
import warnings

import torch

from ._hooks import replace
from ._library import Error

# torch.save() looks these up when it is called: also one that was imported by name before.
_SAVES = ("_save", "_legacy_save")


class _Nowhere:
    def write(self, data):
        return len(data)


def _storages_in(value, pickle_module, protocol):
    """Untyped storages of all tensors in a value, as torch.save() finds them: by pickling all else."""
    found = {}

    def persistent_id(each):
        if not (isinstance(each, torch.storage.TypedStorage) or torch.is_storage(each)):
            return None
        untyped = getattr(each, "_untyped_storage", None) or getattr(each, "_storage", each)
        found[untyped._cdata] = untyped
        return "a storage"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.save() says the same
        pickler = pickle_module.Pickler(_Nowhere(), protocol=protocol)
        pickler.persistent_id = persistent_id
        pickler.dump(value)
    return list(found.values())


@contextlib.contextmanager
def all_fits(device):
    """Adds to an error what to do where an accelerator has no room for all values."""
    try:
        yield
    except Error as error:
        if error.name == "exhausted" and device.is_accelerator:
            error.args = (f"{error}\n  The device has no room for all values at a time. Within the run, save copies: "
                          "{name: value.cpu() for name, value in model.state_dict().items()}",)
        raise


def watch_saves(stack, demand, guard, leave_step):
    """Stands before torch.save() until `stack` ends. leave_step(cause) ends the plan's part in a step."""
    def save(original, value, file, pickle_module, protocol, *others, **named):
        with guard:
            storages = [storage for storage in _storages_in(value, pickle_module, protocol)
                        if storage.device == demand.device.where]
            if storages:
                leave_step("torch.save() within a step")
            with all_fits(demand.device):
                demand.hold(storages)
        try:
            return original(value, file, pickle_module, protocol, *others, **named)
        finally:
            demand.release()

    for name in _SAVES:
        replace(stack, torch.serialization, name, save)
