"""Makes a schedule of a graph with the command `hyperoffload analyze`."""

import contextlib
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
_FLASH_BYTES = 8 << 20  # flash wears
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


def schedule_of(graph, budget_bytes, fixed_bytes, hardware, links, copies):
    """Returns (the schedule's bytes, the report's page) of a graph within `budget_bytes` of device memory, of which
    what the graph does not have takes `fixed_bytes`, with `copies` homes of each value.

    hardware: path of a hardware file; None: `links` are measured. Raises MemoryError where the budget cannot be met,
    RuntimeError where the command fails otherwise.
    """
    if budget_bytes <= fixed_bytes:
        raise MemoryError(f"the budget of {budget_bytes} bytes is below the {fixed_bytes} of {_FIXED}. What would help: "
                          "more device_memory, a smaller batch, or copies that do not share their memory")
    with tempfile.TemporaryDirectory(prefix="hyperoffload-") as name:
        folder, moved_bytes = pathlib.Path(name), budget_bytes - fixed_bytes
        (folder / "graph.json").write_text(json.dumps(graph), encoding="utf-8")
        if hardware is None:
            hardware = folder / "hardware.json"
            hardware.write_text(json.dumps(_measured(graph, links, copies, moved_bytes)), encoding="utf-8")
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


def _room_to_measure(budget_bytes):
    """Bytes of an accelerator's memory that measuring takes, while a plan is made for so many."""
    return max(4096, min(_MEASURED_BYTES, budget_bytes // 2))


class Links:
    """Measured speeds of a pool, in bytes/s: (put, get) by NEAR and FAR, (out, in) of flash.

    Measuring takes memory of the pool. Where all of that is in use, what was measured before counts. demand: the Demand
    of the job, which makes room on an accelerator; None: there is none.
    """

    def __init__(self, pool, device, demand=None):
        self._pool, self._device, self._demand = pool, device, demand
        self._found = {}

    def held_bytes(self):
        """Memory of the pool that the job has for homes."""
        return 0 if self._demand is None else self._demand.runtime.counters().ddr_bytes

    def measure_ahead(self, budget_bytes):
        """Measures while there is memory, where all of it may be in use later: beside flash, which takes the rest."""
        if self._pool.room(NEAR).flash_bytes >= _MEASURED_BYTES_MIN:
            with contextlib.suppress(Error):  # it counts when a plan is made
                self.measure(budget_bytes)

    def measure(self, budget_bytes):
        """Returns ({NEAR, FAR: what such nodes can give}, {NEAR, FAR, "flash": speeds}). An accelerator's values go to
        the first of NEAR and FAR first."""
        rooms, full = {nodes: self._pool.room(nodes) for nodes in (NEAR, FAR)}, None
        most, links = max(room.ddr_bytes for room in rooms.values()), {}
        for nodes, room in rooms.items():
            # A node that is full or being drained has nothing to plan with. Where all are, a call may wait for room.
            is_full = room.ddr_bytes < _MEASURED_BYTES_MIN <= most and nodes not in self._found
            if room.nodes == 0 or is_full:
                continue
            try:
                links[nodes] = self._measured(nodes, room, not links, budget_bytes)
            except Error as error:
                if error.name != "exhausted":
                    raise
                full = error
        if not links:
            raise full or Error("unavailable", "the pool has no node left")
        if rooms[NEAR].flash_bytes >= _MEASURED_BYTES_MIN and NEAR in links:
            with contextlib.suppress(Error):  # a plan without flash may do
                links["flash"] = self._measured("flash", rooms[NEAR], False, budget_bytes)
        return rooms, links

    def _measured(self, which, room, is_first, budget_bytes):
        # Where memory is short, what an accelerator sends may go to flash.
        to_flash = self._device.is_accelerator and room.flash_bytes > 0
        if which in self._found and room.ddr_bytes < (4 * _MEASURED_BYTES if to_flash else _MEASURED_BYTES_MIN):
            return self._found[which]
        size = max(_MEASURED_BYTES_MIN, min(_MEASURED_BYTES, room.ddr_bytes))
        if which == "flash":
            found = self._pool.measure_flash(min(size, _FLASH_BYTES, room.flash_bytes))
        elif self._device.is_accelerator and is_first:
            size = min(size, _room_to_measure(budget_bytes))
            if self._demand is not None:
                self._demand.room(size)
            found = self._pool.measure_device(self._device, size)
        else:
            found = self._pool.measure(which, size, _MEASURED_BYTES_MIN)
        self._found[which] = found
        return found


def _measured(graph, links, copies, budget_bytes):
    """A hardware description with the measured links to the pool: nodes on this machine, and all others; and with flash
    where memory of the pool may not do."""
    total = sum(int(storage["bytes"]) for storage in graph["storages"])
    (rooms, speeds), held_bytes = links.measure(budget_bytes), links.held_bytes()
    hardware = {"name": "measured", "deviceBytes": str(total)}
    # What leaves may have two homes at a time, in two plans, and more where nodes give whole segments.
    ample = 4 * total
    near, far = (rooms[nodes].ddr_bytes if nodes in speeds else 0 for nodes in (NEAR, FAR))
    if "flash" in speeds and copies == 1 and near + far + held_bytes < ample:
        # Some is lost where nodes give whole segments.
        near = (near + (0 if FAR in speeds else held_bytes)) * 7 // 8
        _add(hardware, "flash", rooms[NEAR].flash_bytes, speeds["flash"])
    else:
        # Where there are both, what a node of this machine has no room for goes to the others.
        near = min(ample, max(near, _MEASURED_BYTES_MIN)) if FAR in speeds else ample
        far = ample
    for nodes, tier, capacity in ((NEAR, "localDdr", near), (FAR, "remoteDdr", far)):
        if nodes in speeds:
            _add(hardware, tier, capacity, speeds[nodes])
    return hardware


def _add(hardware, tier, capacity, speeds):
    write, read = speeds
    hardware[tier] = {"capacityBytes": str(capacity), "read": _link(read), "write": _link(write)}


def _link(bytes_per_s):
    return {"bytesPerS": str(int(bytes_per_s)), "latencyNs": "50000"}
