#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"
#include "common/base/memory_guard.hpp"
#include "daemon/tier/flash/store/store.hpp"

namespace ho::flash {

namespace {

/// Chunk and role in one number, below the journals'.
OpId device_op(std::uint32_t chunk, unsigned role) {
  return OpId((std::uint64_t{chunk} << 2U) | role);
}

std::span<const std::byte, kBlockBytes> block_at(const std::byte* memory, std::uint32_t block) {
  return std::span<const std::byte, kBlockBytes>(memory + block * kBlockBytes, kBlockBytes);
}

}  // namespace

std::span<std::byte> Store::block_memory(const Chunk& chunk) const {
  return {chunk.bounce != nullptr ? chunk.bounce : chunk.user, chunk.blocks * kBlockBytes};
}

Fault Store::fault_at(const Chunk& chunk, std::uint32_t block) const {
  const Extent& extent = *ops_[chunk.op].extent;
  const PathIndex path(chunk.path);
  const Striping striping(extent.info.id, static_cast<std::uint16_t>(paths_.size()));
  return {path, extent.info.id, striping.extent_block(path, chunk.block + block),
          paths_[chunk.path]->volume.geometry.data_offset(chunk.physical + block), false};
}

/// The path of the next chunk.
Store::PathState& Store::next_path(const Op& op) {
  const Striping striping(op.extent->info.id, static_cast<std::uint16_t>(paths_.size()));
  return *paths_[striping.place((op.offset + op.issued) / kBlockBytes).path.value()];
}

/// Starts all that can be started now of an operation. @return kYes: nothing is left to start;
/// kNoRoom, kNoSpace: of what the rest needs.
Store::Started Store::issue_op(Slot slot) {
  Op& op = ops_[slot];
  while (op.kind != Op::Kind::kFree && op.code == Errc::kOk && op.issued < op.length) {
    const Started started = start_chunk(slot);
    if (started == Started::kNoRoom || started == Started::kNoSpace) return started;
  }
  return Started::kYes;
}

/// Starts a queue's operations in their order. One that has no free block on its path goes on to
/// wait for that path: those behind it may want nothing of it. @return false: the device is full.
bool Store::issue_from(SlotQueue& queue) {
  while (!queue.empty()) {
    const Slot slot = queue.front();
    const Started started = issue_op(slot);
    if (started == Started::kNoRoom) return false;
    Op& op = ops_[slot];
    if (started == Started::kNoSpace) {
      SlotQueue& wanted = next_path(op).for_space;
      if (&wanted == &queue) return true;
      queue.pop();
      wanted.push(slot);
      continue;
    }
    queue.pop();
    op.issuing = false;
    if (op.kind == Op::Kind::kFree) {
      start_free(slot);
    } else if (op.open == 0) {
      finish_op(slot);
    }
  }
  return true;
}

/// Those that wait for a path's blocks come first: they have waited for longest.
void Store::issue() {
  for (auto& path : paths_) {
    if (!issue_from(path->for_space)) return;
  }
  static_cast<void>(issue_from(issuing_));
}

/// Where a write goes. Blocks of a durable extent that hold something are never written over: a
/// crash would leave neither the old nor the new. @return kWait: no free block now, but some come
/// free, or others wait for them already; kFull: none do; kBroken: the log is, and its last frame
/// may or may not name the very blocks.
Store::Placed Store::place_write(const Op& op, Chunk& chunk, const Shard& shard) {
  PathState& path = *paths_[chunk.path];
  const bool durable = op.extent->info.policy == Policy::kDurable;
  if (durable && path.journal.broken()) return Placed::kBroken;
  const auto begin = shard.sums.begin() + chunk.block;
  const bool holds =
      std::any_of(begin, begin + chunk.blocks, [](std::uint64_t sum) { return sum != 0; });
  if (!durable || !holds) {
    chunk.blocks = shard.together(chunk.block, chunk.blocks);
    chunk.physical = shard.physical[chunk.block];
    return Placed::kYes;
  }
  // Blocks can come free while operations are being started: not for one that came later.
  if (!path.for_space.empty() && path.for_space.front() != chunk.op) return Placed::kWait;
  const auto run = path.volume.space.take(chunk.blocks);
  if (!run) return path.freeing > 0 ? Placed::kWait : Placed::kFull;
  chunk.moved = true;
  ++path.freeing;
  chunk.blocks = run->count;
  chunk.physical = run->first;
  return Placed::kYes;
}

Store::Started Store::start_chunk(Slot slot) {
  Op& op = ops_[slot];
  if (free_chunks_.empty() || device_open_ + 2 > device_depth_) return Started::kNoRoom;
  const std::uint64_t at = op.offset + op.issued;
  const std::uint64_t wanted = std::min(op.length - op.issued, kStripeBytes - at % kStripeBytes);
  const Striping striping(op.extent->info.id, static_cast<std::uint16_t>(paths_.size()));
  const Striping::Place place = striping.place(at / kBlockBytes);
  const Slot index = free_chunks_.back();
  Chunk& chunk = chunks_[index];
  chunk.op = slot;
  chunk.path = place.path.value();
  chunk.block = place.block;
  chunk.head_bytes = static_cast<std::uint32_t>(at % kBlockBytes);
  chunk.blocks = static_cast<std::uint32_t>((chunk.head_bytes + wanted - 1) / kBlockBytes + 1);
  chunk.user = op.memory + op.issued;
  chunk.bounce = nullptr;
  chunk.moved = false;
  chunk.fills_open = 0;
  chunk.fill_code = Errc::kOk;
  const auto alignment = device_->caps().memory_alignment;
  const bool direct = chunk.head_bytes == 0 && wanted % kBlockBytes == 0 &&
                      reinterpret_cast<std::uintptr_t>(chunk.user) % alignment == 0;
  if (!direct && free_bounces_.empty()) return Started::kNoRoom;
  const Shard& shard = shard_of(chunk);
  if (op.kind == Op::Kind::kRead) {
    chunk.blocks = shard.together(chunk.block, chunk.blocks);
    chunk.physical = shard.physical[chunk.block];
    for (std::uint32_t i = 0; i < chunk.blocks; ++i) {
      if (shard.sums[chunk.block + i] != 0) continue;
      fail_op(op, Errc::kNotFound, fault_at(chunk, i));
      return Started::kFailed;
    }
  } else if (const Placed placed = place_write(op, chunk, shard); placed != Placed::kYes) {
    if (placed == Placed::kWait) return Started::kNoSpace;
    chunk.physical = shard.physical[chunk.block];
    Fault fault = fault_at(chunk, 0);
    fault.path_full = placed == Placed::kFull;
    fail_op(op, fault.path_full ? Errc::kExhausted : Errc::kIo, fault);
    return Started::kFailed;
  }
  chunk.user_bytes = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(wanted, chunk.blocks * kBlockBytes - chunk.head_bytes));
  if (!direct) {
    chunk.bounce = free_bounces_.back();
    free_bounces_.pop_back();
  }
  free_chunks_.pop_back();
  op.issued += chunk.user_bytes;
  chunk.promised = op.kind == Op::Kind::kWrite;
  ++op.open;
  if (op.kind == Op::Kind::kRead) {
    submit_chunk(index, Role::kData, DeviceOpKind::kRead);
  } else if (chunk.bounce == nullptr) {
    start_write(index);
  } else {
    fill_ends(index);
  }
  return Started::kYes;
}

