#include "daemon/tier/flash/store/extent_store.hpp"

#include <array>
#include <span>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "common/text/utf8.hpp"
#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/log/access_hash.hpp"
#include "daemon/tier/flash/log/left_extents.hpp"
#include "daemon/tier/flash/log/path_set.hpp"

namespace ho::flash {

namespace {

constexpr auto kSettleTurn = std::chrono::milliseconds(100);
// A snapshot of the largest path takes seconds; after minutes without an answer the device counts
// as dead.
constexpr auto kSettleMax = std::chrono::minutes(5);
// Turns of kSettleTurn that the destructor waits for a device.
constexpr int kEndTurns = 100;

/// Number of frames that each path's log may have open: logs use at most a quarter of the device's
/// depth, unless they need more.
std::uint32_t frames_open(std::uint32_t depth_ops, std::uint32_t path_count) {
  std::uint32_t frames = kFramesOpenMax;
  while (frames > 1 && 4 * path_count * Journal::device_ops(frames) > depth_ops) --frames;
  return frames;
}

/// Those that do not fit are lost; the store is as good without them.
void take(const std::string& left, std::vector<Volume>& volumes, Findings& findings) {
  const auto taken = take_left(std::as_bytes(std::span(left)), volumes);
  if (!taken) {
    return log(LogLevel::kWarning, "flash: scratch extents of the last process are lost",
               {{"why", taken.error().context()}});
  }
  findings.push_back("took " + std::to_string(*taken) +
                     " scratch extents of the last process over");
}

}  // namespace

Result<std::unique_ptr<ExtentStore>> ExtentStore::open(std::unique_ptr<Device> device,
                                                       Options options, Findings& findings) {
  auto volumes = open_path_set(*device, options.new_set, findings);
  if (!volumes) return volumes.error();
  if (!options.left.empty()) take(std::exchange(options.left, {}), *volumes, findings);
  HO_CHECK(device->caps().depth_ops >= volumes->size() * Journal::device_ops(1) + 2);
  std::unique_ptr<ExtentStore> store(
      new ExtentStore(std::move(device), std::move(options), std::move(*volumes)));
  store->adopt_extents();
  // Each run starts a new log: it no longer has what recovery dropped, and both copies are valid.
  for (auto& path : store->paths_) path->journal.request_snapshot();
  if (auto settled = store->settle(); !settled) return settled.error();
  return store;
}

ExtentStore::ExtentStore(std::unique_ptr<Device> device, Options options,
                         std::vector<Volume> volumes)
    : device_(std::move(device)), options_(std::move(options)), ops_(options_.ops_max) {
  const std::uint32_t depth = device_->caps().depth_ops;
  const auto path_count = static_cast<std::uint32_t>(volumes.size());
  ChunkEngine::Options engine;
  engine.transfers_max = options_.ops_max;
  // Chunks that wait for the log are not on the device, so there are more chunks than the device's
  // depth.
  engine.chunks_max = std::max<std::size_t>(std::size_t{4} * depth, options_.ops_max);
  engine.bounce_buffers = options_.bounce_buffers;
  Journal::Options journal;
  journal.frames_open = frames_open(depth, path_count);
  // Beside chunks: extents that are made, freed, and noted as used.
  journal.commits_max = engine.chunks_max + 3 * options_.ops_max;
  journal.salt = options_.salt;
  journal.frame_data_bytes_min = options_.frame_data_bytes_min;
  engine.device_ops_max = depth - path_count * Journal::device_ops(journal.frames_open);
  options_.write_bytes_per_day_max.resize(path_count, 0);
  for (std::size_t i = 0; i < path_count; ++i) {
    paths_.push_back(std::make_unique<StorePath>(*device_, std::move(volumes[i]), journal,
                                                 options_.write_bytes_per_day_max[i]));
  }
  set_time(options_.time);
  engine_ = std::make_unique<ChunkEngine>(*device_, paths_, engine);
  for (std::size_t i = options_.ops_max; i-- > 0;) free_ops_.push_back(static_cast<Slot>(i));
  frees_.reserve(options_.ops_max);
  done_.reserve(options_.ops_max);
}

void ExtentStore::adopt_extents() {
  for (auto& path : paths_) {
    next_extent_ = std::max(next_extent_, path->volume.next_extent);
    for (auto& [id, shard] : path->volume.table.shards()) {
      auto& entry = extents_[id];
      if (!entry) {
        entry = std::make_unique<Entry>();
        entry->extent.info = shard.info;
        entry->extent.shards.assign(paths_.size(), nullptr);
      }
      entry->extent.shards[path->volume.path.value()] = &shard;
    }
  }
  for (auto& path : paths_) path->volume.next_extent = next_extent_;
  for (const auto& [id, entry] : extents_) {
    owned_bytes_[entry->extent.info.about.owner] += entry->extent.info.length_bytes;
  }
}

void ExtentStore::add(std::unique_ptr<Entry> entry) {
  const ExtentInfo& info = entry->extent.info;
  owned_bytes_[info.about.owner] += info.length_bytes;
  extents_.emplace(info.id, std::move(entry));
}

void ExtentStore::remove(ExtentId extent) {
  const auto found = extents_.find(extent);
  HO_CHECK(found != extents_.end());
  const ExtentInfo& info = found->second->extent.info;
  const auto owned = owned_bytes_.find(info.about.owner);
  HO_CHECK(owned != owned_bytes_.end() && owned->second >= info.length_bytes);
  owned->second -= info.length_bytes;
  if (owned->second == 0) owned_bytes_.erase(owned);
  extents_.erase(found);
}

/// Compares by subtraction: sizes from outside may be large.
Result<void> ExtentStore::check_quota(const ExtentSpec& spec, const std::string& owner) const {
  const auto owned = owned_bytes_.find(owner);
  const std::uint64_t held = owned == owned_bytes_.end() ? 0 : owned->second;
  const std::uint64_t left = spec.owner_bytes_max - std::min(spec.owner_bytes_max, held);
  if (spec.length_bytes <= left) return {};
  return Error(Errc::kExhausted, "needs " + format_bytes(spec.length_bytes) +
                                     " of flash, but the quota of " + owner + " is " +
                                     format_bytes(spec.owner_bytes_max) + ", of which it has " +
                                     format_bytes(held));
}

/// Runs the journals until nothing is left to do, even if one of them breaks: the others have
/// operations in flight.
Result<void> ExtentStore::settle() {
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

/// The number of operations on the device.
std::uint64_t ExtentStore::under_way() const {
  std::uint64_t count = engine_->open_ops();
  for (const auto& path : paths_) count += path->journal.open_ops();
  return count;
}

/// The device uses the memory of logs and bounce buffers until each operation has ended.
ExtentStore::~ExtentStore() {
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
  // Operations that never ended may still end. A path's journal owns the memory of its frames.
  keep_for_good(std::move(engine_));
  keep_for_good(std::move(paths_));
}

Result<void> ExtentStore::close() {
  HO_CHECK(free_ops_.size() == ops_.size());
  for (auto& path : paths_) path->journal.request_frame();
  return settle();
}

std::string ExtentStore::leave(const std::set<ExtentId>& extents) {
  HO_CHECK(free_ops_.size() == ops_.size());
  std::vector<Volume*> volumes;
  for (auto& path : paths_) volumes.push_back(&path->volume);
  return leave_extents(volumes, extents);
}

void ExtentStore::claim(ExtentId extent, std::uint64_t session) {
  const auto found = extents_.find(extent);
  HO_CHECK(found != extents_.end());
  ExtentInfo& info = found->second->extent.info;
  HO_CHECK(info.policy == Policy::kScratch && info.session == 0);
  info.session = session;
}

void ExtentStore::set_time(std::chrono::sys_seconds now) {
  time_ = now;
  const auto days = std::chrono::floor<std::chrono::days>(now).time_since_epoch().count();
  for (auto& path : paths_)
    path->set_day(static_cast<std::uint32_t>(std::max<std::int64_t>(days, 0)));
}

void ExtentStore::seal() {
  for (auto& path : paths_) {
    if (!path->sealed()) path->journal.request_frame();
  }
}

void ExtentStore::tend_logs(TimePoint now) {
  for (auto& path : paths_) path->tend(now);
}

bool ExtentStore::sealed() const {
  return std::all_of(paths_.begin(), paths_.end(), [](const auto& path) { return path->sealed(); });
}

Result<void> ExtentStore::check_create(const ExtentSpec& spec, const Striping& striping) const {
  if (spec.length_bytes == 0) return Error(Errc::kInvalidArgument, "the extent is empty");
  if (extents_.size() >= options_.extents_max) {
    return Error(Errc::kExhausted,
                 "there are " + std::to_string(extents_.size()) + " flash extents, the limit");
  }
  if (creating_ >= options_.ops_max) return Error(Errc::kBusy, "too many extents are being made");
  for (const auto& path : paths_) {
    const std::uint64_t blocks = striping.shard_blocks(path->volume.path, spec.length_bytes);
    if (auto room = path->check_room(spec.policy, blocks); !room) return room;
  }
  return {};
}

Result<ExtentId> ExtentStore::create(const ExtentSpec& spec) {
  ExtentInfo info{ExtentId(next_extent_), spec.length_bytes, spec.policy, spec.session, {}};
  info.about.access = hash_access(info.id, spec.access);
  info.about.owner = utf8_prefix(spec.owner, kTextBytesMax);
  info.about.label = utf8_prefix(spec.label, kTextBytesMax);
  info.about.created = info.about.used = time_;
  const Striping striping(info.id, static_cast<std::uint16_t>(paths_.size()));
  if (auto allowed = check_create(spec, striping); !allowed) return allowed.error();
  if (auto allowed = check_quota(spec, info.about.owner); !allowed) return allowed.error();
  auto entry = std::make_unique<Entry>();
  entry->extent.info = info;
  for (auto& path : paths_) {
    const std::uint64_t blocks = striping.shard_blocks(path->volume.path, spec.length_bytes);
    entry->extent.shards.push_back(blocks > 0 ? &path->make_shard(info, blocks) : nullptr);
  }
  if (spec.policy == Policy::kDurable) {
    if (auto logged = log_creation(*entry); !logged) {
      drop_shards(info.id);
      return logged.error();
    }
  }
  ++next_extent_;
  for (auto& path : paths_) path->volume.next_extent = next_extent_;
  add(std::move(entry));
  return info.id;
}

/// Logs the shards of a durable extent. @return kExhausted, kBusy: nothing began.
Result<void> ExtentStore::log_creation(Entry& entry) {
  const Extent& extent = entry.extent;
  std::array<WriteNeed, kPathsMax> needs;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (extent.shards[i] == nullptr) continue;
    needs[i].frame_bytes = frame_bytes(new_shard_bytes(*extent.shards[i]));
    if (needs[i].frame_bytes <= paths_[i]->volume.geometry.frame_bytes_max()) continue;
    return Error(Errc::kExhausted, "the free space is too fragmented for one durable extent of " +
                                       format_bytes(extent.info.length_bytes));
  }
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (auto budget = paths_[i]->check_budget(needs[i]); !budget) return budget;
  }
  entry.state = Entry::State::kCreating;
  ++creating_;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (extent.shards[i] == nullptr) continue;
    ++entry.commits_open;
    paths_[i]->budget.promise(needs[i]);
    Commit commit;
    commit.kind = Commit::Kind::kCreate;
    commit.token = extent.info.id.value();
    commit.promised_bytes = needs[i].frame_bytes;
    commit.shard = extent.shards[i];
    paths_[i]->journal.append(commit);
  }
  HO_CHECK(entry.commits_open > 0);
  return {};
}

