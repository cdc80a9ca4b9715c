#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/transfer/mover.hpp"
#include "tests/support/sim_transport.hpp"

namespace ho::test {

using client::ArenaExtent;
using client::ArenaMap;
using client::Direction;
using client::DriverIndex;
using client::Mover;
using client::NodeIndex;
using client::Transfer;
using client::TransferDone;

/// A mover over one simulated node with two segments, of 1000 bytes each by default, that form one
/// arena.
struct MoverBench {
  explicit MoverBench(const SimLink& link = {}, std::uint64_t piece_bytes = 64,
                      std::uint32_t pieces_max = 4, std::uint64_t segment_bytes = 1000)
      : transport(fabric, clock, link, 7), segments(2, std::vector<std::byte>(segment_bytes)) {
    fabric.add_peer("a");
    peer = *transport.connect({NodeId(0), "a"}, clock.now() + Duration(1'000'000'000));
    std::vector<ArenaExtent> extents;
    for (auto& segment : segments) {
      auto grant = fabric.expose("a", segment, transport::Rights::kReadWrite);
      const auto region = *transport.attach(peer, std::move(grant));
      extents.push_back(
          {segment_bytes * extents.size(), segment_bytes, DriverIndex(0), NodeIndex(3), region, 0});
    }
    arena = ArenaMap(std::move(extents));
    memory.resize(4 * segment_bytes);
    handles[0] = *transport.register_memory(memory);
    client::DriverPort port;
    port.transport = &transport;
    port.piece_bytes = piece_bytes;
    port.pieces_max = pieces_max;
    port.small_pieces_max = pieces_max;
    port.op_deadline = std::chrono::milliseconds(10);
    mover.emplace(std::vector<client::DriverPort>{port}, clock);
    for (auto& fault : faults) {
      fault = std::make_shared<client::NodeFault>(std::make_shared<client::Doorbell>());
      mover->add_lease(fault);
    }
  }

  Transfer transfer(Direction direction, std::uint64_t cookie, std::uint64_t offset,
                    std::uint64_t at, std::uint64_t bytes) {
    Transfer made;
    made.cookie = cookie;
    made.direction = direction;
    made.arena = &arena;
    made.arena_offset_bytes = offset;
    made.memory = memory.data() + at;
    made.bytes = bytes;
    made.local = handles;
    return made;
  }

  std::vector<TransferDone> run() {
    std::vector<TransferDone> all;
    for (int turn = 0; mover->in_flight() > 0; ++turn) {
      REQUIRE(turn < 100000);
      mover->pump(0);
      TransferDone done[2];
      const std::size_t count = mover->poll(done);
      all.insert(all.end(), done, done + count);
      clock.advance(Duration(1000));
    }
    return all;
  }

  SimClock clock;
  SimFabric fabric;
  SimTransport transport;
  transport::PeerId peer;
  std::vector<std::vector<std::byte>> segments;
  std::vector<std::byte> memory;
  ArenaMap arena;
  client::LocalHandles handles;
  std::array<std::shared_ptr<client::NodeFault>, 4> faults;
  std::optional<Mover> mover;
};

/// Fails all it has accepted, each with a text of its own.
class RefusingStager : public client::Stager {
 public:
  [[nodiscard]] std::uint64_t op_bytes_max() const override { return 64; }
  [[nodiscard]] Result<void> submit(const client::StageOp& op) override {
    held.push_back(op);
    return {};
  }
  std::size_t poll(std::span<Completion> out) override {
    const std::size_t count = std::min(out.size(), held.size());
    for (std::size_t i = 0; i < count; ++i) out[i] = {held[i].op, Errc::kCorrupt, 0};
    for (std::size_t i = 0; i < count; ++i) ended.push_back(held[i]);
    held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  [[nodiscard]] std::string explain(OpId op) const override {
    for (const client::StageOp& one : ended) {
      if (one.op == op) return "block at " + std::to_string(one.flash.offset_bytes);
    }
    return "";
  }

  std::vector<client::StageOp> held;
  std::vector<client::StageOp> ended;
};

}  // namespace ho::test
