#include "daemon/tier/flash/store/chunk_engine.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::flash {

void ChunkEngine::Queue::push(Transfer& transfer) {
  HO_CHECK(count_ < ring_.size());
  ring_[(first_ + count_) % ring_.size()] = &transfer;
  ++count_;
}

void ChunkEngine::Queue::pop() {
  HO_CHECK(count_ > 0);
  first_ = (first_ + 1) % ring_.size();
  --count_;
}

ChunkEngine::ChunkEngine(Device& device, Paths& paths, const Options& options)
    : device_(device),
      paths_(paths),
      device_ops_max_(options.device_ops_max),
      chunks_(options.chunks_max),
      bounce_memory_(options.bounce_buffers * kDeviceOpBytesMax),
      starting_(options.transfers_max),
      for_space_(paths.size(), Queue(options.transfers_max)) {
  HO_CHECK(options.bounce_buffers > 0 && options.chunks_max > 0);
  HO_CHECK(options.device_ops_max >= 2);  // a chunk may read both of its old ends
  for (std::size_t i = options.chunks_max; i-- > 0;) free_chunks_.push_back(static_cast<Slot>(i));
  for (std::size_t i = 0; i < options.bounce_buffers; ++i) {
    free_bounces_.push_back(bounce_memory_.data() + i * kDeviceOpBytesMax);
  }
  ended_.reserve(options.transfers_max);
  // Registered if the kernel allows it; otherwise only slower.
  static_cast<void>(device_.add_memory(bounce_memory_.span()));
}

/// What the rest of a write, not yet issued, needs of each path, in whole blocks. In the worst case
/// each durable block has its own frame.
ChunkEngine::Needs ChunkEngine::need_left(const Transfer& transfer) const {
  Needs needs;
  const Striping striping(transfer.extent->info.id, path_count());
  const std::uint64_t end = transfer.op.offset_bytes + transfer.op.memory.size();
  for (std::uint64_t at = transfer.op.offset_bytes + transfer.issued_bytes; at < end;) {
    const std::uint64_t stop = std::min(end, (at / kStripeBytes + 1) * kStripeBytes);
    const std::uint64_t blocks = (stop - 1) / kBlockBytes - at / kBlockBytes + 1;
    WriteNeed& need = needs[striping.place(at / kBlockBytes).path.value()];
    need.data_bytes += blocks * kBlockBytes;
    if (transfer.durable_write()) need.frame_bytes = need.data_bytes;
    at = stop;
  }
  return needs;
}

Result<void> ChunkEngine::admit(const Transfer& transfer) {
  HO_CHECK(transfer.issued_bytes == 0 && !transfer.op.memory.empty());
  if (!transfer.writes()) return {};
  const Needs needs = need_left(transfer);
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (auto allowed = paths_[i]->check_budget(needs[i]); !allowed) return allowed;
  }
  for (std::size_t i = 0; i < paths_.size(); ++i) paths_[i]->budget.promise(needs[i]);
  return {};
}

void ChunkEngine::abandon(const Transfer& transfer) {
  HO_CHECK(!transfer.starting && transfer.chunks_open == 0);
  if (!transfer.writes()) return;
  const Needs needs = need_left(transfer);
  for (std::size_t i = 0; i < paths_.size(); ++i) paths_[i]->budget.settle(needs[i]);
}

/// Bytes that a chunk may write count against the budget; bytes that went to the device count as
/// wear.
void ChunkEngine::settle_data(Chunk& chunk) {
  if (!chunk.promised) return;
  path_of(chunk).budget.settle({chunk.bytes(), 0});
  chunk.promised = false;
}

void ChunkEngine::start(Transfer& transfer) {
  HO_CHECK(!transfer.starting && transfer.issued_bytes == 0);
  transfer.starting = true;
  starting_.push(transfer);
}

/// Transfers that wait for blocks of a path come first: they have waited longest.
void ChunkEngine::issue() {
  for (Queue& queue : for_space_) {
    if (!issue_from(queue)) return;
  }
  static_cast<void>(issue_from(starting_));
}

