#include "daemon/tier/flash/log/journal.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::flash {

namespace {

// A crash may lose wear counters of this many bytes. A frame for them at this rate costs nothing.
constexpr std::uint64_t kUnsavedWearMax = kGiB;

}  // namespace

Journal::Journal(Device& device, Volume& volume, Options options)
    : device_(device), volume_(volume), options_(options), super_block_(kBlockBytes) {
  HO_CHECK(options.frames_open >= 1 && options.frames_open <= kFramesOpenMax);
  ready_.reserve(options.commits_max);
  done_.reserve(options.commits_max);
  frames_.reserve(options.frames_open);
  for (std::uint32_t i = 0; i < options.frames_open; ++i) {
    frames_.emplace_back(volume.geometry.frame_bytes_max());
    frames_.back().commits.reserve(options.commits_max);
  }
}

void Journal::enter(State from, State to) {
  HO_CHECK(state_ == from);
  state_ = to;
}

void Journal::append(const Commit& commit) {
  HO_CHECK(commit.shard != nullptr);
  if (state_ == State::kBroken) {
    done_.push_back({commit, Errc::kIo});
    return;
  }
  HO_CHECK(ready_.size() < options_.commits_max);
  ready_.push_back(commit);
  ready_blocks_ += commit.sums.size();
}

/// Whether to begin a frame now. Beside open frames only for much data: small changes wait and
/// share the next frame.
bool Journal::frame_due() const {
  if (frames_open_ == 0) return !ready_.empty() || frame_wanted_;
  return frames_open_ < frames_.size() &&
         ready_blocks_ * kBlockBytes >= options_.frame_data_bytes_min;
}

void Journal::step(std::uint32_t day) {
  day_ = day;
  if (state_ != State::kLog || failed_) return;
  if (volume_.unsaved_wear_bytes >= kUnsavedWearMax) frame_wanted_ = true;
  if (!snapshot_wanted_) {
    while (frame_due() && start_frame()) {
    }
  }
  if (snapshot_wanted_ && frames_open_ == 0) start_snapshot();
}

void Journal::submit(DeviceOpKind kind, std::uint64_t offset_bytes, std::span<std::byte> memory,
                     Tag tag, Coding coding) {
  const OpId op(kOpIdBase | (std::uint64_t{tag} << 16U) | volume_.path.value());
  // The store reserves device_ops() of the device's depth for each journal.
  HO_CHECK(device_.submit({op, kind, volume_.path, offset_bytes, memory, coding}).ok());
  ++open_ops_;
  if (kind == DeviceOpKind::kWrite) volume_.count_written(memory.size(), day_);
}

/// Encodes ready commits while they fit. @return their number.
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
      case Commit::Kind::kUsed:
        record.kind = Record::Kind::kUsed;
        record.about.used = commit.used;
        fits = out.put(record);
        break;
    }
    if (!fits) break;
    ++count;
  }
  return count;
}

/// @return false: it does not fit the log, which needs a new one first.
bool Journal::start_frame() {
  Frame& next = frames_[place(frames_open_)];
  const std::uint64_t room = std::min<std::uint64_t>(
      next.memory.span().size(), volume_.geometry.area_bytes - volume_.head_bytes);
  std::size_t count = 0;
  RecordWriter out(std::span<std::byte>{});
  if (room > 0) {
    out = RecordWriter(next.memory.span().first(room).subspan(kFrameHeaderBytes));
    count = fill_frame(out);
  }
  if (room == 0 || (count == 0 && !ready_.empty())) {
    const bool fresh = volume_.sequence == volume_.super.snapshot_frames;
    if (fresh) {
      break_down("a new log has no room for the change");
    } else {
      snapshot_wanted_ = true;
    }
    return false;
  }
  frame_wanted_ = false;
  const auto end = ready_.begin() + static_cast<std::ptrdiff_t>(count);
  HO_CHECK(next.commits.empty());
  next.commits.assign(ready_.begin(), end);
  ready_.erase(ready_.begin(), end);
  bool writes = false;
  for (const Commit& commit : next.commits) {
    ready_blocks_ -= commit.sums.size();
    writes = writes || commit.kind == Commit::Kind::kWrite;
  }
  if (writes) {
    last_writes_ = volume_.sequence + 1;
    ++write_frames_;
  }
  next.writes_open = kCopies;
  next.syncing = false;
  const Tag tag = place(frames_open_);
  ++frames_open_;
  seal_and_write(next.memory, out.bytes(), tag);
  return true;
}

/// Makes written frames durable, with their data, up to the first frame that is not written yet.
void Journal::start_sync() {
  HO_CHECK(!sync_open_);
  for (std::uint32_t i = 0; i < frames_open_ && frames_[place(i)].writes_open == 0; ++i) {
    frames_[place(i)].syncing = true;
    sync_open_ = true;
  }
  if (sync_open_) submit(DeviceOpKind::kSync, 0, {}, kOther);
}

