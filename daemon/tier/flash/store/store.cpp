#include "daemon/tier/flash/store/store.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho::flash {

namespace {

// After so many bytes or operations poll() hands out what it has. Devices answer in bursts, and
// stand idle until the caller's next operations come: 4 KiB reads, 32 in flight, reach 0.95 of fio
// with 4 a time, 0.88 with 8, 0.74 with all there are (2026, virtio disk, two busy cores).
constexpr std::uint64_t kCheckedBytesMax = 512 * kKiB;
constexpr std::size_t kDoneMax = 4;

}  // namespace

void Store::SlotQueue::push(Slot slot) {
  HO_CHECK(count_ < ring_.size());
  ring_[(first_ + count_) % ring_.size()] = slot;
  ++count_;
}

void Store::SlotQueue::pop() {
  HO_CHECK(count_ > 0);
  first_ = (first_ + 1) % ring_.size();
  --count_;
}

Result<Store::Slot> Store::admit(OpId id, ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end() || found->second->state == Extent::State::kFreeing ||
      found->second->state == Extent::State::kDoomed || found->second->ending) {
    return Error(Errc::kNotFound, "no such extent");
  }
  if (found->second->state == Extent::State::kLost) {
    return Error(Errc::kIo, "an I/O error struck while the extent was made or freed");
  }
  // Completions that nobody has taken yet count as well.
  if (free_ops_.size() <= done_.size()) return Error(Errc::kBusy, "queue full");
  const Slot slot = free_ops_.back();
  Op& op = ops_[slot];
  HO_CHECK(op.state == Op::State::kNone);
  op = Op();
  op.id = id;
  op.extent = found->second.get();
  return slot;
}

Result<void> Store::check_range(const Extent& extent, std::uint64_t offset,
                                std::uint64_t length) const {
  if (length == 0) return Error(Errc::kInvalidArgument, "no bytes");
  if (offset > extent.info.length_bytes || length > extent.info.length_bytes - offset) {
    return Error(Errc::kOutOfRange, "beyond the extent's end");
  }
  return {};
}

/// What the rest of a write, that has not been issued, takes of each path: whole blocks. At worst
/// each durable one has a frame of its own.
Store::Need Store::need_left(const Op& op) const {
  Need need;
  const Striping striping(op.extent->info.id, static_cast<std::uint16_t>(paths_.size()));
  const std::uint64_t end = op.offset + op.length;
  for (std::uint64_t at = op.offset + op.issued; at < end;) {
    const std::uint64_t stop = std::min(end, (at / kStripeBytes + 1) * kStripeBytes);
    const std::uint64_t blocks = (stop - 1) / kBlockBytes - at / kBlockBytes + 1;
    need.data[striping.place(at / kBlockBytes).path.value()] += blocks * kBlockBytes;
    at = stop;
  }
  if (op.extent->info.policy == Policy::kDurable) need.frames = need.data;
  return need;
}

/// What new logs cost that so many bytes of frames (in one copy) make necessary, at most.
std::uint64_t Store::new_logs_bytes(const PathState& path, std::uint64_t frame_bytes) {
  const Geometry& geometry = path.volume.geometry;
  const std::uint64_t longest = geometry.frame_bytes_max();
  // A frame that does not fit any more leaves less than the longest open.
  const std::uint64_t usable = geometry.area_bytes - longest + kBlockBytes;
  // check_create() leaves at least a block of each log. A larger table, which only a path from
  // elsewhere can have, is not written: its path breaks.
  const std::uint64_t table =
      std::min(Table::snapshot_frames_bytes(path.durable_extents, path.durable_blocks, longest),
               usable - kBlockBytes);
  const bool begins = path.journal.begins_log();
  const std::uint64_t head = begins ? usable : std::min(usable, path.volume.head_bytes);
  const std::uint64_t room = usable - head;
  std::uint64_t logs = begins ? 1 : 0;
  if (frame_bytes > room) {
    logs = std::max(logs, (frame_bytes - room - 1) / (usable - table) + 1);
  }
  return logs * kCopies * (table + kBlockBytes);
}

