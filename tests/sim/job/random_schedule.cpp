#include "tests/sim/job/random_schedule.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::test {
namespace {

using schedule::Access;
using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::Position;
using schedule::Schedule;

/// Plans one step op by op. Positions are those of program order.
class Planner {
 public:
  Planner(Prng& random, Schedule& made) : random_(random), made_(made) {}

  void run() {
    last_access_.assign(made_.storages.size(), 0);
    last_store_.resize(made_.storages.size());
    last_detach_.resize(made_.storages.size());
    for (std::uint32_t p = 0; p < made_.positions.size(); ++p) {
      for (const auto& operand : made_.positions[p].operands) {
        last_access_[operand.storage.value()] = p;
      }
    }
    for (std::uint32_t p = 0; p < made_.positions.size(); ++p) plan_position(p);
    end_step();
  }

 private:
  struct Resident {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t last_position = 0;
    bool dirty = false;
  };
  /// Bytes released in this step. The next owner waits for their release.
  struct Freed {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t after_position = 0;
    std::optional<std::uint32_t> detach;
  };

  void plan_position(std::uint32_t p) {
    auto& operands = made_.positions[p].operands;
    std::set<std::uint32_t> wanted;
    for (const auto& operand : operands) wanted.insert(operand.storage.value());
    for (auto& operand : operands) {
      const std::uint32_t storage = operand.storage.value();
      if (residents_.count(storage) == 0) make_resident(storage, p, operand.access, wanted);
      Resident& resident = residents_[storage];
      operand.device_offset_bytes = resident.offset;
      resident.last_position = p;
      if (operand.access != Access::kRead) resident.dirty = true;
    }
    // Values end by themselves after their last read.
    for (auto it = residents_.begin(); it != residents_.end();) {
      const Storage& storage = made_.storages[it->first];
      if (storage.persistent || last_access_[it->first] != p) {
        ++it;
        continue;
      }
      freed_.push_back({it->second.offset, it->second.offset + it->second.bytes, p, {}});
      it = residents_.erase(it);
    }
  }

  void make_resident(std::uint32_t storage, std::uint32_t p, Access access,
                     const std::set<std::uint32_t>& wanted) {
    const std::uint64_t bytes = made_.storages[storage].bytes;
    std::optional<std::uint64_t> offset = find_room(bytes);
    while (!offset) {
      evict_any(wanted);
      offset = find_room(bytes);
    }
    residents_[storage] = {*offset, bytes, p, false};
    if (access == Access::kWrite) {
      wait_before_op(*offset, bytes, p);
    } else {
      add_prefetch(storage, *offset, p);
    }
  }

  std::optional<std::uint64_t> find_room(std::uint64_t bytes) {
    std::vector<std::uint64_t> starts = {0};
    for (const auto& [id, resident] : residents_) {
      starts.push_back(align_up(resident.offset + resident.bytes, made_.align_bytes));
    }
    std::sort(starts.begin(), starts.end());
    for (const std::uint64_t start : starts) {
      if (start + bytes > made_.arena_bytes) continue;
      const bool free = std::none_of(residents_.begin(), residents_.end(), [&](const auto& entry) {
        const Resident& other = entry.second;
        return start < other.offset + other.bytes && other.offset < start + bytes;
      });
      if (free) return start;
    }
    return std::nullopt;
  }

  void evict_any(const std::set<std::uint32_t>& wanted) {
    std::vector<std::uint32_t> choices;
    for (const auto& [id, resident] : residents_) {
      if (wanted.count(id) == 0) choices.push_back(id);
    }
    if (choices.empty()) {
      // Only operands of this op are left, and their places are fragmented: enlarge the arena.
      made_.arena_bytes += 4096;
      return;
    }
    evict(choices[random_.below(choices.size())]);
  }

  void evict(std::uint32_t id) {
    const Resident resident = residents_.at(id);
    residents_.erase(id);
    CacheOp detach = op(CacheOpKind::kDetach, id, resident.offset);
    detach.after_position = Position(resident.last_position);
    if (resident.dirty) {
      CacheOp store = op(CacheOpKind::kStore, id, resident.offset);
      store.after_position = Position(resident.last_position);
      if (last_store_[id]) store.after_cache_ops.push_back({CacheOpIndex(*last_store_[id])});
      last_store_[id] = add(store);
      detach.after_cache_ops.push_back({CacheOpIndex(*last_store_[id])});
    }
    const std::uint64_t end = resident.offset + resident.bytes;
    last_detach_[id] = add(detach);
    freed_.push_back({resident.offset, end, resident.last_position, last_detach_[id]});
  }

