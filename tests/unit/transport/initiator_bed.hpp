#pragma once

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/transport/striping/initiator.hpp"
#include "tests/support/sim_transport.hpp"
#include "tests/support/stderr_capture.hpp"
#include "tests/unit/transport/fake_rails.hpp"

namespace ho::transport::test {

using ho::test::SimClock;
using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Fenced { kNo, kYes };

/// An initiator that is connected to one peer, "ab": two rails.
struct Bed {
  explicit Bed(Fenced fenced = Fenced::kYes, const std::string& address = "ab",
               InitiatorOptions options = {64, 4 * kMiB}, bool has_classes = false) {
    auto owned = std::make_unique<FakeDriver>(has_classes);
    driver = owned.get();
    initiator.emplace(std::move(owned), options, clock);
    PeerAddress there{NodeId(1), address, {SessionId(5), "token"}, {}};
    if (fenced == Fenced::kYes) there.fence = fences.request();
    const auto connected = initiator->connect(there, clock.now() + seconds(1));
    REQUIRE(connected.ok());
    peer = *connected;
    region = *initiator->attach(peer, grant());
    local = *initiator->register_memory(memory);
  }
  [[nodiscard]] static RegionGrant grant() {
    RegionGrant out;
    out.key = "good";
    out.length_bytes = 8 * kMiB;
    return out;
  }
  [[nodiscard]] Result<void> get(std::uint64_t op, std::uint64_t bytes = 4096,
                                 Duration deadline = seconds(10)) {
    return initiator->submit(MemoryOp{Direction::kGet, OpId(op), std::span(memory).first(bytes),
                                      local, region, 0, clock.now() + deadline});
  }
  [[nodiscard]] Result<void> put(std::uint64_t op, std::uint64_t bytes = 4096,
                                 Duration deadline = seconds(10)) {
    return initiator->submit(MemoryOp{Direction::kPut, OpId(op), std::span(memory).first(bytes),
                                      local, region, 0, clock.now() + deadline});
  }
  /// Polls a few times; time stands still.
  std::map<std::uint64_t, Errc> turn() {
    std::map<std::uint64_t, Errc> ended;
    for (int i = 0; i < 4; ++i) {
      std::array<Completion, 16> some;
      const std::size_t count = initiator->poll(some);
      for (std::size_t k = 0; k < count; ++k) ended[some[k].op.value()] = some[k].code;
    }
    return ended;
  }
  /// In small steps, as a process that runs polls.
  std::map<std::uint64_t, Errc> pass(Duration time) {
    std::map<std::uint64_t, Errc> ended;
    for (const TimePoint end = clock.now() + time; clock.now() < end;) {
      clock.advance(milliseconds(50));
      ended.merge(turn());
    }
    return ended;
  }
  [[nodiscard]] FakeRail& rail(std::uint32_t number) const { return driver->rail(number); }

  SimClock clock;
  FakeFences fences;
  std::vector<std::byte> memory = std::vector<std::byte>(8 * kMiB);
  FakeDriver* driver = nullptr;
  std::optional<Initiator> initiator;  ///< ends before what it uses
  PeerId peer;
  RegionId region;
  LocalId local;
  const ho::test::StderrCapture log;  ///< rails come and go
};

}  // namespace ho::transport::test