/// Starts a queue's transfers in order. A transfer without a free block on its path waits for that
/// path; those behind it may use other paths. @return false: the device is full.
bool ChunkEngine::issue_from(Queue& queue) {
  while (!queue.empty()) {
    Transfer& transfer = queue.front();
    const Started started = start_chunks(transfer);
    if (started == Started::kNoRoom) return false;
    if (started == Started::kNoSpace) {
      const std::uint64_t at = transfer.op.offset_bytes + transfer.issued_bytes;
      const Striping striping(transfer.extent->info.id, path_count());
      Queue& wanted = for_space_[striping.place(at / kBlockBytes).path.value()];
      if (&wanted == &queue) return true;
      queue.pop();
      wanted.push(transfer);
      continue;
    }
    queue.pop();
    transfer.starting = false;
    if (transfer.chunks_open == 0) end(transfer);
  }
  return true;
}

/// Starts all chunks of a transfer that can start now. @return kYes: nothing is left to start;
/// kNoRoom, kNoSpace: what the rest lacks.
ChunkEngine::Started ChunkEngine::start_chunks(Transfer& transfer) {
  while (transfer.code == Errc::kOk && transfer.issued_bytes < transfer.op.memory.size()) {
    const Started started = start_chunk(transfer);
    if (started == Started::kNoRoom || started == Started::kNoSpace) return started;
  }
  return Started::kYes;
}

ChunkEngine::Started ChunkEngine::start_chunk(Transfer& transfer) {
  if (free_chunks_.empty() || device_open_ + 2 > device_ops_max_) return Started::kNoRoom;
  const Slot index = free_chunks_.back();
  Chunk& chunk = chunks_[index];
  chunk.plan(transfer, path_count());
  const bool direct = chunk.direct(device_.caps().memory_alignment);
  if (!direct && free_bounces_.empty()) return Started::kNoRoom;
  const Placed placed = transfer.writes() ? place_write(chunk) : place_read(chunk);
  if (placed == Placed::kWait) return Started::kNoSpace;
  if (placed == Placed::kFailed) return Started::kFailed;
  if (!direct) {
    chunk.bounce = free_bounces_.back();
    free_bounces_.pop_back();
  }
  free_chunks_.pop_back();
  transfer.issued_bytes += chunk.user_bytes;
  ++transfer.chunks_open;
  chunk.promised = transfer.writes();
  if (!transfer.writes()) {
    submit(index, Role::kData, DeviceOpKind::kRead);
  } else if (direct) {
    start_write(index);
  } else {
    fill_ends(index);
  }
  return Started::kYes;
}

ChunkEngine::Placed ChunkEngine::place_read(Chunk& chunk) {
  const Shard& shard = chunk.shard();
  chunk.limit(shard.together(chunk.block, chunk.blocks));
  chunk.physical = shard.physical[chunk.block];
  for (std::uint32_t i = 0; i < chunk.blocks; ++i) {
    if (shard.sums[chunk.block + i] != 0) continue;
    fail(*chunk.transfer, Errc::kNotFound, fault_at(chunk, i, chunk.physical + i));
    return Placed::kFailed;
  }
  return Placed::kYes;
}

/// Chooses the place of a write. Written blocks of a durable extent are never overwritten: a crash
/// could destroy both the old and the new contents. @return kWait: no free block now, but blocks
/// will become free, or others already wait for them; kFailed: none will, or the log is broken: its
/// last frame may name exactly these blocks.
ChunkEngine::Placed ChunkEngine::place_write(Chunk& chunk) {
  StorePath& path = path_of(chunk);
  const Shard& shard = chunk.shard();
  const bool durable = chunk.transfer->durable_write();
  Fault fault = fault_at(chunk, 0, shard.physical[chunk.block]);
  if (durable && path.journal.broken()) {
    fail(*chunk.transfer, Errc::kIo, fault);
    return Placed::kFailed;
  }
  const auto begin = shard.sums.begin() + chunk.block;
  const bool holds =
      std::any_of(begin, begin + chunk.blocks, [](std::uint64_t sum) { return sum != 0; });
  if (!durable || !holds) {
    chunk.limit(shard.together(chunk.block, chunk.blocks));
    chunk.physical = shard.physical[chunk.block];
    return Placed::kYes;
  }
  // Blocks may become free while transfers start, but not for a transfer that came later.
  const Queue& waiting = for_space_[chunk.path.value()];
  if (!waiting.empty() && &waiting.front() != chunk.transfer) return Placed::kWait;
  const auto run = path.volume.space.take(chunk.blocks);
  if (!run && path.freeing > 0) return Placed::kWait;
  if (!run) {
    fault.path_full = true;
    fail(*chunk.transfer, Errc::kExhausted, fault);
    return Placed::kFailed;
  }
  chunk.moved = true;
  ++path.freeing;
  chunk.limit(run->count);
  chunk.physical = run->first;
  return Placed::kYes;
}

