"""SGLang: a storage backend of HiCache (`sglang.srt.mem_cache.hicache_storage.HiCacheStorage`).

Written against SGLang 0.5 (`batch_get_v1`, `batch_set_v1`, `register_mem_pool_host`), and
`hicache_storage.py` of its repository at 001067ff. On the command line:

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "hyperoffload", "module_path": "hyperoffload.connectors.sglang",
      "class_name": "HyperOffloadStorage", "interface_v1": 1,
      "pool": "unix:/run/hyperoffload/control.sock", "tenant": "chat"}'

HiCache calls it on threads that it never starts again, so no call raises: what fails is a miss, or
a block that is not stored, and is logged.
"""

import contextlib
import functools
import logging
import threading

from .._pool import blocks, library

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ImportError:
    HiCacheStorage = object

try:
    from sglang.srt.mem_cache.hicache_storage import PoolTransferResult
except ImportError:
    PoolTransferResult = None

_log = logging.getLogger(__name__)
_PINS_MAX = 16
_PARAMETERS = ("tenant", "secret", "secret_file", "salt", "deadline_ms")
# What SGLang itself reads of the extra_config.
_OF_SGLANG = ("backend_name", "module_path", "class_name", "interface_v1", "prefetch_", "hicache_")


def _quiet(otherwise):
    """Where the call would raise, it returns `otherwise`: if that is a list, once for each of its keys."""
    def decorate(call):
        @functools.wraps(call)
        def safe(self, *arguments, **named):
            try:
                return call(self, *arguments, **named)
            except Exception:
                _log.exception("%s failed; taken for a miss", call.__name__)
                if not isinstance(otherwise, list):
                    return otherwise
                return otherwise * len(named.get("keys", arguments[0] if arguments else ()))
        return safe
    return decorate


def _place(tensor):
    """Address and length of a tensor of host memory."""
    kind = getattr(getattr(tensor, "device", None), "type", "cpu")
    if kind != "cpu":
        raise ValueError(f"the tensor is on {kind}; blocks are in host memory")
    if not tensor.is_contiguous():  # between its elements is memory of others
        raise ValueError("the tensor is not contiguous")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _items(keys, tensors):
    """Blocks of keys, each in a tensor."""
    if len(keys) != len(tensors):
        raise ValueError(f"{len(tensors)} tensors for {len(keys)} keys")
    return [(f"{key}#0", *_place(tensor)) for key, tensor in zip(keys, tensors)]