/// What the user's bytes leave open in the first and the last block comes from where it is now.
void Store::fill_ends(Slot index) {
  Chunk& chunk = chunks_[index];
  const Shard& shard = shard_of(chunk);
  const std::uint32_t last = chunk.blocks - 1;
  const bool head = chunk.head_bytes != 0;
  const bool tail = (chunk.head_bytes + chunk.user_bytes) % kBlockBytes != 0;
  const auto fill = [&](std::uint32_t block, Role role) {
    if (shard.sums[chunk.block + block] == 0) {
      std::memset(chunk.bounce + block * kBlockBytes, 0, kBlockBytes);
    } else {
      ++chunk.fills_open;
      submit_chunk(index, role, DeviceOpKind::kRead);
    }
  };
  if (head) fill(0, Role::kHead);
  if (tail && !(head && last == 0)) fill(last, Role::kTail);
  if (chunk.fills_open == 0) start_write(index);
}

void Store::submit_chunk(Slot index, Role role, DeviceOpKind kind) {
  const Chunk& chunk = chunks_[index];
  const Geometry& geometry = paths_[chunk.path]->volume.geometry;
  DeviceOp op;
  op.op = device_op(index, static_cast<unsigned>(role));
  op.kind = kind;
  op.path = PathIndex(chunk.path);
  if (role == Role::kData) {
    op.offset_bytes = geometry.data_offset(chunk.physical);
    op.memory = block_memory(chunk);
  } else {
    const std::uint32_t block = role == Role::kHead ? 0 : chunk.blocks - 1;
    op.offset_bytes = geometry.data_offset(shard_of(chunk).physical[chunk.block + block]);
    op.memory = {chunk.bounce + block * kBlockBytes, kBlockBytes};
  }
  if (kind == DeviceOpKind::kWrite) {
    give_back_data(chunks_[index]);
    paths_[chunk.path]->volume.count_written(op.memory.size(), options_.day);
  }
  // start_chunk() looked that there is room.
  HO_CHECK(device_->submit(op).ok());
  ++device_open_;
}