/// Returns the blocks of an extent that is not in the logs.
void ExtentStore::drop_shards(ExtentId extent) {
  for (auto& path : paths_) path->drop_shard(extent);
}

/// Ends a scratch extent: at once, or when its last running operation ends.
void ExtentStore::doom(Entry& entry) {
  HO_CHECK(entry.extent.info.policy == Policy::kScratch && entry.state == Entry::State::kLive);
  entry.state = Entry::State::kDoomed;
  // The last operation to end removes the extent.
  const bool used = !entry.ops.empty();
  if (used) return cancel_ops(entry, Errc::kCanceled);
  const ExtentId id = entry.extent.info.id;
  drop_shards(id);
  remove(id);
}

void ExtentStore::end_session(std::uint64_t session) {
  std::vector<Entry*> ending;
  for (auto& [id, entry] : extents_) {
    const ExtentInfo& info = entry->extent.info;
    if (info.policy == Policy::kScratch && info.session == session &&
        entry->state == Entry::State::kLive && !entry->ending) {
      ending.push_back(entry.get());
    }
  }
  for (Entry* const entry : ending) doom(*entry);
}

bool ExtentStore::opens(ExtentId extent, std::uint64_t access) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return false;
  const ExtentInfo& info = found->second->extent.info;
  return info.policy == Policy::kDurable &&
         same_access(info.about.access, hash_access(extent, access));
}