class HyperOffloadStorage(HiCacheStorage):
    """Pages of HiCache's host memory. Calls may come from several threads.

    A page may lie in several pieces of host memory, such as keys and values: each is a block. Servers share blocks if
    all is the same that says what a page holds: the model, the ranks, and the host memory's layout and type.
    """

    def __init__(self, storage_config, *_, **__):
        extra = dict(getattr(storage_config, "extra_config", None) or {})
        if "pool" not in extra:
            raise ValueError('extra_config has no "pool": name the daemons\' control addresses')
        known = (*_PARAMETERS, "pool", "model", "rank", "dtype", "layout")
        unknown = [name for name in extra if name not in known and not name.startswith(_OF_SGLANG)]
        if unknown:
            _log.warning("extra_config has %s, which nothing reads; it may have %s", unknown, ", ".join(known))
        one = bool(getattr(storage_config, "is_mla_model", False))  # all ranks have the same
        layout = [str(getattr(storage_config, field, "")) for field in
                  ("pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size", "is_page_first_layout")]
        if not one:
            layout.append(f"tp{getattr(storage_config, 'tp_size', 1)}")
        self._layout = [*layout, str(extra.get("layout", ""))]
        self._dtype = str(extra.get("dtype", ""))
        rank = 0 if one else int(getattr(storage_config, "tp_rank", 0))
        self._options = {
            "pool": extra["pool"], "name": "sglang", "rank": int(extra.get("rank", rank)),
            "model": getattr(storage_config, "model_name", None) or extra.get("model", ""),
            **{key: extra[key] for key in _PARAMETERS if key in extra}}
        self._blocks = self._open((), "")
        self._pieces = 1  # blocks to a page
        self._lock = threading.Lock()
        self._pins = {}  # pages that were matched and not got yet, by pin
        self.mem_pool_host = None
        self._told_hybrid = False

    def _open(self, layout, dtype):
        return blocks.Blocks(layout=":".join((*self._layout, *layout)), dtype=self._dtype or dtype,
                             make_room=lambda: self._unpin(lambda: list(self._pins)), **self._options)

    @_quiet(None)
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host
        # Pages of another layout or type have other contents under the same keys, often of the same size.
        layout = [f"{field}={getattr(mem_pool_host, field)}" for field in ("layout", "page_size")
                  if getattr(mem_pool_host, field, None) is not None]
        # From here on nothing is stored without them; where they cannot be had, all is a miss.
        with self._lock:
            self._pins.clear()
        self._blocks.close()
        self._blocks = self._open(layout, str(getattr(mem_pool_host, "dtype", "")))
        buffer = mem_pool_host.kv_buffer
        for tensor in buffer if isinstance(buffer, (list, tuple)) else (buffer,):
            self._blocks.register(*_place(tensor))
        self._learn_pieces()

    def _learn_pieces(self):
        """How many blocks a page is, so that the first question about pages asks for all of them."""
        try:
            import torch
            first = torch.arange(int(self.mem_pool_host.page_size))
            self._pieces = len(self.mem_pool_host.get_page_buffer_meta(first)[0])
        except Exception:
            _log.info("blocks to a page are learnt from the first page that is moved", exc_info=True)

    def _names(self, key):
        return [f"{key}#{piece}" for piece in range(self._pieces)]

    def _pages(self, keys, host_indices):
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        if not keys or len(addresses) % len(keys) != 0 or len(addresses) != len(sizes):
            raise ValueError(f"{len(addresses)} pieces for {len(keys)} pages")
        self._pieces = len(addresses) // len(keys)
        names = [name for key in keys for name in self._names(key)]
        return list(zip(names, map(int, addresses), map(int, sizes)))

    def _by_page(self, done):
        return [all(done[at:at + self._pieces]) for at in range(0, len(done), self._pieces)]

    def _unpin(self, choose):
        """Ends the pins that `choose()` returns."""
        with self._lock:
            ended = choose()
            for pin in ended:
                del self._pins[pin]
        for pin in ended:
            with contextlib.suppress(library.Error):  # it ended with the blocks that were open before
                self._blocks.unpin(pin)

    def _get(self, keys, items):
        """Gets blocks. Pages that were matched for that need no pin any more."""
        found = self._blocks.run(blocks.GET, items)

        def got():
            for pages in self._pins.values():
                pages.difference_update(keys)
            return [pin for pin, pages in self._pins.items() if not pages]
        self._unpin(got)
        return found

    def _put(self, items):
        """Stores blocks. Pins leave no room to some: they end."""
        return self._blocks.run(blocks.PUT, items)

    @_quiet([False])
    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._by_page(self._get(keys, self._pages(keys, host_indices))) if keys else []

    @_quiet([False])
    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._by_page(self._put(self._pages(keys, host_indices))) if keys else []

    @_quiet(None)
    def get(self, key, target_location=None, target_sizes=None):
        found = self._get([key], _items([key], [target_location]))
        return target_location if found[0] else None

    @_quiet([None])
    def batch_get(self, keys, target_locations=None, target_sizes=None):
        if not keys:
            return []
        found = self._get(keys, _items(keys, target_locations))
        return [target if ok else None for target, ok in zip(target_locations, found)]

    @_quiet(False)
    def set(self, key, value=None, target_location=None, target_sizes=None):
        value = target_location if value is None else value
        return self._put(_items([key], [value]))[0]

    @_quiet(False)
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        values = target_locations if values is None else values
        if not keys:
            return True
        return all(self._put(_items(keys, values)))

    @_quiet(False)
    def exists(self, key):
        return all(self._blocks.run(blocks.EXISTS, self._names(key)))

    @_quiet(0)
    def batch_exists(self, keys, extra_info=None):
        """How many leading keys are stored. HiCache gets them next: until then they are pinned, and
        those on flash come to memory. What it does not get is pinned until there is no room for
        puts, or too much is pinned."""
        if not keys:
            return 0
        found, pin = self._blocks.match([name for key in keys for name in self._names(key)])
        pages = found // self._pieces
        if pin:
            with self._lock:
                self._pins[pin] = set(keys[:pages])
            self._unpin(lambda: list(self._pins)[:-_PINS_MAX])
        return pages

    # What hybrid models have beside the KV cache is not stored: their pages are misses.

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        if not self._told_hybrid:
            self._told_hybrid = True
            _log.warning("pages of hybrid models (several pools) are not stored")
        return 0 if PoolTransferResult is None else PoolTransferResult.empty()

    def batch_get_v2(self, transfers, extra_info=None):
        return {str(transfer.name): [False] * len(transfer.keys or ()) for transfer in transfers}

    batch_set_v2 = batch_get_v2

    def clear(self):
        """Blocks are shared with other jobs; `hyperoffload blocks clear` ends a tenant's."""

    def get_stats(self):
        return None

    @_quiet(None)
    def close(self):
        self._blocks.close()