/// All blocks are complete in memory, or will be once the user's bytes are copied. The device works
/// while the checksums are made.
void Store::start_write(Slot index) {
  Chunk& chunk = chunks_[index];
  const std::span<const std::byte> user(chunk.user, chunk.user_bytes);
  const auto copy = [&chunk] {
    std::memcpy(chunk.bounce + chunk.head_bytes, chunk.user, chunk.user_bytes);
  };
  if (chunk.bounce != nullptr && !guarded(user, copy)) {
    if (chunk.moved) paths_[chunk.path]->volume.space.give({chunk.physical, chunk.blocks});
    finish_chunk(index, Errc::kUnavailable);
    return;
  }
  submit_chunk(index, Role::kData, DeviceOpKind::kWrite);
  const std::byte* const memory = block_memory(chunk).data();
  const auto sum = [&chunk, memory] {
    for (std::uint32_t i = 0; i < chunk.blocks; ++i) chunk.sums[i] = block_sum(block_at(memory, i));
  };
  // What is gone now may have been written or not: it has failed when the device is done with it.
  if (!guarded(user, sum)) chunk.fill_code = Errc::kUnavailable;
}

void Store::on_device(const Completion& completion) {
  if (Journal::owns(completion.op)) {
    paths_[Journal::path_of(completion.op).value()]->journal.complete(completion);
    return;
  }
  HO_CHECK(device_open_ > 0);
  --device_open_;
  const auto index = static_cast<Slot>(completion.op.value() >> 2U);
  const auto role = static_cast<Role>(completion.op.value() & 3U);
  if (role != Role::kData) {
    on_filled(index, role, completion.code);
  } else if (ops_[chunks_[index].op].kind == Op::Kind::kRead) {
    on_read(index, completion.code);
  } else {
    on_written(index, completion.code);
  }
}