/// Whether all this can be written today on top of what is promised, with the logs for it. @return
/// kBusy: what others are promised and a log that is begun are in its way, and end.
Result<void> Store::check_budget(const Need& need) const {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const PathState& path = *paths_[i];
    const std::uint64_t most = path.write_bytes_per_day_max;
    if (most == 0 || need.data[i] + need.frames[i] == 0) continue;
    const Wear& wear = path.volume.wear;
    const std::uint64_t written = wear.day < options_.day ? 0 : wear.day_bytes;
    const auto logged = [&path](std::uint64_t frame_bytes) {
      return kCopies * frame_bytes + new_logs_bytes(path, frame_bytes);
    };
    const std::uint64_t alone = written + need.data[i] + logged(need.frames[i]);
    const std::uint64_t beside_others = written + path.promised_bytes + need.data[i] +
                                        logged(path.promised_frame_bytes + need.frames[i]);
    if (beside_others <= most) continue;
    const std::string budget =
        path.volume.name + ": today's write budget of " + format_bytes(most) + " is ";
    if (path.journal.begins_log() || alone <= most) {
      return Error(Errc::kBusy, budget + "promised to what is under way");
    }
    return Error(Errc::kExhausted, budget + "used up (" + format_bytes(written) +
                                       " written, or less left than this may need); it begins "
                                       "anew at midnight UTC");
  }
  return {};
}

/// What a change may still write is part of the budget; what went to the device is wear instead.
void Store::promise(const Need& need) {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    paths_[i]->promised_bytes += need.data[i];
    paths_[i]->promised_frame_bytes += need.frames[i];
  }
}

void Store::give_back(const Need& need) {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    PathState& path = *paths_[i];
    HO_CHECK(path.promised_bytes >= need.data[i] && path.promised_frame_bytes >= need.frames[i]);
    path.promised_bytes -= need.data[i];
    path.promised_frame_bytes -= need.frames[i];
  }
}

void Store::give_back_data(Chunk& chunk) {
  if (!chunk.promised) return;
  PathState& path = *paths_[chunk.path];
  HO_CHECK(path.promised_bytes >= chunk.blocks * kBlockBytes);
  path.promised_bytes -= chunk.blocks * kBlockBytes;
  chunk.promised = false;
}

Result<void> Store::submit(const ReadOp& read) {
  auto slot = admit(read.op, read.extent);
  if (!slot) return slot.error();
  Op& op = ops_[*slot];
  auto range = check_range(*op.extent, read.offset_bytes, read.into.size());
  if (!range) return range;
  op.kind = Op::Kind::kRead;
  op.offset = read.offset_bytes;
  op.length = read.into.size();
  op.memory = read.into.data();
  enqueue(*slot);
  return {};
}

Result<void> Store::submit(const WriteOp& write) {
  auto slot = admit(write.op, write.extent);
  if (!slot) return slot.error();
  Op& op = ops_[*slot];
  auto range = check_range(*op.extent, write.offset_bytes, write.from.size());
  if (!range) return range;
  op.kind = Op::Kind::kWrite;
  op.offset = write.offset_bytes;
  op.length = write.from.size();
  const Need need = need_left(op);
  if (auto budget = check_budget(need); !budget) return budget;
  // Only read from; one field serves both directions.
  op.memory = const_cast<std::byte*>(write.from.data());
  promise(need);
  enqueue(*slot);
  return {};
}

Result<void> Store::submit(const FreeOp& free) {
  auto slot = admit(free.op, free.extent);
  if (!slot) return slot.error();
  Op& op = ops_[*slot];
  op.kind = Op::Kind::kFree;
  op.length = op.extent->info.length_bytes;
  enqueue(*slot);
  return {};
}

bool Store::conflicts(const Op& a, const Op& b) const {
  if (a.kind == Op::Kind::kRead && b.kind == Op::Kind::kRead) return false;
  const auto first = [](const Op& op) { return op.offset / kBlockBytes; };
  const auto last = [](const Op& op) { return (op.offset + op.length - 1) / kBlockBytes; };
  return first(a) <= last(b) && first(b) <= last(a);
}

void Store::enqueue(Slot slot) {
  free_ops_.pop_back();
  Op& op = ops_[slot];
  op.state = Op::State::kWaiting;
  op.extent->ops.push_back(slot);
  if (op.kind == Op::Kind::kFree) op.extent->ending = true;
  wake(*op.extent);
}

/// Starts what waits on an extent for nothing that came before it.
void Store::wake(Extent& extent) {
  if (extent.state == Extent::State::kCreating || extent.state == Extent::State::kLost ||
      extent.state == Extent::State::kDoomed) {
    return;
  }
  for (std::size_t i = 0; i < extent.ops.size(); ++i) {
    Op& op = ops_[extent.ops[i]];
    if (op.state != Op::State::kWaiting) continue;
    bool free_to_go = true;
    for (std::size_t j = 0; j < i && free_to_go; ++j) {
      free_to_go = !conflicts(ops_[extent.ops[j]], op);
    }
    if (!free_to_go) continue;
    op.state = Op::State::kRunning;
    op.issuing = true;
    issuing_.push(extent.ops[i]);
  }
}

