#include "tools/compare/cached_passes.hpp"

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/contains.hpp"
#include "common/base/units.hpp"

namespace ho::gpt {
namespace {

constexpr std::uint64_t kAlign = 64;

/// All that outlives a pass, and the most bytes of one op and of one pass's activations.
struct Inventory {
  Graph graph;
  std::uint64_t op_bytes = 0;
  std::string op_name;
  std::uint64_t activations_bytes = 0;
};

Result<Inventory> take_inventory(const DecoderOptions& options) {
  Inventory made;
  std::map<std::string, bool> seen;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (std::uint32_t g = 0; g < options.groups; ++g) {
      const auto model = build_pass(options, {phase, g, options.model.seq / options.block_rows});
      if (!model) return model.error();
      std::uint64_t activations = 0;
      for (Storage storage : model->graph.storages) {
        if (!storage.persistent) activations += align_up(storage.bytes, kAlign);
        if (!storage.persistent || !seen.try_emplace(storage.name, true).second) continue;
        storage.id = static_cast<std::uint32_t>(made.graph.storages.size());
        made.graph.storages.push_back(storage);
      }
      made.activations_bytes = std::max(made.activations_bytes, activations);
      for (const Op& op : model->graph.ops) {
        std::uint64_t bytes = 0;
        for (const StorageIndex s : model->ops[op.id].operands) {
          const Storage& storage = model->graph.storages[s.value()];
          if (storage.persistent) bytes += align_up(storage.bytes, kAlign);
        }
        if (bytes <= made.op_bytes) continue;
        made.op_bytes = bytes;
        made.op_name = op.name;
      }
    }
  }
  return made;
}

}  // namespace

Result<std::unique_ptr<CachedPasses>> CachedPasses::create(const DecoderOptions& options,
                                                           hyperoffload::Pool& pool,
                                                           std::uint64_t device_bytes,
                                                           Ahead ahead) {
  auto inventory = take_inventory(options);
  if (!inventory) return inventory.error();
  const std::uint64_t least = inventory->activations_bytes + inventory->op_bytes;
  if (least > device_bytes) {
    return Error(Errc::kOutOfRange, "op " + inventory->op_name + " beside the activations needs " +
                                        format_bytes(least) + ", the device budget is " +
                                        format_bytes(device_bytes));
  }
  auto arena = Arena::create(device_bytes);
  if (!arena) return arena.error();
  std::unique_ptr<CachedPasses> made(
      new CachedPasses(options, pool, ahead, std::move(inventory->graph),
                       inventory->activations_bytes, std::move(arena).value()));
  if (auto ok = made->open(); !ok) return ok.error();
  return made;
}

CachedPasses::CachedPasses(const DecoderOptions& options, hyperoffload::Pool& pool, Ahead ahead,
                           Graph graph, std::uint64_t activations_bytes,
                           std::unique_ptr<Arena> arena)
    : options_(options),
      pool_(pool),
      ahead_how_(ahead),
      graph_(std::move(graph)),
      activations_bytes_(activations_bytes),
      arena_(std::move(arena)),
      cache_(graph_, arena_->bytes() - activations_bytes) {}

/// Gives weights their initial values; KV blocks are written before they are read.
Result<void> CachedPasses::open() {
  std::uint64_t end = 0;
  for (const Storage& storage : graph_.storages) {
    home_bytes_.push_back(end);
    by_name_.emplace(storage.name, StorageIndex(storage.id));
    end += align_up(storage.bytes, kAlign);
  }
  home_ = std::make_unique<hyperoffload::Allocation>(pool_.allocate(end));
  pool_.register_memory(arena_->data(), arena_->bytes());
  registered_ = true;
  const auto pass = known({});
  if (!pass) return pass.error();
  for (const Storage& storage : (*pass)->model.graph.storages) {
    if (storage.kind != StorageKind::kWeight) continue;
    const StorageIndex kept = (*pass)->kept[storage.id];
    cache_.unpin_all();
    HO_CHECK(place(kept, {}));
    initial_value((*pass)->model, StorageIndex(storage.id), {address(kept), storage.bytes});
    cache_.mark_dirty(kept);
  }
  usage_ = {};
  return {};
}

CachedPasses::~CachedPasses() {
  for (const auto& [storage, ticket] : fetching_) ho_wait(pool_.get(), ticket);
  if (registered_) ho_unregister(pool_.get(), arena_->data());
}

Result<CachedPasses::Known*> CachedPasses::known(const Pass& pass) {
  const auto found = passes_.find(pass);
  if (found != passes_.end()) return &found->second;
  auto model = build_pass(options_, pass);
  if (!model) return model.error();
  Known made{std::move(model).value(), {}, {}, {}};
  std::uint64_t end = 0;
  for (const Storage& storage : made.model.graph.storages) {
    made.activation.push_back(storage.persistent ? nullptr : arena_->data() + end);
    made.kept.push_back(storage.persistent ? by_name_.at(storage.name) : StorageIndex(0));
    if (!storage.persistent) end += align_up(storage.bytes, kAlign);
  }
  HO_CHECK(end <= activations_bytes_);
  std::string last;
  std::uint32_t layer = 0;
  for (const Op& op : made.model.graph.ops) {
    const std::string name = op.name.substr(0, op.name.find('.'));
    if (name != last) ++layer;
    last = name;
    PassOp& about = made.ops.emplace_back();
    about.layer = layer;
    for (const StorageIndex s : made.model.ops[op.id].operands) {
      if (made.activation[s.value()] == nullptr) about.needs.push_back(made.kept[s.value()]);
    }
  }
  return &passes_.emplace(pass, std::move(made)).first->second;
}

