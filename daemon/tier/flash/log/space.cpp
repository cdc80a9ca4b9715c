#include "daemon/tier/flash/log/space.hpp"

#include <algorithm>
#include <bit>

#include "common/base/check.hpp"

namespace ho::flash {

Space::Space(std::uint32_t blocks)
    : blocks_(blocks), free_(blocks), used_((std::size_t{blocks} + 63) / 64, 0) {
  // Bits past the end count as used, so that no search exceeds the path.
  if (blocks % 64 != 0) used_.back() = ~std::uint64_t{0} << (blocks % 64);
}

/// The first free run of `count` blocks in [begin, end); count 0 if there is none.
BlockRun Space::run_from(std::uint32_t begin, std::uint32_t end, std::uint32_t count) const {
  std::uint32_t first = begin;
  std::uint32_t length = 0;
  std::uint32_t at = begin;
  while (at < end) {
    const std::uint64_t word = used_[at / 64] >> (at % 64);
    const std::uint32_t in_word = std::min(64 - at % 64, end - at);
    const auto zeros = std::min(static_cast<std::uint32_t>(std::countr_zero(word)), in_word);
    if (length == 0) first = at;
    length += zeros;
    if (length >= count) return {first, count};
    at += zeros;
    if (zeros == in_word) continue;
    length = 0;
    const auto ones = static_cast<std::uint32_t>(std::countr_one(word >> zeros));
    at += std::max(1U, std::min(ones, in_word - zeros));
  }
  return {first, 0};
}

void Space::mark(BlockRun run) {
  for (std::uint32_t i = 0; i < run.count; ++i) {
    const std::uint32_t block = run.first + i;
    used_[block / 64] |= std::uint64_t{1} << (block % 64);
  }
  free_ -= run.count;
  cursor_ = run.first + run.count == blocks_ ? 0 : run.first + run.count;
}

std::optional<BlockRun> Space::take(std::uint32_t count) {
  HO_CHECK(count > 0);
  if (free_ == 0) return std::nullopt;
  BlockRun found;
  if (none_of_ == 0 || count < none_of_) {
    found = run_from(cursor_, blocks_, count);
    if (found.count == 0) found = run_from(0, blocks_, count);
    if (found.count == 0) none_of_ = count;
  }
  if (found.count == 0) {
    found = run_from(cursor_, blocks_, 1);
    if (found.count == 0) found = run_from(0, blocks_, 1);
    HO_CHECK(found.count == 1);
    while (found.count < count && found.first + found.count < blocks_ &&
           is_free(found.first + found.count)) {
      ++found.count;
    }
  }
  mark(found);
  return found;
}

bool Space::claim(BlockRun run) {
  if (run.count == 0 || run.first >= blocks_ || run.count > blocks_ - run.first) return false;
  for (std::uint32_t i = 0; i < run.count; ++i) {
    if (!is_free(run.first + i)) return false;
  }
  mark(run);
  return true;
}

void Space::give(BlockRun run) {
  HO_CHECK(run.first < blocks_ && run.count <= blocks_ - run.first);
  for (std::uint32_t i = 0; i < run.count; ++i) {
    const std::uint32_t block = run.first + i;
    HO_CHECK(!is_free(block));
    used_[block / 64] &= ~(std::uint64_t{1} << (block % 64));
  }
  free_ += run.count;
  none_of_ = 0;
}

}  // namespace ho::flash