void Store::fail_op(Op& op, Errc code, const Fault& fault) {
  if (op.code != Errc::kOk) return;
  op.code = code;
  op.fault = fault;
}

void Store::finish_op(Slot slot) {
  Op& op = ops_[slot];
  HO_CHECK(op.open == 0 && !op.issuing);
  Extent& extent = *op.extent;
  if (op.kind == Op::Kind::kWrite) give_back(need_left(op));
  StoreCompletion out;
  const bool moved = op.code == Errc::kOk && op.kind != Op::Kind::kFree;
  out.done = {op.id, op.code, moved ? op.length : 0};
  out.fault = op.fault;
  if (op.code != Errc::kOk) out.fault.extent = extent.info.id;
  HO_CHECK(done_.size() < ops_.size());
  done_.push_back(out);
  extent.ops.erase(std::find(extent.ops.begin(), extent.ops.end(), slot));
  const bool freed = op.kind == Op::Kind::kFree;
  op.state = Op::State::kNone;
  if (freed && op.code != Errc::kOk) extent.state = Extent::State::kLost;
  if (freed && op.code == Errc::kOk) {
    HO_CHECK(extent.ops.empty());
    extents_.erase(extent.info.id);
  } else if (extent.state == Extent::State::kDoomed && extent.ops.empty()) {
    release(extent);
  } else {
    wake(extent);
  }
  free_ops_.push_back(slot);
}

/// The end of a scratch extent.
void Store::release(Extent& extent) {
  HO_CHECK(extent.info.policy == Policy::kScratch && extent.ops.empty());
  drop_shards(extent.info);
  extents_.erase(extent.info.id);
}

void Store::end_session(std::uint64_t instance, std::uint64_t session) {
  std::vector<Extent*> doomed;
  for (auto& [id, extent] : extents_) {
    const Owner& owner = extent->info.owner;
    if (owner.instance == instance && owner.session == session &&
        extent->info.policy == Policy::kScratch && extent->state == Extent::State::kLive &&
        !extent->ending) {
      doomed.push_back(extent.get());
    }
  }
  for (Extent* extent : doomed) {
    extent->state = Extent::State::kDoomed;
    if (extent->ops.empty()) {
      release(*extent);
      continue;
    }
    // finish_op() changes the list, and with the last one releases the extent.
    const std::vector<Slot> ops = extent->ops;
    for (const Slot slot : ops) {
      Op& op = ops_[slot];
      if (op.state == Op::State::kRunning) continue;
      op.code = Errc::kCanceled;
      finish_op(slot);
    }
  }
}

void Store::start_free(Slot slot) {
  Op& op = ops_[slot];
  Extent& extent = *op.extent;
  extent.state = Extent::State::kFreeing;
  if (extent.info.policy == Policy::kScratch) {
    drop_shards(extent.info);
    finish_op(slot);
    return;
  }
  for (auto& path : paths_) {
    Shard* const shard = extent.shards[path->volume.path.value()];
    if (shard == nullptr) continue;
    ++op.open;
    path->durable_extents -= 1;
    path->durable_blocks -= shard->blocks();
    path->freeing += 1;
    Commit commit;
    commit.kind = Commit::Kind::kFree;
    commit.token = slot;
    commit.shard = shard;
    path->journal.append(commit);
  }
}

void Store::on_commit(PathState& path, const Journal::Done& done) {
  const Commit& commit = done.commit;
  switch (commit.kind) {
    case Commit::Kind::kWrite: finish_chunk(static_cast<Slot>(commit.token), done.code); break;
    case Commit::Kind::kCreate: {
      Extent& extent = *extents_.at(ExtentId(commit.token));
      HO_CHECK(extent.commits_open > 0 && path.promised_frame_bytes >= commit.promised_bytes);
      path.promised_frame_bytes -= commit.promised_bytes;
      if (done.code != Errc::kOk) extent.state = Extent::State::kLost;
      if (--extent.commits_open > 0) break;
      HO_CHECK(creating_ > 0);
      --creating_;
      if (extent.state == Extent::State::kCreating) extent.state = Extent::State::kLive;
      if (extent.state == Extent::State::kLost) {
        const std::vector<Slot> ops = extent.ops;
        for (const Slot slot : ops) {
          ops_[slot].code = Errc::kIo;
          finish_op(slot);
        }
        break;
      }
      wake(extent);
      break;
    }
    case Commit::Kind::kFree: {
      const auto slot = static_cast<Slot>(commit.token);
      Op& op = ops_[slot];
      if (done.code != Errc::kOk) op.code = done.code;
      HO_CHECK(op.open > 0 && path.freeing > 0);
      --path.freeing;
      if (--op.open == 0) finish_op(slot);
      break;
    }
  }
}

