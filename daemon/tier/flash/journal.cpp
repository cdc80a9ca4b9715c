#include "daemon/tier/flash/journal.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::flash {

namespace {

// Wear that a crash can make forgotten; a frame of its own every so many bytes costs nothing.
constexpr std::uint64_t kUnsavedWearMax = kGiB;

}  // namespace

Journal::Journal(Device& device, Volume& volume, Options options)
    : device_(device),
      volume_(volume),
      options_(options),
      frame_(volume.geometry.frame_bytes_max()),
      super_block_(kBlockBytes) {
  for (auto* list : {&ready_, &framed_}) list->reserve(options.commits_max);
  done_.reserve(options.commits_max);
}

void Journal::enter(State from, State to) {
  HO_CHECK(state_ == from);
  state_ = to;
}

void Journal::append(const Commit& commit) {
  HO_CHECK(commit.shard != nullptr);
  if (state_ == State::kBroken) {
    done_.push_back({commit, Errc::kIo});
  } else {
    ready_.push_back(commit);
  }
  HO_CHECK(ready_.size() + framed_.size() <= options_.commits_max);
}

void Journal::step(std::uint32_t day) {
  day_ = day;
  if (state_ != State::kIdle) return;
  if (volume_.unsaved_wear_bytes >= kUnsavedWearMax) frame_wanted_ = true;
  if (snapshot_wanted_) {
    start_snapshot();
  } else if (!ready_.empty() || frame_wanted_) {
    start_frame();
  }
}

void Journal::submit(DeviceOpKind kind, std::uint64_t offset_bytes, std::span<std::byte> memory) {
  const OpId op(kOpIdBase + volume_.path.value());
  // The store keeps kDeviceOps of the device's depth free for each journal.
  HO_CHECK(device_.submit({op, kind, volume_.path, offset_bytes, memory}).ok());
  ++open_ops_;
  if (kind == DeviceOpKind::kWrite) volume_.count_written(memory.size(), day_);
}

/// Encodes ready commits as long as they fit. @return how many.
std::size_t Journal::fill_frame(RecordWriter& out) {
  std::size_t count = 0;
  for (const Commit& commit : ready_) {
    bool fits = false;
    Record record;
    record.extent = commit.shard->info.id;
    switch (commit.kind) {
      case Commit::Kind::kCreate: fits = put_new_shard(*commit.shard, out); break;
      case Commit::Kind::kWrite:
        record.kind = Record::Kind::kWrite;
        record.block = commit.block;
        record.physical = commit.physical;
        record.sums = commit.sums;
        fits = out.put(record);
        break;
      case Commit::Kind::kFree:
        record.kind = Record::Kind::kFree;
        fits = out.put(record);
        break;
    }
    if (!fits) break;
    ++count;
  }
  return count;
}

void Journal::start_frame() {
  RecordWriter out(frame_.span().subspan(kFrameHeaderBytes));
  const std::size_t count = fill_frame(out);
  HO_CHECK(count > 0 || ready_.empty());
  if (volume_.head_bytes + frame_bytes(out.bytes()) > volume_.geometry.area_bytes) {
    start_snapshot();
    return;
  }
  enter(State::kIdle, State::kFrame);
  frame_wanted_ = false;
  open_ended_ =
      std::any_of(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count),
                  [](const Commit& commit) { return commit.kind == Commit::Kind::kWrite; });
  framed_.assign(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
  seal_and_write(out.bytes());
}

/// Completes the frame in memory and writes both copies where the log's head is.
void Journal::seal_and_write(std::size_t payload_bytes) {
  const Superblock& super = state_ == State::kSnapshot ? next_super_ : volume_.super;
  const std::uint64_t length = frame_bytes(payload_bytes);
  FrameHeader header;
  header.set = super.set;
  header.path_index = super.path_index;
  header.epoch = super.epoch;
  header.salt = super.salt;
  header.sequence = volume_.sequence;
  header.next_extent = volume_.next_extent;
  header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  header.wear = volume_.wear;
  header.wear.day_bytes += kCopies * length;
  header.wear.total_bytes += kCopies * length;
  HO_CHECK(seal_frame(header, frame_.span()) == length);
  HO_CHECK(volume_.head_bytes + length <= volume_.geometry.area_bytes);
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    const std::uint64_t area = volume_.geometry.area_offset(super.epoch % 2, copy);
    submit(DeviceOpKind::kWrite, area + volume_.head_bytes, frame_.span().first(length));
  }
  volume_.unsaved_wear_bytes = 0;
  volume_.head_bytes += length;
  ++volume_.sequence;
}

