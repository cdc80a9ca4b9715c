#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/transfer/stager.hpp"
#include "common/base/prng.hpp"

namespace ho::test {

/// Simulated staging on several nodes, in one thread. Each operation takes a random time and moves
/// its bytes at its end. Operations in flight end in any order. Keeps the true bytes; injects the
/// faults.
class SimStager : public client::Stager {
 public:
  struct Options {
    Duration delay_max = std::chrono::microseconds(200);
    std::uint64_t op_bytes_max = 4096;
    std::uint32_t depth_ops = 8;
    double failure = 0;  ///< probability per operation, as by a bad block
  };
  /// The bytes of a segment.
  using Segment = std::function<std::span<std::byte>(client::NodeIndex, SegmentId)>;

  SimStager(const Clock& clock, Options options, std::uint64_t seed, Segment segment);

  /// The flash of a node: one extent for all extent ids.
  [[nodiscard]] std::vector<std::byte>& flash(client::NodeIndex node);

  void kill(client::NodeIndex node);  ///< operations there end with kUnavailable, now and later
  void stop(client::NodeIndex node);  ///< operations there end by their deadline only

  [[nodiscard]] std::uint64_t op_bytes_max() const override { return options_.op_bytes_max; }
  [[nodiscard]] Result<void> submit(const client::StageOp& op) override;
  std::size_t poll(std::span<Completion> out) override;
  [[nodiscard]] std::string explain(OpId) const override { return "simulated"; }

  [[nodiscard]] std::optional<TimePoint> next_event() const;
  [[nodiscard]] std::uint64_t moved() const { return moved_; }

 private:
  enum class NodeState : std::uint8_t { kUp, kStopped, kDead };
  struct Flight {
    client::StageOp op;
    TimePoint ends;
    Errc code = Errc::kOk;
  };
  struct Node {
    std::vector<std::byte> flash;
    NodeState state = NodeState::kUp;
  };
  [[nodiscard]] Node& node_of(client::NodeIndex node);
  [[nodiscard]] TimePoint end_of(const Flight& flight) const;
  void move(const client::StageOp& op);

  const Clock& clock_;
  const Options options_;
  Prng random_;
  Segment segment_;
  std::deque<Node> nodes_;
  std::vector<Flight> flights_;
  std::uint64_t moved_ = 0;
};

}  // namespace ho::test