  void wait_before_op(std::uint64_t offset, std::uint64_t bytes, std::uint32_t p) {
    for (const Freed& freed : freed_) {
      if (freed.begin >= offset + bytes || offset >= freed.end || !freed.detach) continue;
      auto& before = made_.cache_ops[*freed.detach].before_position;
      if (!before) before = Position(p);
    }
  }

  void add_prefetch(std::uint32_t storage, std::uint64_t offset, std::uint32_t p) {
    CacheOp prefetch = op(CacheOpKind::kPrefetch, storage, offset);
    prefetch.before_position = Position(p);
    std::int64_t earliest = -1;
    for (const Freed& freed : freed_) {
      if (freed.begin >= offset + prefetch.range_end_bytes || offset >= freed.end) continue;
      earliest = std::max<std::int64_t>(earliest, freed.after_position);
      if (freed.detach) prefetch.after_cache_ops.push_back({CacheOpIndex(*freed.detach)});
    }
    if (last_detach_[storage]) {
      const auto left = made_.cache_ops[*last_detach_[storage]].after_position;
      earliest = std::max<std::int64_t>(earliest, left->value());
      prefetch.after_cache_ops.push_back({CacheOpIndex(*last_detach_[storage])});
    }
    if (last_store_[storage]) {
      prefetch.after_cache_ops.push_back({CacheOpIndex(*last_store_[storage])});
    }
    const std::int64_t start =
        earliest +
        static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(p - earliest)));
    if (start >= 0) prefetch.after_position = Position(static_cast<std::uint32_t>(start));
    add(prefetch);
  }

  /// Moves all storages home. The first op of the next step, and its prefetches that start at once,
  /// wait for that; all others follow them.
  void end_step() {
    while (!residents_.empty()) evict(residents_.begin()->first);
    std::vector<std::uint32_t> last;  // no op of this step waits for these
    for (std::uint32_t i = 0; i < made_.cache_ops.size(); ++i) {
      const CacheOp& detach = made_.cache_ops[i];
      if (detach.kind == CacheOpKind::kDetach && !detach.before_position) last.push_back(i);
    }
    for (const std::uint32_t detach : last) {
      made_.cache_ops[detach].before_position = Position(0);
      made_.cache_ops[detach].before_next_step = true;
    }
    for (std::uint32_t i = 0; i < made_.cache_ops.size(); ++i) {
      CacheOp& prefetch = made_.cache_ops[i];
      if (prefetch.kind != CacheOpKind::kPrefetch || prefetch.after_position) continue;
      for (const std::uint32_t detach : last) {
        prefetch.after_cache_ops.push_back({CacheOpIndex(detach), true});
      }
      const auto& stored = last_store_[prefetch.storage.value()];
      if (stored && made_.storages[prefetch.storage.value()].persistent) {
        prefetch.after_cache_ops.push_back({CacheOpIndex(*stored), true});
      }
    }
  }

  [[nodiscard]] CacheOp op(CacheOpKind kind, std::uint32_t storage, std::uint64_t offset) const {
    CacheOp made;
    made.kind = kind;
    made.storage = StorageIndex(storage);
    made.range_end_bytes = made_.storages[storage].bytes;
    made.device_offset_bytes = offset;
    return made;
  }
  std::uint32_t add(const CacheOp& made) {
    made_.cache_ops.push_back(made);
    return static_cast<std::uint32_t>(made_.cache_ops.size() - 1);
  }

  Prng& random_;
  Schedule& made_;
  std::map<std::uint32_t, Resident> residents_;
  std::vector<Freed> freed_;
  std::vector<std::uint32_t> last_access_;
  std::vector<std::optional<std::uint32_t>> last_store_;
  std::vector<std::optional<std::uint32_t>> last_detach_;
};

