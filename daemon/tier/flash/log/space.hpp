#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/tier/flash/log/layout.hpp"

namespace ho::flash {

/// Which data blocks of one path are free: a bitmap. Pure; allocates nothing after construction.
class Space {
 public:
  explicit Space(std::uint32_t blocks);

  [[nodiscard]] std::uint32_t blocks() const { return blocks_; }
  [[nodiscard]] std::uint32_t free_blocks() const { return free_; }
  [[nodiscard]] bool is_free(std::uint32_t block) const {
    return ((used_[block / 64] >> (block % 64)) & 1U) == 0;
  }

  /// Takes up to `count` blocks that lie together: all where there is such a run, else the first
  /// free run. @return nothing: no block is free. Cost: up to a scan of the bitmap (64 GiB: 2 MiB).
  [[nodiscard]] std::optional<BlockRun> take(std::uint32_t count);
  /// Takes these very blocks. @return false: out of range or one of them is taken; nothing was
  /// done.
  [[nodiscard]] bool claim(BlockRun run);
  /// Frees taken blocks.
  void give(BlockRun run);

 private:
  [[nodiscard]] BlockRun run_from(std::uint32_t begin, std::uint32_t end,
                                  std::uint32_t count) const;
  void mark(BlockRun run);

  std::uint32_t blocks_;
  std::uint32_t free_;
  std::uint32_t cursor_ = 0;   ///< where the last run ended: the next search begins there
  std::uint32_t none_of_ = 0;  ///< not 0: there is no free run of so many blocks
  std::vector<std::uint64_t> used_;
};

}  // namespace ho::flash
