"""vLLM: a secondary tier of its tiered KV offloading (`vllm.v1.kv_offload.tiering`).

Written against the interface of vLLM's main branch in 2026 (`get_finished_jobs`, `chunk_ids`,
`on_new_request`, `LookupResult`) and the one before it (`get_finished`, `block_ids`,
`get_request_offloading_context`, True, False and None). Configuration of the tier:

    {"type": "hyperoffload", "module_path": "hyperoffload.connectors.vllm",
     "class_name": "HyperOffloadTier", "pool": "unix:/run/hyperoffload/control.sock",
     "tenant": "chat", "model": "llama-3-8b"}
"""

import ctypes
import dataclasses
import time
import types

from .. import _blocks

try:
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
except ImportError:
    SecondaryTierManager = object

    @dataclasses.dataclass
    class JobResult:
        job_id: int
        success: bool

try:
    from vllm.v1.kv_offload.base import LookupResult
    _HIT, _MISS, _RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY
except ImportError:
    _HIT, _MISS, _RETRY = True, False, None

try:
    from vllm.v1.kv_offload.base import RequestOffloadingContext
except ImportError:
    RequestOffloadingContext = types.SimpleNamespace

# A verdict is asked for again after this long: blocks come and go.
_VERDICT_S = 2.0
_VERDICTS_MAX = 100_000


class HyperOffloadTier(SecondaryTierManager):
    """Blocks of the primary tier's rows. vLLM calls it from one thread at a time."""

    def __init__(self, offloading_spec, primary_kv_view, tier_type="hyperoffload", *, pool,
                 **parameters):
        if SecondaryTierManager is not object:
            super().__init__(offloading_spec, primary_kv_view, tier_type)
        self.tier_type = tier_type
        view = memoryview(primary_kv_view)
        self._row_bytes = view.strides[0] if view.ndim > 1 else view.nbytes
        self._rows = view.nbytes // self._row_bytes
        self._view = view  # keeps the memory
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        self._blocks = _blocks.Blocks(pool, name="vllm", **parameters)
        self._blocks.register(self._address, view.nbytes)
        self._asked = {}     # key by ticket of a question
        self._verdicts = {}  # (found, time) by key; found None: asked
        self._jobs = {}      # (job id, keys, is a store) by ticket
        self._finished = []

    @staticmethod
    def get_tier_type():
        return "hyperoffload"

    def lookup(self, key, req_context=None):
        """Whether the block is stored; RETRY until its node has answered."""
        self._poll()
        known = self._verdicts.get(key)
        if known is not None and (known[0] is None or time.monotonic() - known[1] < _VERDICT_S):
            return _RETRY if known[0] is None else _HIT if known[0] else _MISS
        try:
            self._asked[self._blocks.submit(_blocks.EXISTS, [key])] = key
        except Exception:
            return _MISS
        if len(self._verdicts) >= _VERDICTS_MAX:
            self._verdicts = {k: v for k, v in self._verdicts.items() if v[0] is None}
        self._verdicts[key] = (None, time.monotonic())
        return _RETRY

    def submit_store(self, job_metadata):
        self._submit(_blocks.PUT, job_metadata)

    def submit_load(self, job_metadata):
        self._submit(_blocks.GET, job_metadata)

    def _submit(self, op, job):
        rows = getattr(job, "chunk_ids", None)
        if rows is None:
            rows = job.block_ids
        keys = list(job.keys)
        try:
            rows = [int(row) for row in rows]
            if len(keys) != len(rows) or not all(0 <= row < self._rows for row in rows):
                raise ValueError("not one row of the view for each key")
            items = [(key, self._address + row * self._row_bytes, self._row_bytes)
                     for key, row in zip(keys, rows)]
            if not items:
                self._finished.append(JobResult(job.job_id, True))
                return
            self._jobs[self._blocks.submit(op, items)] = (job.job_id, keys, op == _blocks.PUT)
        except Exception:  # its result says so
            self._finished.append(JobResult(job.job_id, False))

    def _poll(self):
        for ticket in self._blocks.poll():
            outcomes = [status == _blocks.OK for status in self._blocks.take(ticket)]
            if ticket in self._asked:
                self._verdicts[self._asked.pop(ticket)] = (outcomes[0], time.monotonic())
                continue
            job_id, keys, stored = self._jobs.pop(ticket)
            now = time.monotonic()
            for key, ok in zip(keys, outcomes):
                # A load that failed must not be promised again; a store is there now.
                if stored == ok:
                    self._verdicts[key] = (ok, now)
            result = JobResult(job_id, all(outcomes))
            if not stored and hasattr(result, "successful_keys"):
                result.successful_keys = [key for key, ok in zip(keys, outcomes) if ok]
            self._finished.append(result)

    def get_finished_jobs(self):
        self._poll()
        out, self._finished = self._finished, []
        return out

    def has_pending_work(self):
        # A job that ended at its submission is still to be collected.
        return bool(self._jobs or self._finished)

    def drain_jobs(self):
        """Waits until no transfer touches the primary tier. Bounded by the requests' deadlines."""
        while self._jobs:
            self._blocks.wait_for_news(0.1)
            self._poll()

    def touch(self, keys, req_context=None):
        """A get makes a block the last to be evicted; a mention does not."""

    def on_new_request(self, req_context=None):
        return RequestOffloadingContext()

    def on_request_finished(self, req_context=None):
        """Nothing is kept by request."""

    def on_schedule_end(self, context=None):
        """Nothing is deferred to a step's end."""

    def take_events(self):
        return ()

    def shutdown(self):
        self.drain_jobs()
        self._blocks.close()

    # As they were called before.
    get_finished = get_finished_jobs
    get_request_offloading_context = on_new_request
    request_finished = on_request_finished
