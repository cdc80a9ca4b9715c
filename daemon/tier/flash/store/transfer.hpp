#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/model/op.hpp"
#include "common/model/stage_direction.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace ho::flash {

/// An extent and its parts on the paths.
struct Extent {
  ExtentInfo info;
  std::vector<Shard*> shards;  ///< by path; nullptr: none on that path
};

/// Moves bytes between an extent and memory.
struct TransferOp {
  OpId op;
  StageDirection direction = StageDirection::kIn;
  ExtentId extent;
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> memory;  ///< only read for kOut
};

/// Where an operation failed.
struct Fault {
  PathIndex path;
  ExtentId extent;
  std::uint64_t block = 0;        ///< block of 4 KiB within the extent
  std::uint64_t path_offset = 0;  ///< offset on the path
  bool path_full = false;         ///< a durable overwrite found no free block
};

/// An admitted transfer and its progress.
struct Transfer {
  TransferOp op;
  std::uint32_t tag = 0;  ///< defined by the store
  const Extent* extent = nullptr;
  std::uint64_t issued_bytes = 0;  ///< bytes for which chunks have started
  std::uint32_t chunks_open = 0;
  bool starting = false;  ///< the engine has more of it to start
  Errc code = Errc::kOk;  ///< code of the first failed chunk
  Fault fault;            ///< valid if code is not kOk

  [[nodiscard]] bool writes() const { return op.direction == StageDirection::kOut; }
  [[nodiscard]] bool durable_write() const {
    return writes() && extent->info.policy == Policy::kDurable;
  }
};

}  // namespace ho::flash
