#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/clock.hpp"
#include "common/transport/ofi/connection.hpp"
#include "common/transport/ofi/lanes.hpp"
#include "common/transport/ofi/wire.hpp"
#include "common/transport/striping/request.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// One target as the initiator keeps it, from connect() on.
struct Peer {
  Lanes lanes;
  SlotRing small;
  SlotRing large;
  std::vector<Piece*> again;  ///< lost with a rail, to be posted on another; in no order
  std::vector<Piece*> held;   ///< puts among them, until the lanes have settled

  Peer(std::size_t depth, std::size_t pieces) : small(depth), large(depth) {
    again.reserve(pieces);
    held.reserve(pieces);
  }
  [[nodiscard]] bool open() const { return lanes.open(); }
  [[nodiscard]] bool waits() const {
    return !small.empty() || !large.empty() || !again.empty() || !held.empty();
  }
};

struct Region {
  Peer* peer = nullptr;
  std::vector<RemoteKey> keys;  ///< by rail; alike but for key and base
};

/// An operation under way.
struct Slot {
  Request request;
  Peer* peer = nullptr;            ///< null: free
  const Region* region = nullptr;  ///< outlives the operation
  std::uint64_t posted_bytes = 0;
  std::uint64_t done_bytes = 0;
  TimePoint repeat_end{};  ///< once it has lost a piece with a rail: as long it may take
};

}  // namespace ho::transport