void ExtentStore::note_used(ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end() || noting_ >= options_.ops_max) return;
  Entry& entry = *found->second;
  ExtentInfo& info = entry.extent.info;
  const bool live = entry.state == Entry::State::kLive && !entry.ending;
  if (info.policy != Policy::kDurable || !live || entry.notes_open > 0) return;
  if (time_ <= info.about.used) return;
  info.about.used = time_;
  ++noting_;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (entry.extent.shards[i] == nullptr) continue;
    ++entry.notes_open;
    Commit commit;
    commit.kind = Commit::Kind::kUsed;
    commit.token = extent.value();
    commit.shard = entry.extent.shards[i];
    commit.used = time_;
    paths_[i]->journal.append(commit);
  }
}

std::vector<PathStatus> ExtentStore::paths() const {
  std::vector<PathStatus> out;
  for (const auto& path : paths_) out.push_back(path->status());
  return out;
}

std::vector<ExtentInfo> ExtentStore::extents(ExtentId after, std::size_t count_max) const {
  std::vector<ExtentInfo> out;
  for (auto at = extents_.upper_bound(after); at != extents_.end() && out.size() < count_max;
       ++at) {
    if (at->second->state != Entry::State::kCreating) out.push_back(at->second->extent.info);
  }
  return out;
}

ExtentStore::Making ExtentStore::making(ExtentId extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end() || found->second->state == Entry::State::kLost) {
    return Making::kFailed;
  }
  return found->second->state == Entry::State::kCreating ? Making::kUnderWay : Making::kMade;
}

std::optional<ExtentInfo> ExtentStore::find(ExtentId extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return std::nullopt;
  return found->second->extent.info;
}

std::string ExtentStore::describe(const Fault& fault) const {
  const Volume& volume = paths_[fault.path.value()]->volume;
  const std::string block =
      "extent " + std::to_string(fault.extent.value()) + ", block " + std::to_string(fault.block);
  if (fault.path_full) {
    return "no free block for a durable overwrite on " + volume.name + ": " +
           format_bytes(std::uint64_t{volume.space.free_blocks()} * kBlockBytes) + " of " +
           format_bytes(std::uint64_t{volume.space.blocks()} * kBlockBytes) + " free (" + block +
           ")";
  }
  return "path " + volume.name + ": " + block + " (byte " + std::to_string(fault.path_offset) +
         " of the path)";
}

void ExtentStore::check_space() const {
  const bool at_rest = free_ops_.size() == ops_.size();
  for (const auto& path : paths_) path->check_space(at_rest);
}

}  // namespace ho::flash
