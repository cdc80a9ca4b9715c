#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/clock.hpp"
#include "common/transport/striping/rail.hpp"

namespace ho::transport {

/// The load of the lanes of one peer's rails: which lane takes the next piece, whether a
/// large one may go out at all, and which rail has fallen silent. Pure: knows no connection.
///
/// A rail is one address of the target, and the link behind it. Lane 0 of each is for small
/// operations, the others for large ones; all are counted through, rail by rail.
///
/// Other rails make silence visible: a rail is silent while it has pieces in flight and nothing
/// comes back on one of its lanes, though on another rail something does. So neither a target that
/// is stopped or slow nor a pause of this process costs a rail. Time is cut into ticks; rails with
/// nothing in flight are asked for a sign of life at each.
///
///     living --fail()--> gone --revive()--> living
class LaneLoads {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(50);
  /// 0.5 s: longer than TCP takes to repeat a lost packet (0.2 s), and within the 1.5 s that
  /// operations have by default, so that they are repeated in time. It also means that a rail of
  /// less than 2 MiB/s is given up beside a living one, which it would only hold up.
  /// Lanes for large operations share their rail, so each of several waits as many times longer.
  static constexpr std::uint32_t kSilentTicksMax = 10;
  /// Puts of a rail that failed are repeated after so many ticks in which the target has answered
  /// on another one: by then it has served what it had received on the failed one, so that nothing
  /// old is written over what comes later. One more than needed, since the first is a part.
  static constexpr std::uint32_t kSettleTicks = 3;

  struct Shape {
    std::uint32_t rails = 0;             ///< 1 .. kRailsMax
    std::uint32_t large = 1;             ///< lanes of a rail for large operations
    std::uint64_t flight_bytes_max = 0;  ///< of large operations, over all of them
  };
  /// None.
  LaneLoads() = default;
  explicit LaneLoads(const Shape& shape);

  [[nodiscard]] std::size_t size() const { return lanes_.size(); }
  [[nodiscard]] std::uint32_t rails() const { return shape_.rails; }
  [[nodiscard]] std::uint32_t rail_of(std::size_t lane) const {
    return static_cast<std::uint32_t>(lane / stride());
  }
  [[nodiscard]] std::uint32_t small_lane(std::uint32_t rail) const { return rail * stride(); }
  [[nodiscard]] bool lives(std::uint32_t rail) const { return living_[rail]; }
  [[nodiscard]] std::uint32_t living() const { return living_count_; }
  /// Nothing has come back on it for a while: others are better.
  [[nodiscard]] bool in_question(std::uint32_t rail) const;
  [[nodiscard]] bool idle(std::size_t lane) const { return lanes_[lane].idle(); }
  /// In flight.
  [[nodiscard]] std::size_t pieces(std::size_t lane) const { return lanes_[lane].pieces; }

  /// A rail is gone, and what was in flight on it with it.
  void fail(std::uint32_t rail);
  /// It is there again, with nothing in flight. What it had must have settled.
  void revive(std::uint32_t rail);

  /// The lanes that the next piece may go on, best first: at most one of each living rail. Those of
  /// rails in question come last; else the one with the least in flight first, so that a slow rail
  /// gets less. @return how many.
  std::size_t candidates(LaneKind kind, std::span<std::uint32_t, kRailsMax> out) const;

  void began(std::size_t lane, std::uint32_t bytes);
  void ended(std::size_t lane, std::uint32_t bytes);
  /// A sign of life: a tiny read that only asks whether the target still answers. One at a time.
  void sign_began(std::size_t lane);
  void sign_ended(std::size_t lane);

  /// Whether another piece of a large operation may go out now. Both processes move whatever a
  /// socket takes before they look at the next one, so a small operation waits for about as much as
  /// is in flight; but much in flight keeps the wire busy while either process does not run. So
  /// there may be little beside small operations, and flight_bytes_max otherwise.
  [[nodiscard]] bool room_for_large() const;
  /// In flight, large operations only.
  [[nodiscard]] std::uint64_t large_bytes() const { return large_bytes_; }

  /// Notes the time, and what is in flight now. Before the lanes are polled.
  void look(TimePoint now);
  /// When that was last.
  [[nodiscard]] TimePoint now() const { return now_; }

  /// After the lanes were polled. @return a tick has ended: failing() and wants_sign() are new.
  bool tick();
  /// A rail that was silent for too long, or rails() for none.
  [[nodiscard]] std::uint32_t failing() const;
  /// Whether the rail, having nothing in flight itself, is to be asked for a sign of life: there is
  /// something in flight on others, or to be repeated.
  [[nodiscard]] bool wants_sign(std::uint32_t rail) const;
  /// Something of a failed rail is still on its way: the ticks count from now.
  void unsettle() { settle_ticks_ = kSettleTicks; }
  /// Whether the puts that failed rails had in flight may be repeated.
  [[nodiscard]] bool settled() const { return settle_ticks_ == 0; }

 private:
  struct Lane {
    std::size_t pieces = 0;
    std::uint64_t bytes = 0;
    std::uint32_t silent_ticks = 0;
    bool sign = false;      ///< one is in flight
    bool returned = false;  ///< something, in this tick
    bool waits = false;     ///< something was in flight when this tick began
    [[nodiscard]] bool idle() const { return pieces == 0 && !sign; }
  };
  [[nodiscard]] std::uint32_t stride() const { return 1 + shape_.large; }
  [[nodiscard]] bool is_small(std::size_t lane) const { return lane % stride() == 0; }
  [[nodiscard]] std::span<const Lane> of_rail(std::uint32_t rail) const {
    return {lanes_.data() + small_lane(rail), stride()};
  }
  [[nodiscard]] std::uint32_t idlest_large(std::uint32_t rail) const;
  [[nodiscard]] bool less_loaded(std::uint32_t left, std::uint32_t right) const;

  Shape shape_;
  std::vector<Lane> lanes_;
  std::array<bool, kRailsMax> living_{};
  std::uint32_t living_count_ = 0;
  std::uint64_t large_bytes_ = 0;
  std::size_t small_pieces_ = 0;
  std::uint32_t settle_ticks_ = 0;
  TimePoint now_{};
  TimePoint tick_began_{};
  TimePoint last_small_{};  ///< when a small operation was last seen in flight
};

}  // namespace ho::transport
