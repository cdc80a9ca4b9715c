"""What the daemons take over time: samples of each process, and the slope of such a row with its error."""
import http.client
import math
import os
import re
import threading
import time
import urllib.request


def descriptors_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_of(pid):
    """Bytes of a process's own memory: what jobs are granted is shared, and does not count."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


def heap_of(node):
    """Bytes of a daemon's own objects, as it counts them. Its memory has besides what its allocator keeps for the next ones,
    and grows for long by single pages that are used for the first time. None: it does not answer."""
    at = re.findall(r"page at=(http://[^/]+)/", node.errors.read_text(encoding="utf-8"))
    try:
        with urllib.request.urlopen(at[-1] + "/metrics", timeout=10) as answer:
            return int(float(re.search(r"^hyperoffload_heap_bytes (\S+)$", answer.read().decode(), re.M)[1]))
    except (OSError, IndexError, http.client.HTTPException):
        return None


def slope(rows):
    """The common slope a second of rows of (time_s, value), each of which has a level of its own, and its standard
    error. None: too few values to tell."""
    rows = [row for row in rows if len(row) > 1]
    centred = []
    for row in rows:
        at = sum(t for t, _ in row) / len(row)
        level = sum(v for _, v in row) / len(row)
        centred += [(t - at, v - level) for t, v in row]
    free = len(centred) - len(rows) - 1
    spread = sum(t * t for t, _ in centred)
    if free < 1 or spread == 0:
        return None
    value = sum(t * v for t, v in centred) / spread
    left = sum((v - value * t) ** 2 for t, v in centred)
    return value, math.sqrt(left / free / spread)


# What a daemon that lives throughout may grow by in an hour, beyond three standard errors of the slope: pages that are used for
# the first time, and texts in its bounded lists that are longer than those before. 1,500 jobs an hour that leave 50 bytes each are seen.
GROWTH_MAX = {"memory_bytes": 256 << 10, "heap_bytes": 64 << 10, "descriptors": 1}
JUDGED_FROM = 10  # values between rounds, in the second half of a process's life


def find_growth(summary):
    """Words for each slope of a summary that is too steep."""
    return [f"{one['node']} grows: {what} by {value:.0f} +- {error:.0f} an hour between rounds"
            for one in summary if one["processes"] == 1 and one["judged_values"] >= JUDGED_FROM
            for what, most in GROWTH_MAX.items()
            for value, error in ((one[f"{what}_per_hour_quiet"], one[f"{what}_per_hour_quiet_error"]),)
            if value is not None and value - 3 * error > most]


class Samples:
    """Samples of all daemons, once a second on a thread of its own, and when the pool is quiet."""

    WINDOW_S = 15  # Neighbouring samples are alike: the error of a slope is that of means over so long.

    def __init__(self, nodes, begun):
        self.nodes, self.begun = nodes, begun
        self.busy, self.quiet = {}, {}  # by (name, pid): rows of (time_s, memory_bytes, descriptors[, heap_bytes])
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.ended.wait(1):
            self._take(self.busy)

    def take_quiet(self):
        self._take(self.quiet, lambda node: (heap_of(node),))

    def _take(self, rows, more=lambda _: ()):
        for node in self.nodes:
            pid = node.pid
            try:
                row = (time.monotonic() - self.begun, memory_of(pid), descriptors_of(pid), *more(node))
            except (OSError, StopIteration, TypeError, ValueError):
                continue  # between two processes
            rows.setdefault((node.name, pid), []).append(row)

    def end(self):
        self.ended.set()
        self.thread.join()

    def _means(self, row, field):
        windows = {}
        for one in row:
            windows.setdefault(int((one[0] - row[0][0]) // self.WINDOW_S), []).append(one)
        return [(sum(x[0] for x in xs) / len(xs), sum(x[field] for x in xs) / len(xs)) for _, xs in sorted(windows.items())]

    @staticmethod
    def _rows(samples, node):
        """A row a process, of the second half of its life: first a daemon fills what it keeps a bounded number of."""
        return [row[len(row) // 2:] for (name, _), row in sorted(samples.items()) if name == node.name]

    def summary(self):
        """A list, a node each: slopes an hour and largest values."""
        out = []
        for node in self.nodes:
            busy, quiet = self._rows(self.busy, node), self._rows(self.quiet, node)
            all_of = [x for (name, _), row in self.busy.items() if name == node.name for x in row]
            one = {"node": node.name, "processes": len(busy), "samples": len(all_of),
                   "judged_values": len(quiet[-1]) if quiet else 0,
                   "memory_bytes_max": max((x[1] for x in all_of), default=0),
                   "descriptors_max": max((x[2] for x in all_of), default=0),
                   "heap_bytes": quiet[-1][-1][3] if quiet else None}
            for name, field in (("memory_bytes", 1), ("descriptors", 2), ("heap_bytes", 3)):
                for when, rows in (("busy", [self._means(row, field) for row in busy] if field < 3 else []),
                                   ("quiet", [[(x[0], x[field]) for x in row if x[field] is not None] for row in quiet])):
                    found = slope(rows)
                    one[f"{name}_per_hour_{when}"] = found and found[0] * 3600
                    one[f"{name}_per_hour_{when}_error"] = found and found[1] * 3600
            out.append(one)
        return out
