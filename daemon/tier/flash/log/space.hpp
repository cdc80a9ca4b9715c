#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/tier/flash/log/layout.hpp"

namespace ho::flash {

/// The free data blocks of one path, as a bitmap. Pure; allocates nothing after construction.
class Space {
 public:
  explicit Space(std::uint32_t blocks);

  [[nodiscard]] std::uint32_t blocks() const { return blocks_; }
  [[nodiscard]] std::uint32_t free_blocks() const { return free_; }
  [[nodiscard]] bool is_free(std::uint32_t block) const {
    return ((used_[block / 64] >> (block % 64)) & 1U) == 0;
  }

  /// Takes up to `count` contiguous blocks: all of them if there is such a run, else the first free
  /// run. @return nullopt: no block is free. Cost: up to one scan of the bitmap (64 GiB: 2 MiB).
  [[nodiscard]] std::optional<BlockRun> take(std::uint32_t count);
  /// Takes exactly these blocks. @return false: out of range or one of them is in use; nothing
  /// changed.
  [[nodiscard]] bool claim(BlockRun run);
  /// Frees blocks in use.
  void give(BlockRun run);

 private:
  [[nodiscard]] BlockRun run_from(std::uint32_t begin, std::uint32_t end,
                                  std::uint32_t count) const;
  void mark(BlockRun run);

  std::uint32_t blocks_;
  std::uint32_t free_;
  std::uint32_t cursor_ = 0;   ///< end of the last run; the next search begins there
  std::uint32_t none_of_ = 0;  ///< if not 0: there is no free run of this many blocks
  std::vector<std::uint64_t> used_;
};

}  // namespace ho::flash