/// Reads the parts of the first and the last block that the user's bytes do not cover.
void ChunkEngine::fill_ends(Slot index) {
  Chunk& chunk = chunks_[index];
  const Shard& shard = chunk.shard();
  const std::uint32_t last = chunk.blocks - 1;
  const bool head = chunk.head_bytes != 0;
  const bool tail = (chunk.head_bytes + chunk.user_bytes) % kBlockBytes != 0;
  const auto fill = [&](std::uint32_t block, Role role) {
    if (shard.sums[chunk.block + block] == 0) {
      std::ranges::fill(chunk.memory_of(block), std::byte{0});
    } else {
      ++chunk.fills_open;
      submit(index, role, DeviceOpKind::kRead);
    }
  };
  if (head) fill(0, Role::kHead);
  if (tail && !(head && last == 0)) fill(last, Role::kTail);
  if (chunk.fills_open == 0) start_write(index);
}

/// All blocks are complete in memory, or will be once the user's bytes are copied. The device works
/// while the checksums are computed.
void ChunkEngine::start_write(Slot index) {
  Chunk& chunk = chunks_[index];
  if (chunk.bounce != nullptr && !chunk.copy_in()) return finish_write(index, Errc::kUnavailable);
  submit(index, Role::kData, DeviceOpKind::kWrite);
  // The memory has disappeared, and may have been written or not: the write fails when the device
  // is done.
  if (!chunk.make_sums()) chunk.fill_code = Errc::kUnavailable;
}

void ChunkEngine::submit(Slot index, Role role, DeviceOpKind kind) {
  Chunk& chunk = chunks_[index];
  StorePath& path = path_of(chunk);
  const Geometry& geometry = path.volume.geometry;
  DeviceOp op;
  // Encodes chunk and role in one number, below those of the journals.
  op.op = OpId((std::uint64_t{index} << 2U) | static_cast<unsigned>(role));
  op.kind = kind;
  op.path = chunk.path;
  if (role == Role::kData) {
    op.offset_bytes = geometry.data_offset(chunk.physical);
    op.memory = chunk.memory();
  } else {
    const std::uint32_t block = role == Role::kHead ? 0 : chunk.blocks - 1;
    op.offset_bytes = geometry.data_offset(chunk.shard().physical[chunk.block + block]);
    op.memory = chunk.memory_of(block);
  }
  if (kind == DeviceOpKind::kWrite) {
    settle_data(chunk);
    path.count_written(op.memory.size());
  }
  // start_chunk() has checked that there is room.
  HO_CHECK(device_.submit(op).ok());
  ++device_open_;
}

void ChunkEngine::on_device(const Completion& completion) {
  HO_CHECK(device_open_ > 0);
  --device_open_;
  const auto index = static_cast<Slot>(completion.op.value() >> 2U);
  const auto role = static_cast<Role>(completion.op.value() & 3U);
  HO_CHECK(index < chunks_.size());
  if (role != Role::kData) {
    on_filled(index, role, completion.code);
  } else if (chunks_[index].transfer->writes()) {
    on_written(index, completion.code);
  } else {
    on_read(index, completion.code);
  }
}

