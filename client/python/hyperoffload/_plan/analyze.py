"""Makes a schedule of a graph with the command `hyperoffload analyze`."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from .._pool.library import FAR, NEAR, PACKAGE, Error

_FIXED = ("what cannot leave the device: batches that exist before a step, tensors below 4 KiB, memory that numpy, "
         "other libraries or processes have")
# What the command says of the device, in bytes.
_NEED = re.compile(r"the device cannot hold it: (?:op )?(.+?) needs .*\((\d+) bytes\)")
_MEASURED_BYTES = 32 << 20
_MEASURED_BYTES_MIN = 2 << 20
# A step outlives a node only if all that it has off the device is there twice.
_KINDS = ("ACTIVATION", "WEIGHT", "GRADIENT", "OPTIMIZER_STATE", "KV_CACHE", "INPUT", "OUTPUT")


def command():
    """The path of the `hyperoffload` command: in the package, HYPEROFFLOAD_COMMAND, or the one on the path."""
    own = PACKAGE / "hyperoffload"
    if own.exists():
        return str(own)
    found = os.environ.get("HYPEROFFLOAD_COMMAND") or shutil.which("hyperoffload")
    if found is None:
        raise FileNotFoundError("the command `hyperoffload` is not on the path; set "
                                "HYPEROFFLOAD_COMMAND to where it is")
    return found


def _unmet(said, budget_bytes, fixed_bytes):
    """What to tell a person of a budget that the command cannot meet, as it said."""
    need = _NEED.search(said)
    if need is None:
        return f"the budget of {budget_bytes} bytes cannot be met: {said}"
    what, moved_bytes = need[1], int(need[2])
    return (f"the budget of {budget_bytes} bytes cannot be met: {what} needs {moved_bytes} bytes at a time, beside the "
            f"{fixed_bytes} of {_FIXED}. What would help: device_memory of at least {moved_bytes + fixed_bytes} bytes, "
            "or a smaller batch")


def schedule_of(graph, budget_bytes, fixed_bytes, hardware, pool, copies, device):
    """Returns (the schedule's bytes, the report's page) of a graph within `budget_bytes` of device memory, of which
    what the graph does not have takes `fixed_bytes`, with `copies` homes of each value.

    hardware: path of a hardware file; None: the link between `device` and the pool is measured. Raises
    MemoryError where the budget cannot be met, RuntimeError where the command fails otherwise.
    """
    if budget_bytes <= fixed_bytes:
        raise MemoryError(f"the budget of {budget_bytes} bytes is below the {fixed_bytes} of {_FIXED}. What would help: "
                          "more device_memory, a smaller batch, or copies that do not share their memory")
    with tempfile.TemporaryDirectory(prefix="hyperoffload-") as name:
        folder, moved_bytes = pathlib.Path(name), budget_bytes - fixed_bytes
        (folder / "graph.json").write_text(json.dumps(graph), encoding="utf-8")
        if hardware is None:
            hardware = folder / "hardware.json"
            hardware.write_text(json.dumps(_measured(graph, pool, device, moved_bytes)), encoding="utf-8")
        done = subprocess.run(
            [command(), "analyze", str(folder / "graph.json"), "--hardware", str(hardware),
             "--device-memory", str(moved_bytes), "--copies",
             ",".join([str(copies), *(f"{kind}={copies}" for kind in _KINDS)]),
             "--out", str(folder / "step.hos"), "--report", str(folder / "report.html")],
            capture_output=True, text=True, check=False)
        if done.returncode == 3:
            raise MemoryError(_unmet(done.stderr.strip(), budget_bytes, fixed_bytes))
        if done.returncode != 0:
            raise RuntimeError(f"hyperoffload analyze failed: {done.stderr.strip()}")
        return ((folder / "step.hos").read_bytes(),
                (folder / "report.html").read_text(encoding="utf-8"))


def room_to_measure(budget_bytes):
    """Bytes of an accelerator's memory that measuring takes, while a plan is made for so many."""
    return max(4096, min(_MEASURED_BYTES, budget_bytes // 2))


def _measured(graph, pool, device, budget_bytes):
    """A hardware description with the measured links to the pool: nodes on this machine, and all others. An
    accelerator's values go to the first of these first."""
    total = sum(int(storage["bytes"]) for storage in graph["storages"])
    hardware = {"name": "measured", "deviceBytes": str(total)}
    rooms, links, full = {nodes: pool.room(nodes) for nodes in (NEAR, FAR)}, {}, None
    most = max(room.ddr_bytes for room in rooms.values())
    for nodes, room in rooms.items():
        # A node that is full or being drained has nothing to plan with. Where all are, a call may wait for room.
        if room.nodes == 0 or room.ddr_bytes < _MEASURED_BYTES_MIN <= most:
            continue
        try:
            size = max(_MEASURED_BYTES_MIN, min(_MEASURED_BYTES, room.ddr_bytes))
            if device.is_accelerator and not links:
                links[nodes] = pool.measure_device(device, min(size, room_to_measure(budget_bytes)))
            else:
                links[nodes] = pool.measure(nodes, size, _MEASURED_BYTES_MIN)
        except Error as error:
            if error.name != "exhausted":
                raise
            full = error
    if not links:
        raise full or Error("unavailable", "the pool has no node left")
    # Where there are both, what a node of this machine has no room for goes to the others.
    near_bytes = min(4 * total, max(pool.room(NEAR).ddr_bytes, _MEASURED_BYTES_MIN)) if FAR in links else 4 * total
    for nodes, tier, capacity in ((NEAR, "localDdr", near_bytes), (FAR, "remoteDdr", 4 * total)):
        if nodes in links:
            put, get = links[nodes]
            hardware[tier] = {"capacityBytes": str(capacity), "read": _link(get), "write": _link(put)}
    return hardware


def _link(bytes_per_s):
    return {"bytesPerS": str(int(bytes_per_s)), "latencyNs": "50000"}