/// Completes the frame in memory and writes both copies at the head of the log.
void Journal::seal_and_write(AlignedMemory& memory, std::size_t payload_bytes, Tag tag) {
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
  // Nothing in a new log is valid until its whole snapshot is durable.
  header.safe_frames = state_ == State::kLog ? volume_.sequence + 1 - frames_open_ : 0;
  header.boot = device_.caps().boot;
  header.wear = volume_.wear;
  header.wear.day_bytes += kCopies * length;
  header.wear.total_bytes += kCopies * length;
  HO_CHECK(seal_frame(header, memory.span()) == length);
  HO_CHECK(volume_.head_bytes + length <= volume_.geometry.area_bytes);
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    const std::uint64_t area = volume_.geometry.area_offset(super.epoch % 2, copy);
    submit(DeviceOpKind::kWrite, area + volume_.head_bytes, memory.span().first(length), tag);
  }
  said_safe_ = header.safe_frames;
  volume_.unsaved_wear_bytes = 0;
  volume_.head_bytes += length;
  ++volume_.sequence;
}

void Journal::start_snapshot() {
  HO_CHECK(open_ops_ == 0);
  enter(State::kLog, State::kSnapshot);
  snapshot_wanted_ = false;
  next_super_ = volume_.super;
  next_super_.epoch += 1;
  // A crash leaves frames of a log that never became valid. The next attempt has the same epoch and
  // must not accept them.
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
    submit(DeviceOpKind::kSync, 0, {}, kOther);
    return;
  }
  AlignedMemory& memory = frames_.front().memory;
  RecordWriter out(memory.span().subspan(kFrameHeaderBytes));
  snapshot_more_ = cursor_.put(volume_.table, out);
  HO_CHECK(!snapshot_more_ || out.bytes() > 0);
  if (volume_.head_bytes + frame_bytes(out.bytes()) > volume_.geometry.area_bytes) {
    break_down("its log is too small for the table");
    return;
  }
  seal_and_write(memory, out.bytes(), kOther);
}

void Journal::write_super() {
  encode_superblock(next_super_, std::span<std::byte, kBlockBytes>(super_block_.span()));
  submit(DeviceOpKind::kWrite, volume_.geometry.super_offset(super_copy_), super_block_.span(),
         kOther, Coding::kPlain);
}

void Journal::complete(const Completion& completion) {
  HO_CHECK(open_ops_ > 0);
  --open_ops_;
  if (completion.code != Errc::kOk) failed_ = true;
  if (failed_) {
    if (open_ops_ == 0) break_down("an I/O error in its log");
    return;
  }
  if (state_ == State::kLog) {
    complete_in_log(static_cast<Tag>((completion.op.value() >> 16U) & UINT16_MAX));
    return;
  }
  if (open_ops_ > 0) return;
  switch (state_) {
    case State::kSnapshot: next_snapshot_frame(); break;
    case State::kSnapshotSync:
      enter(State::kSnapshotSync, State::kSuper);
      super_copy_ = 0;
      write_super();
      break;
    case State::kSuper:
      enter(State::kSuper, State::kSuperSync);
      submit(DeviceOpKind::kSync, 0, {}, kOther);
      break;
    case State::kSuperSync: finish_super(); break;
    case State::kLog:
    case State::kBroken: HO_CHECK(false);
  }
}

void Journal::complete_in_log(Tag tag) {
  if (tag == kOther) {
    finish_frames();
  } else {
    HO_CHECK(frames_.at(tag).writes_open > 0);
    frames_[tag].writes_open -= 1;
  }
  if (!sync_open_) start_sync();
}

/// A sync has ended: the frames that it covers are durable, and their commits are complete.
void Journal::finish_frames() {
  HO_CHECK(sync_open_ && frames_open_ > 0);
  sync_open_ = false;
  while (frames_open_ > 0 && frames_[first_frame_].syncing) {
    Frame& safe = frames_[first_frame_];
    for (const Commit& commit : safe.commits) {
      apply(commit);
      done_.push_back({commit, Errc::kOk});
    }
    safe.commits.clear();
    safe.syncing = false;
    first_frame_ = place(1);
    --frames_open_;
  }
}

/// The second copy is written after the first is durable, so one of them is always intact.
void Journal::finish_super() {
  if (super_copy_ + 1 < kCopies) {
    enter(State::kSuperSync, State::kSuper);
    ++super_copy_;
    write_super();
    return;
  }
  enter(State::kSuperSync, State::kLog);
  volume_.super = next_super_;
  last_writes_ = 0;
}

/// The change is durable: updates the volume. Blocks that it freed may be reused from now on.
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
    case Commit::Kind::kUsed: shard.info.about.used = commit.used; break;
  }
}

/// After a failed write or sync, the state of the path beyond the last durable frame is unknown,
/// and a second sync could wrongly succeed (Linux forgets failed pages). So nothing is written to
/// the path any more. The same holds if a table does not fit its log; no extent that create()
/// admits can cause that.
void Journal::break_down(const char* why) {
  HO_CHECK(open_ops_ == 0);
  broken_why_ = why;
  state_ = State::kBroken;
  snapshot_wanted_ = false;
  frame_wanted_ = false;
  const auto fail = [this](std::vector<Commit>& commits) {
    for (const Commit& commit : commits) done_.push_back({commit, Errc::kIo});
    commits.clear();
  };
  for (Frame& frame : frames_) fail(frame.commits);
  fail(ready_);
  frames_open_ = 0;
}

}  // namespace ho::flash