void ChunkEngine::on_filled(Slot index, Role role, Errc code) {
  Chunk& chunk = chunks_[index];
  const Shard& shard = chunk.shard();
  const std::uint32_t block = role == Role::kHead ? 0 : chunk.blocks - 1;
  if (code == Errc::kOk && chunk.sum_of(block) != shard.sums[chunk.block + block]) {
    code = Errc::kCorrupt;
  }
  if (code != Errc::kOk) {
    fail(*chunk.transfer, code, fault_at(chunk, block, shard.physical[chunk.block + block]));
    chunk.fill_code = code;
  }
  HO_CHECK(chunk.fills_open > 0);
  if (--chunk.fills_open > 0) return;
  if (chunk.fill_code != Errc::kOk) return finish_write(index, chunk.fill_code);
  start_write(index);
}

void ChunkEngine::on_read(Slot index, Errc code) {
  const Chunk& chunk = chunks_[index];
  checked_bytes_ += chunk.bytes();
  std::uint32_t bad_block = 0;
  if (code == Errc::kOk) code = chunk.check(bad_block);
  finish_chunk(index, code, bad_block);
}

void ChunkEngine::on_written(Slot index, Errc code) {
  Chunk& chunk = chunks_[index];
  Shard& shard = chunk.shard();
  if (code == Errc::kOk) code = chunk.fill_code;
  if (code != Errc::kOk) return finish_write(index, code);
  if (shard.info.policy == Policy::kScratch) {
    std::copy_n(chunk.sums.begin(), chunk.blocks, shard.sums.begin() + chunk.block);
    return finish_chunk(index, Errc::kOk);
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
  path_of(chunk).journal.append(commit);
}

void ChunkEngine::on_commit(const Commit& commit, Errc code) {
  HO_CHECK(commit.kind == Commit::Kind::kWrite && commit.token < chunks_.size());
  finish_chunk(static_cast<Slot>(commit.token), code);
}

/// A write ended before its commit: frees the blocks that it took.
void ChunkEngine::finish_write(Slot index, Errc code) {
  const Chunk& chunk = chunks_[index];
  if (chunk.moved) path_of(chunk).volume.space.give({chunk.physical, chunk.blocks});
  finish_chunk(index, code);
}

void ChunkEngine::finish_chunk(Slot index, Errc code, std::uint32_t bad_block) {
  Chunk& chunk = chunks_[index];
  Transfer& transfer = *chunk.transfer;
  StorePath& path = path_of(chunk);
  if (code != Errc::kOk)
    fail(transfer, code, fault_at(chunk, bad_block, chunk.physical + bad_block));
  settle_data(chunk);
  if (transfer.durable_write()) path.budget.settle({0, chunk.bytes()});
  if (chunk.bounce != nullptr) free_bounces_.push_back(chunk.bounce);
  chunk.bounce = nullptr;
  if (chunk.moved) {
    HO_CHECK(path.freeing > 0);
    --path.freeing;
  }
  free_chunks_.push_back(index);
  HO_CHECK(transfer.chunks_open > 0);
  --transfer.chunks_open;
  if (transfer.chunks_open == 0 && !transfer.starting) end(transfer);
}

/// Ends the promise for the rest of a failed write.
void ChunkEngine::end(Transfer& transfer) {
  abandon(transfer);
  HO_CHECK(ended_.size() < ended_.capacity());
  ended_.push_back(&transfer);
}

void ChunkEngine::fail(Transfer& transfer, Errc code, const Fault& fault) {
  HO_CHECK(code != Errc::kOk);
  if (transfer.code != Errc::kOk) return;
  transfer.code = code;
  transfer.fault = fault;
}

/// @param physical  data block of the path with block `block` of the chunk
Fault ChunkEngine::fault_at(const Chunk& chunk, std::uint32_t block, std::uint32_t physical) const {
  const ExtentId extent = chunk.transfer->extent->info.id;
  const Striping striping(extent, path_count());
  return {chunk.path, extent, striping.extent_block(chunk.path, chunk.block + block),
          path_of(chunk).volume.geometry.data_offset(physical), false};
}

}  // namespace ho::flash