void Journal::start_snapshot() {
  enter(State::kIdle, State::kSnapshot);
  snapshot_wanted_ = false;
  next_super_ = volume_.super;
  next_super_.epoch += 1;
  next_super_.version = kFormatVersion;
  // A crash leaves frames of a log that never counted; the next attempt has the same epoch, and
  // must not take them for its own.
  next_super_.salt = options_.salt;
  volume_.sequence = 0;
  volume_.head_bytes = 0;
  cursor_ = SnapshotCursor();
  snapshot_more_ = true;
  next_snapshot_frame();
}

void Journal::next_snapshot_frame() {
  if (!snapshot_more_) {
    enter(State::kSnapshot, State::kSnapshotSync);
    next_super_.snapshot_frames = volume_.sequence;
    submit(DeviceOpKind::kSync, 0, {});
    return;
  }
  RecordWriter out(frame_.span().subspan(kFrameHeaderBytes));
  snapshot_more_ = cursor_.put(volume_.table, out);
  HO_CHECK(!snapshot_more_ || out.bytes() > 0);
  seal_and_write(out.bytes());
}

void Journal::write_super() {
  encode_superblock(next_super_, std::span<std::byte, kBlockBytes>(super_block_.span()));
  submit(DeviceOpKind::kWrite, volume_.geometry.super_offset(super_copy_), super_block_.span());
}

void Journal::complete(const Completion& completion) {
  HO_CHECK(open_ops_ > 0);
  --open_ops_;
  if (completion.code != Errc::kOk) failed_ = true;
  if (open_ops_ > 0) return;
  if (failed_) return break_down();
  switch (state_) {
    case State::kFrame:
      enter(State::kFrame, State::kSync);
      submit(DeviceOpKind::kSync, 0, {});
      break;
    case State::kSync: finish_sync(); break;
    case State::kSnapshot: next_snapshot_frame(); break;
    case State::kSnapshotSync:
      enter(State::kSnapshotSync, State::kSuper);
      super_copy_ = 0;
      write_super();
      break;
    case State::kSuper:
      enter(State::kSuper, State::kSuperSync);
      submit(DeviceOpKind::kSync, 0, {});
      break;
    case State::kSuperSync: finish_super(); break;
    case State::kIdle:
    case State::kBroken: HO_CHECK(false);
  }
}

void Journal::finish_sync() {
  enter(State::kSync, State::kIdle);
  for (const Commit& commit : framed_) {
    apply(commit);
    done_.push_back({commit, Errc::kOk});
  }
  framed_.clear();
}

/// The second copy only after the first is safe: one of them is whole at any time.
void Journal::finish_super() {
  if (super_copy_ + 1 < kCopies) {
    enter(State::kSuperSync, State::kSuper);
    ++super_copy_;
    write_super();
    return;
  }
  enter(State::kSuperSync, State::kIdle);
  volume_.super = next_super_;
  open_ended_ = false;
}

/// The change is safe: the volume follows. Places that it made free can be used from now on.
void Journal::apply(const Commit& commit) {
  Shard& shard = *commit.shard;
  switch (commit.kind) {
    case Commit::Kind::kCreate: shard.logged = true; break;
    case Commit::Kind::kWrite:
      for (std::uint32_t i = 0; i < commit.sums.size(); ++i) {
        const std::uint32_t old = shard.physical[commit.block + i];
        if (old != commit.physical + i) volume_.space.give({old, 1});
        shard.physical[commit.block + i] = commit.physical + i;
        shard.sums[commit.block + i] = commit.sums[i];
      }
      break;
    case Commit::Kind::kFree:
      for (const std::uint32_t block : shard.physical) volume_.space.give({block, 1});
      volume_.table.shards().erase(shard.info.id);
      break;
  }
}

/// After a failed write or sync nobody knows what the path holds beyond the last safe frame, and
/// a second sync could lie (Linux forgets failed pages). Nothing is written to it any more.
void Journal::break_down() {
  state_ = State::kBroken;
  snapshot_wanted_ = false;
  frame_wanted_ = false;
  for (auto* list : {&framed_, &ready_}) {
    for (const Commit& commit : *list) done_.push_back({commit, Errc::kIo});
    list->clear();
  }
}

}  // namespace ho::flash
