#pragma once

#include <cstdint>

#include "client/transfer/arena_map.hpp"
#include "common/model/op.hpp"

// The mover's own. An OpId names the transfer's slot, the node, and a number that makes it unique
// in flight.
namespace ho::client {

inline constexpr unsigned kPieceSlotBits = 16;
inline constexpr unsigned kPieceNodeBits = 12;
static_assert(kNodesMax <= (1U << kPieceNodeBits));

[[nodiscard]] inline OpId piece_id(std::uint32_t slot, NodeIndex node, std::uint64_t number) {
  return OpId((number << (kPieceSlotBits + kPieceNodeBits)) |
              (std::uint64_t{node.value()} << kPieceSlotBits) | slot);
}

[[nodiscard]] inline std::uint32_t slot_of(OpId op) {
  return static_cast<std::uint32_t>(op.value() & ((1U << kPieceSlotBits) - 1));
}

[[nodiscard]] inline NodeIndex node_of(OpId op) {
  return NodeIndex(
      static_cast<std::uint32_t>((op.value() >> kPieceSlotBits) & ((1U << kPieceNodeBits) - 1)));
}

}  // namespace ho::client
