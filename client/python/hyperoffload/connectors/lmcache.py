"""LMCache: a native connector (`native_plugin`), by its protocol of LMCache 0.4: `native_plugin_l2_adapter.py`
of its repository at f9f99a82, `native_connector_l2_adapter.py` at 3fd3000f.

Configuration of the L2 adapter:

    {"type": "native_plugin", "module_path": "hyperoffload.connectors.lmcache",
     "class_name": "Connector",
     "adapter_params": {"pool": "unix:/run/hyperoffload/control.sock", "tenant": "chat",
                        "model": "llama-3-8b"}}

LMCache watches event_fd(), submits batches, and drains their completions:
(future id, ok, error, [bool] for each key).
"""

import ctypes
import threading

from .._pool import blocks, library

_FAILED = {blocks.GET: "are not there", blocks.PUT: "could not be stored", blocks.REMOVE: "could not be removed"}


def _failure(op, statuses):
    """Why a request failed, or "": a question cannot fail, and a block that is not there need not be removed."""
    fine = (blocks.OK, blocks.NOT_FOUND) if op == blocks.REMOVE else (blocks.OK,)
    failed = [] if op == blocks.EXISTS else [status for status in statuses if status not in fine]
    if not failed:
        return ""
    names = ", ".join(library.status_name(status) for status in sorted(set(failed)))
    return f"{len(failed)} of {len(statuses)} blocks {_FAILED[op]}: {names}"


def _place(op, buffer):
    """The bytes of a buffer. A get writes them, and a put only reads: those of a read-only buffer are copied."""
    view = memoryview(buffer).cast("B")
    if view.readonly and op == blocks.PUT:
        view = bytearray(view)
    return (ctypes.c_char * len(view)).from_buffer(view)


class Connector:
    """Blocks of texts' keys in buffers of LMCache's. Calls may come from any thread."""

    def __init__(self, pool, **parameters):
        self._blocks = blocks.Blocks(pool, name="lmcache", **parameters)
        self._lock = threading.Lock()
        self._requests = {}   # (future id, buffers that must stay) by ticket
        self._refused = []    # completions of requests that could not start
        self._next = 1

    def event_fd(self):
        return self._blocks.event_fd

    def submit_batch_get(self, keys, memoryviews):
        return self._submit(blocks.GET, keys, memoryviews)

    def submit_batch_set(self, keys, memoryviews):
        return self._submit(blocks.PUT, keys, memoryviews)

    def submit_batch_exists(self, keys):
        return self._submit(blocks.EXISTS, keys, None)

    def submit_batch_delete(self, keys):
        return self._submit(blocks.REMOVE, keys, None)

    def _submit(self, op, keys, buffers):
        with self._lock:
            future, self._next = self._next, self._next + 1
            items = []
            try:
                items = keys = list(keys)
                if buffers is not None:
                    if len(buffers) != len(items):
                        raise ValueError("keys and buffers differ in number")
                    buffers = [_place(op, buffer) for buffer in buffers]
                    items = [(key, ctypes.addressof(buffer), len(buffer)) for key, buffer in zip(items, buffers)]
                if not items:
                    self._refused.append((future, True, "", []))
                    self._wake()
                    return future
                self._requests[self._blocks.submit(op, items)] = (future, op, buffers)
            except Exception as error:  # a completion, so that nobody waits forever
                self._refused.append((future, False, str(error), [False] * len(items)))
                self._wake()
            return future

    def _wake(self):
        """Makes the descriptor readable: a question whose answer nobody takes."""
        try:
            # A removal of what is not there counts nowhere.
            self._requests[self._blocks.submit(blocks.REMOVE, ["wake"])] = (None, None, None)
        except Exception:  # too many requests: the descriptor is readable soon
            pass

    def drain_completions(self):
        """Completions since the last call; an empty list: none."""
        with self._lock:
            out, self._refused = self._refused, []
            for ticket in self._blocks.poll():
                future, op, _ = self._requests.pop(ticket)
                statuses = self._blocks.take(ticket)
                if future is None:
                    continue
                error = _failure(op, statuses)
                out.append((future, not error, error, [status == blocks.OK for status in statuses]))
            return out

    def close(self):
        self._blocks.close()