std::byte* CachedPasses::address(StorageIndex storage) const {
  return arena_->data() + activations_bytes_ + cache_.offset_bytes(storage);
}

/// Writes home what was evicted dirty, before others take its bytes.
void CachedPasses::store(const std::vector<LruCache::Eviction>& evictions) {
  std::vector<std::uint64_t> tickets;
  for (const LruCache::Eviction& gone : evictions) {
    if (!gone.dirty) continue;
    const std::uint64_t bytes = graph_.storages[gone.storage.value()].bytes;
    tickets.push_back(pool_.put(*home_, home_bytes_[gone.storage.value()],
                                arena_->data() + activations_bytes_ + gone.offset_bytes, bytes));
    usage_.store_bytes += bytes;
  }
  for (const std::uint64_t ticket : tickets) pool_.wait(ticket);
}

/// Makes a storage resident, its value on the way where it is among `reads`.
/// @return false: there is no room beside what is pinned.
bool CachedPasses::place(StorageIndex storage, const std::vector<StorageIndex>& reads) {
  const auto placement = cache_.place(storage);
  if (!placement) return false;
  cache_.pin(storage);
  store(placement->evictions);
  if (!contains(reads, storage)) return true;
  const std::uint64_t bytes = graph_.storages[storage.value()].bytes;
  fetching_[storage] = pool_.get(*home_, home_bytes_[storage.value()], address(storage), bytes);
  usage_.prefetch_bytes += bytes;
  return true;
}

void CachedPasses::await(StorageIndex storage) {
  const auto found = fetching_.find(storage);
  if (found == fetching_.end()) return;
  pool_.wait(found->second);
  fetching_.erase(found);
}

/// Values that were fetched ahead may be evicted like all others from now on.
void CachedPasses::drop_ahead() {
  for (const StorageIndex storage : ahead_) await(storage);
  ahead_.clear();
}

/// Room in one piece, though all but the op's operands has to go for it.
void CachedPasses::make_room() {
  store(cache_.evict_unpinned());
  for (const LruCache::Move& move : cache_.compact()) {
    await(move.storage);
    std::byte* const begin = arena_->data() + activations_bytes_;
    std::memmove(begin + move.to_bytes, begin + move.from_bytes,
                 graph_.storages[move.storage.value()].bytes);
  }
}

/// Waits until the op's operands are there, and pins them.
void CachedPasses::acquire(const Known& pass, std::size_t op) {
  const std::vector<StorageIndex>& needs = pass.ops[op].needs;
  std::erase_if(ahead_, [&](StorageIndex s) { return contains(needs, s); });
  cache_.unpin_all();
  for (const StorageIndex s : ahead_) cache_.pin(s);
  for (const StorageIndex s : needs) {
    if (cache_.resident(s)) cache_.pin(s);
  }
  std::vector<StorageIndex> reads;
  for (const StorageIndex s : pass.model.graph.ops[op].reads) {
    if (pass.activation[s.value()] == nullptr) reads.push_back(pass.kept[s.value()]);
  }
  for (const StorageIndex s : needs) {
    if (cache_.resident(s)) {
      cache_.touch(s);
      continue;
    }
    if (place(s, reads)) continue;
    drop_ahead();
    cache_.unpin_all();
    for (const StorageIndex other : needs) {
      if (cache_.resident(other)) cache_.pin(other);
    }
    if (place(s, reads)) continue;
    make_room();
    HO_CHECK(place(s, reads));  // create() has seen that one op's operands fit
  }
  for (const StorageIndex s : needs) await(s);
}

void CachedPasses::fetch_ahead(const Known& pass, std::size_t op) {
  if (ahead_how_ == Ahead::kNothing) return;
  for (std::size_t next = op + 1; next < pass.ops.size(); ++next) {
    if (pass.ops[next].layer > pass.ops[op].layer + 1) return;
    for (const StorageIndex s : pass.model.graph.ops[next].reads) {
      if (pass.activation[s.value()] != nullptr) continue;
      const StorageIndex kept = pass.kept[s.value()];
      if (contains(ahead_, kept)) continue;
      if (!cache_.resident(kept) && !place(kept, {kept})) return;
      cache_.pin(kept);
      ahead_.push_back(kept);
    }
  }
}

Result<void> CachedPasses::run(const Pass& pass, std::span<const std::int32_t> tokens,
                               StepContext& context) {
  const auto found = known(pass);
  if (!found) return found.error();
  const Known& to_run = **found;
  const Model& model = to_run.model;
  std::memcpy(to_run.activation[model.tokens.value()], tokens.data(), tokens.size_bytes());
  const SteadyClock clock;
  std::vector<void*> operands;
  for (std::size_t o = 0; o < model.ops.size(); ++o) {
    const TimePoint start = clock.now();
    acquire(to_run, o);
    fetch_ahead(to_run, o);
    usage_.stall_ns += static_cast<std::uint64_t>((clock.now() - start).count());
    operands.clear();
    for (const StorageIndex s : model.ops[o].operands) {
      std::byte* const activation = to_run.activation[s.value()];
      operands.push_back(activation != nullptr ? activation : address(to_run.kept[s.value()]));
    }
    model.ops[o].kernel(operands, context);
    for (const StorageIndex s : model.graph.ops[o].writes) {
      if (to_run.activation[s.value()] == nullptr) cache_.mark_dirty(to_run.kept[s.value()]);
    }
  }
  return {};
}

PassUsage CachedPasses::usage() const {
  PassUsage usage = usage_;
  usage.peak_device_bytes = activations_bytes_ + cache_.peak_bytes();
  return usage;
}

}  // namespace ho::gpt