bool Store::handle_commits() {
  bool any = false;
  for (auto& path : paths_) {
    // By index: what follows from one may append to a broken journal.
    for (std::size_t i = 0; i < path->journal.done().size(); ++i) {
      const Journal::Done done = path->journal.done()[i];
      on_commit(*path, done);
      any = true;
    }
    path->journal.clear_done();
  }
  return any;
}

std::size_t Store::poll(std::span<StoreCompletion> out) {
  // First what can start, so that the device works while checksums are looked at here.
  issue();
  std::array<Completion, 4> completions;
  checked_bytes_ = 0;
  while (checked_bytes_ < kCheckedBytesMax && done_.size() < kDoneMax) {
    const std::size_t count = device_->poll(completions);
    for (std::size_t i = 0; i < count; ++i) on_device(completions[i]);
    if (count < completions.size()) break;
  }
  handle_commits();
  // Broken journals answer at once, and one may break in its step.
  do {
    issue();
    while (handle_commits()) issue();
    for (auto& path : paths_) path->journal.step(options_.day);
  } while (handle_commits());
  const std::size_t moved = std::min(out.size(), done_.size());
  std::copy_n(done_.begin(), moved, out.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(moved));
  return moved;
}

std::vector<PathStatus> Store::paths() const {
  std::vector<PathStatus> out;
  for (const auto& path : paths_) {
    const Volume& volume = path->volume;
    PathStatus status;
    status.name = volume.name;
    status.capacity_bytes = std::uint64_t{volume.space.blocks()} * kBlockBytes;
    status.free_bytes = std::uint64_t{volume.space.free_blocks()} * kBlockBytes;
    status.wear = volume.wear;
    if (status.wear.day < options_.day) {
      status.wear.day = options_.day;
      status.wear.day_bytes = 0;
    }
    status.write_bytes_per_day_max = path->write_bytes_per_day_max;
    status.broken = path->journal.broken();
    status.broken_why = path->journal.broken_why();
    out.push_back(std::move(status));
  }
  return out;
}

std::vector<ExtentInfo> Store::extents(ExtentId after, std::size_t count_max) const {
  std::vector<ExtentInfo> out;
  for (auto at = extents_.upper_bound(after); at != extents_.end() && out.size() < count_max;
       ++at) {
    if (at->second->state != Extent::State::kCreating) out.push_back(at->second->info);
  }
  return out;
}

Store::Making Store::making(ExtentId extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end() || found->second->state == Extent::State::kLost) {
    return Making::kFailed;
  }
  return found->second->state == Extent::State::kCreating ? Making::kUnderWay : Making::kMade;
}

std::optional<ExtentInfo> Store::find(ExtentId extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return std::nullopt;
  return found->second->info;
}

std::string Store::describe(const Fault& fault) const {
  if (fault.path_full) {
    const Volume& volume = paths_[fault.path.value()]->volume;
    return "no free block for a durable overwrite on " + volume.name + ": " +
           format_bytes(std::uint64_t{volume.space.free_blocks()} * kBlockBytes) + " of " +
           format_bytes(std::uint64_t{volume.space.blocks()} * kBlockBytes) + " free (extent " +
           std::to_string(fault.extent.value()) + ", block " + std::to_string(fault.block) + ")";
  }
  return "path " + paths_[fault.path.value()]->volume.name + ": extent " +
         std::to_string(fault.extent.value()) + ", block " + std::to_string(fault.block) +
         " (byte " + std::to_string(fault.path_offset) + " of the path)";
}

void Store::check_space() const {
  for (const auto& path : paths_) {
    const Volume& volume = path->volume;
    std::uint64_t owned = 0;
    std::vector<bool> seen(volume.space.blocks(), false);
    const auto own = [&](std::uint32_t block) {
      HO_CHECK(!volume.space.is_free(block) && !seen[block]);
      seen[block] = true;
      ++owned;
    };
    for (const auto& [id, shard] : volume.table.shards()) {
      for (const std::uint32_t block : shard.physical) own(block);
    }
    if (free_ops_.size() == ops_.size() && !path->journal.broken()) {
      HO_CHECK(owned + volume.space.free_blocks() == volume.space.blocks());
    }
  }
}

}  // namespace ho::flash