void add_storages(Prng& random, const Schedule* like, Schedule& made) {
  std::vector<Storage> storages;
  if (like != nullptr) {
    storages = like->storages;
    std::erase_if(storages, [](const Storage& storage) { return !storage.persistent; });
  }
  const std::size_t count = storages.size() + 3 + random.below(8);
  for (auto i = static_cast<std::uint32_t>(storages.size()); i < count; ++i) {
    Storage storage;
    storage.name = "s" + std::to_string(i);
    storage.bytes = 1 + random.below(20000);
    const std::uint64_t kind = random.below(like != nullptr ? 3 : 6);
    storage.kind = kind == 0  ? StorageKind::kInput
                   : kind < 3 ? StorageKind::kActivation
                              : StorageKind::kWeight;
    storage.persistent = storage.kind == StorageKind::kWeight;
    storages.push_back(storage);
  }
  std::uint32_t id = like != nullptr ? 300 : 100;
  for (Storage& storage : storages) {
    storage.id = id++;
    made.storages.push_back(storage);
    const bool remote = random.below(3) == 0;
    std::uint64_t& home = remote ? made.remote_ddr_bytes : made.local_ddr_bytes;
    made.homes.push_back(schedule::HomeSlot{
        remote ? schedule::HomeTier::kRemoteDdr : schedule::HomeTier::kLocalDdr, home});
    home = align_up(home + storage.bytes, 64);
  }
}

void add_positions(Prng& random, Schedule& made) {
  std::vector<bool> alive(made.storages.size());
  for (std::size_t i = 0; i < alive.size(); ++i) {
    alive[i] = made.storages[i].kind != StorageKind::kActivation;
  }
  const std::size_t count = 2 + random.below(14);
  for (std::uint32_t p = 0; p < count; ++p) {
    schedule::OpInfo info;
    info.id = p;
    info.name = "op" + std::to_string(p);
    info.duration_ns = 1000 + random.below(100000);
    made.ops.push_back(info);
    schedule::ScheduledOp position;
    position.op = OpIndex(p);
    std::set<std::uint32_t> used;
    const std::size_t operands = 1 + random.below(3);
    for (std::size_t i = 0; i < operands; ++i) {
      const auto storage = static_cast<std::uint32_t>(random.below(made.storages.size()));
      if (!used.insert(storage).second) continue;
      auto access = static_cast<Access>(1 + random.below(3));
      if (made.storages[storage].kind == StorageKind::kInput) access = Access::kRead;
      if (!alive[storage]) access = Access::kWrite;
      alive[storage] = true;
      position.operands.push_back({StorageIndex(storage), access, 0});
    }
    made.positions.push_back(position);
  }
}

}  // namespace

namespace {

Schedule make(Prng& random, const Schedule* like) {
  Schedule made;
  made.graph_name = "random";
  add_storages(random, like, made);
  add_positions(random, made);
  std::uint64_t all = 0;
  std::uint64_t largest = 0;
  for (const auto& position : made.positions) {
    std::uint64_t here = 0;
    for (const auto& operand : position.operands) {
      here += align_up(made.storages[operand.storage.value()].bytes, made.align_bytes);
    }
    largest = std::max(largest, here);
  }
  for (const Storage& storage : made.storages) all += align_up(storage.bytes, made.align_bytes);
  made.arena_bytes = largest + random.below(all - largest + 1);
  Planner(random, made).run();
  made.arena_bytes = align_up(made.arena_bytes, made.align_bytes);
  made.device_budget_bytes = made.arena_bytes;
  made.hardware.name = "sim";
  made.hardware.device_bytes = made.arena_bytes;
  const TierSpec tier{std::uint64_t{1} << 30U, {1'000'000'000, 1000}, {1'000'000'000, 1000}};
  made.hardware.local_ddr = tier;
  made.hardware.remote_ddr = tier;
  return made;
}

}  // namespace

Schedule random_schedule(Prng& random) { return make(random, nullptr); }

Schedule random_schedule_like(const Schedule& like, Prng& random) { return make(random, &like); }

Graph graph_of(const Schedule& schedule) {
  Graph graph;
  graph.name = schedule.graph_name;
  graph.storages = schedule.storages;
  for (const auto& position : schedule.positions) {
    const schedule::OpInfo& info = schedule.ops[position.op.value()];
    Op op;
    op.id = info.id;
    op.name = info.name;
    op.duration_ns = info.duration_ns;
    for (const auto& operand : position.operands) {
      if (operand.access != Access::kWrite) op.reads.push_back(operand.storage);
      if (operand.access != Access::kRead) op.writes.push_back(operand.storage);
    }
    graph.ops.push_back(std::move(op));
  }
  return graph;
}

}  // namespace ho::test
