#include "daemon/tier/flash/store/chunk.hpp"

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"
#include "common/system/memory_guard.hpp"

namespace ho::flash {

namespace {

std::span<const std::byte, kBlockBytes> block_at(const std::byte* memory, std::uint32_t block) {
  return std::span<const std::byte, kBlockBytes>(memory + block * kBlockBytes, kBlockBytes);
}

}  // namespace

void Chunk::plan(Transfer& next, std::uint16_t path_count) {
  const std::uint64_t at = next.op.offset_bytes + next.issued_bytes;
  const std::uint64_t left = next.op.memory.size() - next.issued_bytes;
  HO_CHECK(left > 0);
  const Striping::Place place = Striping(next.extent->info.id, path_count).place(at / kBlockBytes);
  transfer = &next;
  path = place.path;
  block = place.block;
  head_bytes = static_cast<std::uint32_t>(at % kBlockBytes);
  user = next.op.memory.data() + next.issued_bytes;
  user_bytes = static_cast<std::uint32_t>(std::min(left, kStripeBytes - at % kStripeBytes));
  blocks = static_cast<std::uint32_t>((head_bytes + user_bytes - 1) / kBlockBytes + 1);
  bounce = nullptr;
  promised = false;
  moved = false;
  fills_open = 0;
  fill_code = Errc::kOk;
}

void Chunk::limit(std::uint32_t blocks_together) {
  HO_CHECK(blocks_together > 0 && blocks_together <= blocks);
  blocks = blocks_together;
  user_bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(user_bytes, bytes() - head_bytes));
}

bool Chunk::direct(std::uint32_t memory_alignment) const {
  return head_bytes == 0 && user_bytes % kBlockBytes == 0 &&
         reinterpret_cast<std::uintptr_t>(user) % memory_alignment == 0;
}

std::uint64_t Chunk::sum_of(std::uint32_t one) const {
  HO_CHECK(bounce != nullptr && one < blocks);
  return block_sum(block_at(bounce, one));
}

bool Chunk::copy_in() const {
  HO_CHECK(bounce != nullptr);
  const auto copy = [this] { std::memcpy(bounce + head_bytes, user, user_bytes); };
  return guarded({user, user_bytes}, copy);
}

bool Chunk::make_sums() {
  const std::byte* const from = memory().data();
  const auto make = [this, from] {
    for (std::uint32_t i = 0; i < blocks; ++i) sums[i] = block_sum(block_at(from, i));
  };
  return guarded({user, user_bytes}, make);
}

Errc Chunk::check(std::uint32_t& bad_block) const {
  const std::byte* const from = memory().data();
  const std::uint64_t* const wanted = shard().sums.data() + block;
  std::uint32_t right = 0;  // number of blocks
  const auto compare = [this, from, wanted, &right] {
    for (; right < blocks; ++right) {
      if (block_sum(block_at(from, right)) != wanted[right]) return;
    }
    if (bounce != nullptr) std::memcpy(user, bounce + head_bytes, user_bytes);
  };
  if (!guarded({user, user_bytes}, compare)) return Errc::kUnavailable;
  if (right == blocks) return Errc::kOk;
  bad_block = right;
  return Errc::kCorrupt;
}

}  // namespace ho::flash
