"""vLLM: a secondary tier of its tiered KV offloading (`vllm.v1.kv_offload.tiering`).

Written against the interface of vLLM's main branch in 2026 (`get_finished_jobs`, `chunk_ids`,
`on_new_request`, `LookupResult`: `tiering/fs/manager.py` at 1d0a6c68) and the one before it (`get_finished`,
`block_ids`, `get_request_offloading_context`, True, False and None: `tiering/base.py` at 041410b9).
Configuration of the tier:

    {"type": "hyperoffload", "module_path": "hyperoffload.connectors.vllm",
     "class_name": "HyperOffloadTier", "pool": "unix:/run/hyperoffload/control.sock",
     "tenant": "chat", "model": "llama-3-8b"}

vLLM's keys are digests of tokens. All else that says what a row holds comes from the offloading_spec into the
layout: model, types, groups of the KV cache and the ways in which they are divided. Servers share blocks if they have
the same PYTHONHASHSEED, of which vLLM makes its first digest.
"""

import ctypes
import dataclasses
import hashlib
import logging
import time
import types

from .._pool import blocks, library

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

# A verdict is asked for again so long after its first use, or where nobody has used it, after its answer: blocks come
# and go, and a load fails where one has gone.
_USED_S, _UNUSED_S = 0.1, 2.0
_VERDICTS_MAX = 100_000
# Attributes of an offloading_spec that tell rows of one meaning from others, in both forms that it has had.
_NAMESPACE = (
    "config.model.name", "config.model.dtype", "config.parallel.tp_size", "config.parallel.pp_size",
    "config.parallel.pcp_size", "config.parallel.dcp_size", "config.parallel.rank", "config.cache.tokens_per_hash",
    "config.canonical_layout", "config.kv_cache_layout", "vllm_config.model_config.model",
    "vllm_config.model_config.dtype", "vllm_config.cache_config.cache_dtype", "vllm_config.cache_config.block_size",
    "vllm_config.parallel_config.tensor_parallel_size", "vllm_config.parallel_config.pipeline_parallel_size",
    "vllm_config.parallel_config.prefill_context_parallel_size",
    "vllm_config.parallel_config.decode_context_parallel_size", "vllm_config.parallel_config.rank")
_log = logging.getLogger(__name__)


def _at(value, path):
    """What a path of attributes leads to, or None."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _namespace(spec):
    """A digest of what tells the rows of this server from others of the same tokens; "" where the spec says nothing."""
    found = [(path, str(_at(spec, path))) for path in _NAMESPACE if _at(spec, path) is not None]
    for group in _at(spec, "config.groups") or ():
        found.append(("group", str((getattr(group, "tokens_per_block", None), list(getattr(group, "layer_names", ()))))))
    for group in _at(spec, "kv_cache_config.kv_cache_groups") or ():
        block = _at(group, "kv_cache_spec.block_size")
        found.append(("group", str((block, list(getattr(group, "layer_names", ()))))))
    if not found:
        return ""
    _log.info("blocks are shared with servers of the same %s", found)
    return hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest()


class HyperOffloadTier(SecondaryTierManager):
    """Blocks of the primary tier's rows. vLLM calls it from one thread at a time."""

    def __init__(self, offloading_spec, primary_kv_view, tier_type="hyperoffload", *, pool,
                 layout="", **parameters):
        if SecondaryTierManager is not object:
            super().__init__(offloading_spec, primary_kv_view, tier_type)
        self.tier_type = tier_type
        view = memoryview(primary_kv_view)
        self._row_bytes = view.strides[0] if view.ndim > 1 else view.nbytes
        self._rows = view.nbytes // self._row_bytes
        self._view = view  # keeps the memory
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        self._blocks = blocks.Blocks(pool, name="vllm", layout=layout + _namespace(offloading_spec), **parameters)
        self._blocks.register(self._address, view.nbytes)
        self._asked = {}     # key by ticket of a question
        self._verdicts = {}  # (found, until when it holds, whether it was used) by key; found None: asked
        self._jobs = {}      # (job id, keys, is a store) by ticket
        self._finished = []
        self._told = set()   # why jobs failed

    def _tell(self, why):
        """vLLM does not say that jobs fail: says why, once for each cause."""
        if why not in self._told:
            self._told.add(why)
            _log.warning("blocks are not stored or loaded: %s", why)

    @staticmethod
    def get_tier_type():
        return "hyperoffload"

    def lookup(self, key, req_context=None):
        """Whether the block is stored; RETRY until its node has answered."""
        self._poll()
        if key in self._verdicts:
            found, end, is_used = self._verdicts[key]
            if found is None:
                return _RETRY
            now = time.monotonic()
            if now < end:
                if not is_used:  # a caller may ask for many keys before it comes back to this one
                    self._verdicts[key] = (found, now + _USED_S, True)
                return _HIT if found else _MISS
        try:
            self._asked[self._blocks.submit(blocks.EXISTS, [key])] = key
        except Exception:
            return _MISS
        if len(self._verdicts) >= _VERDICTS_MAX:
            self._verdicts = {k: v for k, v in self._verdicts.items() if v[0] is None}
        self._verdicts[key] = (None, None, False)
        return _RETRY

    def submit_store(self, job_metadata):
        self._submit(blocks.PUT, job_metadata)

    def submit_load(self, job_metadata):
        self._submit(blocks.GET, job_metadata)

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
            self._jobs[self._blocks.submit(op, items)] = (job.job_id, keys, op == blocks.PUT)
        except Exception as error:  # its result says so
            self._tell(str(error))
            self._finished.append(JobResult(job.job_id, False))

    def _poll(self):
        if self._view is None:
            return  # shut down
        for ticket in self._blocks.poll():
            statuses = self._blocks.take(ticket)
            outcomes = [status == blocks.OK for status in statuses]
            if ticket in self._asked:
                self._verdicts[self._asked.pop(ticket)] = (outcomes[0], time.monotonic() + _UNUSED_S, False)
                continue
            job_id, keys, stored = self._jobs.pop(ticket)
            if stored and not all(outcomes):
                self._tell("stores end with " + library.status_name(next(filter(None, statuses))))
            end = time.monotonic() + _UNUSED_S
            for key, ok in zip(keys, outcomes):
                # A load that failed must not be promised again; a store is there now.
                if stored == ok:
                    self._verdicts[key] = (ok, end, False)
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
        if self._view is None:
            return
        try:
            self.drain_jobs()
        finally:
            view, self._view = self._view, None
            self._blocks.close()
            view.release()  # vLLM unmaps it

    # As they were called before.
    get_finished = get_finished_jobs
    get_request_offloading_context = on_new_request
    request_finished = on_request_finished
