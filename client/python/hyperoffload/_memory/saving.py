"""All values at a time on the device: for torch.save(), which needs what it saves, and at the end of a run."""

import contextlib
import pickle
import warnings

import torch

from .._pool.library import Error
from .._torch.hooks import replace
from .._torch.step import storage_of

# torch.save() looks these up when it is called: also one that was imported by name before.
_SAVES = ("_save", "_legacy_save")


class _Nowhere:
    def write(self, data):
        return len(data)


def storages_in(value, pickle_module=pickle, protocol=pickle.HIGHEST_PROTOCOL):
    """Untyped storages of all tensors in a value, as torch.save() finds them: by pickling all else."""
    found = {}

    def persistent_id(each):
        if not (isinstance(each, torch.storage.TypedStorage) or torch.is_storage(each)):
            return None
        untyped = getattr(each, "_untyped_storage", None)
        if untyped is None:
            untyped = getattr(each, "_storage", each)
        found[untyped._cdata] = untyped
        return "a storage"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.save() says the same
        pickler = pickle_module.Pickler(_Nowhere(), protocol=protocol)
        pickler.persistent_id = persistent_id
        pickler.dump(value)
    return list(found.values())


@contextlib.contextmanager
def _all_fits(device):
    """Adds to an error what to do where an accelerator has no room for all values."""
    try:
        yield
    except Error as error:
        if error.name == "exhausted" and device.is_accelerator:
            error.args = (f"{error}\n  The device has no room for all values at a time. Within the run, save copies: "
                          "{name: value.cpu() for name, value in model.state_dict().items()}",)
        raise


def bring_all(model, optimizer, demand, say):
    """Brings all values to the device, and nothing leaves any more. Where it has no room for them, the optimizer's
    states go to the CPU, and say(what) tells."""
    with _all_fits(demand.device):
        if demand.device.is_accelerator:
            demand.bring([*model.parameters(), *model.buffers()])  # first, for there may be no room for all
            if _try_pause(demand):
                return
            moved = _states_to_processor(model, optimizer, demand)
            say(f"the optimizer's states ({moved / 2**20:.0f} MiB) are on the CPU: {demand.device.where} has no room "
                "for all values at a time")
        demand.pause()


def _try_pause(demand):
    """As demand.pause(). Returns whether there is room for all; else it has not paused."""
    try:
        demand.pause()
    except Error as error:
        if error.name != "exhausted":
            raise
        return False
    return True


def _states_to_processor(model, optimizer, demand):
    """Replaces an optimizer's states by copies on the CPU, those of one storage at a time, except for what the model
    has, too. Returns their bytes."""
    of_model = {storage._cdata for storage in map(storage_of, (*model.parameters(), *model.buffers()))
                if storage is not None}
    by_storage = {}
    for state in optimizer.state.values():
        for name, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor) and value.device == demand.device.where:
                storage = storage_of(value)
                if storage is not None and storage._cdata not in of_model:
                    by_storage.setdefault(storage._cdata, (storage, []))[1].append((state, name, value))
    moved = 0
    for storage, uses in by_storage.values():
        demand.bring([value for _, _, value in uses])
        for state, name, value in uses:
            state[name] = value.cpu()
            moved += value.numel() * value.element_size()
        demand.leave_out(storage)
    return moved


def watch_saves(stack, demand, guard, leave_step):
    """Stands before torch.save() until `stack` ends. leave_step(cause) ends the plan's part in a step."""
    def save(original, value, file, pickle_module, protocol, *others, **named):
        is_held = False
        try:
            with guard:  # Ctrl-C comes up at its end; nothing in other threads
                storages = [storage for storage in storages_in(value, pickle_module, protocol)
                            if storage.device == demand.device.where]
                if demand.is_ours(storages):
                    if storages:
                        leave_step("torch.save() within a step")
                    with _all_fits(demand.device):
                        demand.hold(storages)
                    is_held = True
            return original(value, file, pickle_module, protocol, *others, **named)
        finally:
            if is_held:
                demand.release()

    for name in _SAVES:
        replace(stack, torch.serialization, name, save)