void Store::on_filled(Slot index, Role role, Errc code) {
  Chunk& chunk = chunks_[index];
  const std::uint32_t block = role == Role::kHead ? 0 : chunk.blocks - 1;
  if (code == Errc::kOk &&
      block_sum(block_at(chunk.bounce, block)) != shard_of(chunk).sums[chunk.block + block]) {
    code = Errc::kCorrupt;
  }
  if (code != Errc::kOk) {
    Chunk old = chunk;
    old.physical = shard_of(chunk).physical[chunk.block + block] - block;
    fail_op(ops_[chunk.op], code, fault_at(old, block));
    chunk.fill_code = code;
  }
  HO_CHECK(chunk.fills_open > 0);
  if (--chunk.fills_open > 0) return;
  if (chunk.fill_code != Errc::kOk) {
    if (chunk.moved) paths_[chunk.path]->volume.space.give({chunk.physical, chunk.blocks});
    finish_chunk(index, chunk.fill_code);
    return;
  }
  start_write(index);
}

void Store::on_read(Slot index, Errc code) {
  const Chunk& chunk = chunks_[index];
  const Shard& shard = shard_of(chunk);
  const std::byte* const memory = block_memory(chunk).data();
  checked_bytes_ += chunk.blocks * kBlockBytes;
  std::uint32_t right = 0;  // blocks
  const auto check = [&chunk, &shard, &right, memory] {
    for (; right < chunk.blocks; ++right) {
      if (block_sum(block_at(memory, right)) != shard.sums[chunk.block + right]) return;
    }
    if (chunk.bounce != nullptr) {
      std::memcpy(chunk.user, chunk.bounce + chunk.head_bytes, chunk.user_bytes);
    }
  };
  if (code == Errc::kOk && !guarded({chunk.user, chunk.user_bytes}, check)) {
    code = Errc::kUnavailable;
  } else if (code == Errc::kOk && right < chunk.blocks) {
    return finish_chunk(index, Errc::kCorrupt, right);
  }
  finish_chunk(index, code);
}

void Store::on_written(Slot index, Errc code) {
  Chunk& chunk = chunks_[index];
  PathState& path = *paths_[chunk.path];
  Shard& shard = shard_of(chunk);
  if (code == Errc::kOk) code = chunk.fill_code;
  if (code != Errc::kOk) {
    if (chunk.moved) path.volume.space.give({chunk.physical, chunk.blocks});
    finish_chunk(index, code);
    return;
  }
  if (shard.info.policy == Policy::kScratch) {
    std::copy_n(chunk.sums.begin(), chunk.blocks, shard.sums.begin() + chunk.block);
    finish_chunk(index, Errc::kOk);
    return;
  }
  if (chunk.bounce != nullptr) {  // others need it while this one waits for the log
    free_bounces_.push_back(chunk.bounce);
    chunk.bounce = nullptr;
  }
  Commit commit;
  commit.kind = Commit::Kind::kWrite;
  commit.token = index;
  commit.shard = &shard;
  commit.block = chunk.block;
  commit.physical = chunk.physical;
  commit.sums = std::span(chunk.sums).first(chunk.blocks);
  path.journal.append(commit);
}

void Store::finish_chunk(Slot index, Errc code, std::uint32_t bad_block) {
  Chunk& chunk = chunks_[index];
  const Slot slot = chunk.op;
  Op& op = ops_[slot];
  if (code != Errc::kOk) fail_op(op, code, fault_at(chunk, bad_block));
  give_back_data(chunk);
  if (op.kind == Op::Kind::kWrite && op.extent->info.policy == Policy::kDurable) {
    PathState& path = *paths_[chunk.path];
    HO_CHECK(path.promised_frame_bytes >= chunk.blocks * kBlockBytes);
    path.promised_frame_bytes -= chunk.blocks * kBlockBytes;
  }
  if (chunk.bounce != nullptr) free_bounces_.push_back(chunk.bounce);
  chunk.bounce = nullptr;
  if (chunk.moved) --paths_[chunk.path]->freeing;
  free_chunks_.push_back(index);
  HO_CHECK(op.open > 0);
  --op.open;
  if (op.open == 0 && !op.issuing) finish_op(slot);
}

}  // namespace ho::flash
