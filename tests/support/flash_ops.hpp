#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/tier/flash/store/transfer.hpp"

namespace ho::test {

inline flash::TransferOp read_op(OpId op, flash::ExtentId extent, std::uint64_t offset_bytes,
                                 std::span<std::byte> into) {
  return {op, StageDirection::kIn, extent, offset_bytes, into};
}

inline flash::TransferOp write_op(OpId op, flash::ExtentId extent, std::uint64_t offset_bytes,
                                  std::span<const std::byte> from) {
  // The store only reads what it writes to flash.
  const std::span<std::byte> memory(const_cast<std::byte*>(from.data()), from.size());
  return {op, StageDirection::kOut, extent, offset_bytes, memory};
}

}  // namespace ho::test
