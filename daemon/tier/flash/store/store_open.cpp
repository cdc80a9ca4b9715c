#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "daemon/tier/flash/store/store.hpp"

namespace ho::flash {

namespace {

constexpr auto kSettleTurn = std::chrono::milliseconds(100);
// A snapshot of the largest path takes seconds; minutes without an answer mean a dead device.
constexpr auto kSettleMax = std::chrono::minutes(5);

Result<void> check_set(const std::vector<Volume>& volumes) {
  const Superblock& first = volumes.front().super;
  for (std::size_t i = 0; i < volumes.size(); ++i) {
    const Superblock& super = volumes[i].super;
    if (super.set != first.set) {
      return Error(Errc::kConflict, volumes[i].name + ": belongs to another set of paths than " +
                                        volumes.front().name);
    }
    if (super.path_count != volumes.size()) {
      return Error(Errc::kConflict, volumes[i].name + ": belongs to a set of " +
                                        std::to_string(super.path_count) + " paths; " +
                                        std::to_string(volumes.size()) + " are given");
    }
    if (super.path_index != i) {
      return Error(Errc::kConflict,
                   volumes[i].name + ": is path " + std::to_string(super.path_index + 1) +
                       " of its set, but is given as path " + std::to_string(i + 1));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<Volume>> Store::recover_all(BlockingIo& io, const Options& options,
                                               Findings& findings) {
  const std::size_t count = io.device().paths().size();
  HO_CHECK(count > 0);
  if (count > kPathsMax) return Error(Errc::kInvalidArgument, "more than 64 flash paths");
  std::vector<Volume> volumes;
  std::vector<std::string> blank;
  for (std::uint16_t i = 0; i < count; ++i) {
    auto volume = recover(io, PathIndex(i), findings);
    if (volume) {
      volumes.push_back(std::move(*volume));
    } else if (volume.error().code() == Errc::kNotFound) {
      blank.push_back(io.device().paths()[i].name);
    } else {
      return volume.error();
    }
  }
  // A first start that was cut: nothing was ever in the pool. Whatever sets there are by now.
  const bool unused = std::all_of(volumes.begin(), volumes.end(),
                                  [](const Volume& one) { return one.super.epoch == 1; });
  if (unused && !volumes.empty() && (!blank.empty() || !check_set(volumes))) {
    findings.push_back("an earlier first start did not end; all paths are formatted again");
    volumes.clear();
    blank.clear();
  }
  if (!volumes.empty() && !blank.empty()) {
    return Error(Errc::kConflict, blank.front() + ": is blank, but " + volumes.front().name +
                                      " belongs to a set of " +
                                      std::to_string(volumes.front().super.path_count) + " paths");
  }
  if (volumes.empty()) {
    for (std::uint16_t i = 0; i < count; ++i) {
      auto made = format(io, PathIndex(i), options.new_set, static_cast<std::uint16_t>(count));
      if (!made) return made.error();
      findings.push_back(made->name + ": blank; formatted");
      volumes.push_back(std::move(*made));
    }
  }
  if (auto set = check_set(volumes); !set) return set.error();
  return volumes;
}

/// An extent that is not on all of its paths was being made or freed when the daemon ended, and
/// neither was acknowledged as made: its last rest goes.
void Store::drop_incomplete(std::vector<Volume>& volumes, Findings& findings) {
  std::set<ExtentId> ids;
  for (const Volume& volume : volumes) {
    for (const auto& [id, shard] : volume.table.shards()) ids.insert(id);
  }
  const auto paths = static_cast<std::uint16_t>(volumes.size());
  for (const ExtentId id : ids) {
    const ExtentInfo* info = nullptr;
    for (Volume& volume : volumes) {
      if (const Shard* shard = volume.table.find(id)) info = &shard->info;
    }
    bool whole = true;
    for (Volume& volume : volumes) {
      const bool needed = Striping(id, paths).shard_blocks(volume.path, info->length_bytes) > 0;
      whole = whole && (!needed || volume.table.find(id) != nullptr);
    }
    if (whole) continue;
    findings.push_back("extent " + std::to_string(id.value()) +
                       ": was being made or freed; dropped");
    for (Volume& volume : volumes) {
      const Shard* shard = volume.table.find(id);
      if (shard == nullptr) continue;
      for (const std::uint32_t block : shard->physical) volume.space.give({block, 1});
      volume.table.shards().erase(id);
    }
  }
}

Result<std::unique_ptr<Store>> Store::open(std::unique_ptr<Device> device, Options options,
                                           Findings& findings) {
  BlockingIo io(*device);
  auto volumes = recover_all(io, options, findings);
  if (!volumes) return volumes.error();
  // After a kill what was read here may be in the device's cache alone, the superblock too. The new
  // log goes over the one that is safe, which a power cut would bring back.
  for (Volume& volume : *volumes) {
    if (auto safe = io.sync(volume.path); !safe) return safe.error();
    if (auto repaired = repair_superblocks(io, volume); !repaired) return repaired.error();
  }
  drop_incomplete(*volumes, findings);
  HO_CHECK(device->caps().depth_ops >= volumes->size() * Journal::device_ops(1) + 2);
  std::unique_ptr<Store> store(
      new Store(std::move(device), std::move(options), std::move(*volumes)));
  store->adopt_extents();
  // A log of this run's own: what recovery dropped is gone from it, and both copies are sound.
  for (auto& path : store->paths_) path->journal.request_snapshot();
  if (auto settled = store->settle(); !settled) return settled.error();
  return store;
}

Store::Store(std::unique_ptr<Device> device, Options options, std::vector<Volume> volumes)
    : device_(std::move(device)),
      options_(std::move(options)),
      issuing_(options_.ops_max),
      bounce_memory_(options_.bounce_buffers * kDeviceOpBytesMax) {
  const std::uint32_t depth = device_->caps().depth_ops;
  const auto path_count = static_cast<std::uint32_t>(volumes.size());
  Journal::Options journal;
  // At most a quarter of the device's depth is for logs, but for what they need.
  journal.frames_open = kFramesOpenMax;
  while (journal.frames_open > 1 &&
         4 * path_count * Journal::device_ops(journal.frames_open) > depth) {
    --journal.frames_open;
  }
  device_depth_ = depth - path_count * Journal::device_ops(journal.frames_open);
  // Chunks that wait for the log hold no place on the device: more of them than it takes.
  const std::size_t chunks = std::max<std::size_t>(std::size_t{4} * depth, options_.ops_max);
  chunks_.resize(chunks);
  ops_.resize(options_.ops_max);
  for (std::size_t i = chunks; i-- > 0;) free_chunks_.push_back(static_cast<Slot>(i));
  for (std::size_t i = options_.ops_max; i-- > 0;) free_ops_.push_back(static_cast<Slot>(i));
  for (std::size_t i = 0; i < options_.bounce_buffers; ++i) {
    free_bounces_.push_back(bounce_memory_.data() + i * kDeviceOpBytesMax);
  }
  // Registered where the kernel allows it; without that it is slower, not wrong.
  static_cast<void>(device_->add_memory(bounce_memory_.span()));
  done_.reserve(options_.ops_max);
  journal.commits_max = chunks + 2 * options_.ops_max;
  journal.salt = options_.salt;
  journal.frame_data_bytes_min = options_.frame_data_bytes_min;
  options_.write_bytes_per_day_max.resize(volumes.size(), 0);
  for (Volume& volume : volumes) {
    paths_.push_back(
        std::make_unique<PathState>(*device_, std::move(volume), journal, options_.ops_max));
    paths_.back()->write_bytes_per_day_max = options_.write_bytes_per_day_max[paths_.size() - 1];
  }
}

void Store::adopt_extents() {
  for (auto& path : paths_) {
    next_extent_ = std::max(next_extent_, path->volume.next_extent);
    for (auto& [id, shard] : path->volume.table.shards()) {
      auto& extent = extents_[id];
      if (!extent) {
        extent = std::make_unique<Extent>();
        extent->info = shard.info;
        extent->shards.assign(paths_.size(), nullptr);
      }
      extent->shards[path->volume.path.value()] = &shard;
      path->durable_extents += 1;
      path->durable_blocks += shard.blocks();
    }
  }
  for (auto& path : paths_) path->volume.next_extent = next_extent_;
}

/// Runs the journals until nothing is left to do, also where one of them breaks: the others have
/// operations under way.
Result<void> Store::settle() {
  const SteadyClock clock;
  const TimePoint end = clock.now() + kSettleMax;
  for (;;) {
    HO_CHECK(poll({}) == 0);
    const bool idle = std::all_of(paths_.begin(), paths_.end(),
                                  [](const auto& path) { return path->journal.idle(); });
    if (idle) break;
    if (clock.now() > end) return Error(Errc::kDeadline, "the flash device does not answer");
    device_->wait(kSettleTurn);
  }
  for (const auto& path : paths_) {
    if (!path->journal.broken()) continue;
    return Error(Errc::kIo,
                 path->volume.name + ": its log cannot be written: " + path->journal.broken_why());
  }
  return {};
}

/// Operations that the device has.
std::uint64_t Store::under_way() const {
  std::uint64_t count = device_open_;
  for (const auto& path : paths_) count += path->journal.open_ops();
  return count;
}

/// The logs' and the bounce memory is the device's until each operation on it has ended.
Store::~Store() {
  std::uint64_t left = under_way();
  for (int turn = 0; left > 0 && turn < kEndTurns;) {
    std::array<Completion, 16> done;
    const std::size_t count = device_->poll(done);
    HO_CHECK(count <= left);
    left -= count;
    if (count > 0) continue;
    device_->wait(kSettleTurn);
    ++turn;
  }
  if (left == 0) return;
  // What never came back may still come. A path's journal owns the memory of its frames.
  keep_for_good(std::move(bounce_memory_));
  keep_for_good(std::move(paths_));
}

Result<void> Store::close() {
  HO_CHECK(free_ops_.size() == ops_.size());
  for (auto& path : paths_) path->journal.request_frame();
  return settle();
}

void Store::seal() {
  for (auto& path : paths_) {
    if (path->journal.open_ended() && !path->journal.broken()) path->journal.request_frame();
  }
}

void Store::tend_logs(TimePoint now) {
  for (auto& path : paths_) {
    Journal& journal = path->journal;
    const std::uint64_t unsaved = path->volume.unsaved_wear_bytes;
    if (unsaved == 0 || unsaved < path->unsaved_wear_seen) {
      path->wear_saved = now;
    } else if (now - path->wear_saved >= kSaveWearAfter && !journal.broken()) {
      journal.request_frame();
    }
    path->unsaved_wear_seen = unsaved;
    if (path->write_frames_seen != journal.write_frames()) {
      path->write_frames_seen = journal.write_frames();
      path->write_frames_since = now;
    } else if (journal.open_ended() && !journal.broken() &&
               now - path->write_frames_since >= kSealAfter) {
      journal.request_frame();
    }
  }
}

bool Store::sealed() const {
  return std::none_of(paths_.begin(), paths_.end(), [](const auto& path) {
    return path->journal.open_ended() && !path->journal.broken();
  });
}

Result<void> Store::check_create(const ExtentSpec& spec, const Striping& striping) {
  if (spec.length_bytes == 0) return Error(Errc::kInvalidArgument, "an empty extent");
  if (extents_.size() >= options_.extents_max) {
    return Error(Errc::kExhausted, "there are " + std::to_string(extents_.size()) +
                                       " flash extents; more would take too much memory");
  }
  if (creating_ >= options_.ops_max) return Error(Errc::kBusy, "too many extents being made");
  for (const auto& path : paths_) {
    const Volume& volume = path->volume;
    const std::uint64_t blocks = striping.shard_blocks(volume.path, spec.length_bytes);
    if (blocks > volume.space.free_blocks()) {
      return Error(Errc::kExhausted,
                   volume.name + ": full: " + format_bytes(blocks * kBlockBytes) + " wanted, " +
                       format_bytes(std::uint64_t{volume.space.free_blocks()} * kBlockBytes) +
                       " free");
    }
    if (spec.policy == Policy::kScratch || blocks == 0) continue;
    if (path->journal.broken()) {
      return Error(Errc::kIo,
                   volume.name + ": takes no durable extent: " + path->journal.broken_why());
    }
    const std::uint64_t snapshot =
        Table::snapshot_bytes(path->durable_extents + 1, path->durable_blocks + blocks);
    if (snapshot > volume.geometry.snapshot_bytes_max()) {
      return Error(Errc::kExhausted,
                   volume.name + ": its log has no room for another durable extent");
    }
  }
  return {};
}

/// Takes places for a shard. @return the bytes of the records that describe it; 0: scratch.
std::uint64_t Store::make_shard(PathState& path, const ExtentInfo& info, std::uint64_t blocks) {
  Volume& volume = path.volume;
  Shard shard;
  shard.info = info;
  shard.sums.assign(blocks, 0);
  shard.physical.reserve(blocks);
  while (shard.physical.size() < blocks) {
    const auto run = volume.space.take(static_cast<std::uint32_t>(blocks - shard.physical.size()));
    HO_CHECK(run.has_value());
    for (std::uint32_t i = 0; i < run->count; ++i) shard.physical.push_back(run->first + i);
  }
  std::uint64_t record_bytes = 0;
  if (info.policy == Policy::kDurable) {
    record_bytes = new_shard_bytes(shard);
    path.durable_extents += 1;
    path.durable_blocks += blocks;
  }
  volume.table.shards().emplace(info.id, std::move(shard));
  return record_bytes;
}

Result<ExtentId> Store::create(const ExtentSpec& spec) {
  const ExtentInfo info{ExtentId(next_extent_), spec.owner, spec.length_bytes, spec.policy};
  const Striping striping(info.id, static_cast<std::uint16_t>(paths_.size()));
  if (auto allowed = check_create(spec, striping); !allowed) return allowed.error();
  auto extent = std::make_unique<Extent>();
  extent->info = info;
  bool describable = true;
  Need need;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    PathState& path = *paths_[i];
    const std::uint64_t blocks = striping.shard_blocks(path.volume.path, spec.length_bytes);
    if (blocks > 0) {
      const std::uint64_t record_bytes = make_shard(path, info, blocks);
      if (record_bytes > 0) need.frames[i] = frame_bytes(record_bytes);
      describable = describable && need.frames[i] <= path.volume.geometry.frame_bytes_max();
    }
    extent->shards.push_back(path.volume.table.find(info.id));
  }
  if (!describable) {
    drop_shards(info);
    return Error(Errc::kExhausted, "the free space is too scattered for one durable extent of " +
                                       format_bytes(spec.length_bytes));
  }
  if (auto budget = check_budget(need); !budget) {
    drop_shards(info);
    return budget.error();
  }
  promise(need);
  ++next_extent_;
  for (auto& path : paths_) path->volume.next_extent = next_extent_;
  if (spec.policy == Policy::kDurable) {
    extent->state = Extent::State::kCreating;
    ++creating_;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      Shard* const shard = extent->shards[i];
      if (shard == nullptr) continue;
      ++extent->commits_open;
      Commit commit;
      commit.kind = Commit::Kind::kCreate;
      commit.token = info.id.value();
      commit.promised_bytes = need.frames[i];
      commit.shard = shard;
      paths_[i]->journal.append(commit);
    }
  }
  extents_.emplace(info.id, std::move(extent));
  return info.id;
}

/// Gives back what was taken for an extent of which the log knows nothing.
void Store::drop_shards(const ExtentInfo& info) {
  for (auto& path : paths_) {
    Volume& volume = path->volume;
    const Shard* shard = volume.table.find(info.id);
    if (shard == nullptr) continue;
    HO_CHECK(!shard->logged);
    for (const std::uint32_t block : shard->physical) volume.space.give({block, 1});
    if (info.policy == Policy::kDurable) {
      path->durable_extents -= 1;
      path->durable_blocks -= shard->blocks();
    }
    volume.table.shards().erase(info.id);
  }
}

}  // namespace ho::flash
