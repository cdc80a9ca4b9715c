#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport::tcp {

/// One direction of one rail, divided among sessions while several want it: owners get parts by
/// weight, the classes of traffic of one owner parts of theirs (16, 4 and 2), and sessions equal
/// parts of a class. What one leaves, the others share (hierarchical start-time fair queueing;
/// Goyal, Vin and Cheng, 1996). Owners get their minimum rates first.
///
/// In each round the caller asks for each connection that may have bytes to move how many it may,
/// and says how many it did. Pure: time comes from the caller. One thread.
class LinkTurns {
 public:
  enum class Way : std::uint8_t { kIn, kOut };
  /// Small operations, and headers, wait only where their flow is far ahead.
  enum class Size : std::uint8_t { kLarge, kSmall };

  /// What the heaviest owner moves at a time while others wait, on a slow link less; the others
  /// less than that, by weight.
  static constexpr std::uint64_t kTurnBytes = 1U << 20U;
  /// Less is not given out: each call to the kernel has its price.
  static constexpr std::uint64_t kPartBytes = 64U << 10U;
  /// A flow that waited for so long gets a part, whatever its weight: its job must not take the
  /// node for lost.
  static constexpr Duration kWaitMax = std::chrono::milliseconds(200);

  class Flow;

  /// @param bytes_per_s  what the link carries; 0: not known, then flows only take turns.
  LinkTurns(Way way, std::uint64_t bytes_per_s);
  LinkTurns(const LinkTurns&) = delete;
  LinkTurns& operator=(const LinkTurns&) = delete;
  ~LinkTurns();

  /// A session's part of one class; valid until leave(). An owner's weight and minimum are those
  /// named last.
  [[nodiscard]] Flow& join(const LinkShare& share, TrafficClass traffic = TrafficClass::kDeadline);
  void leave(Flow& flow);

  void begin_round(TimePoint now);
  /// Whether the flow's owner has not had its minimum: such flows are asked before the others.
  [[nodiscard]] bool owed(const Flow& flow) const;
  /// Bytes that the flow may move now. 0: it waits, for the others or for the link, and is asked
  /// for again in the next round.
  [[nodiscard]] std::uint64_t allowance(Flow& flow, Size size);
  /// After allowance() in the same round: what was moved.
  void moved(Flow& flow, std::uint64_t bytes);
  /// There is more to move, as far as the caller knows: others share the link with the flow in the
  /// next round.
  void want(Flow& flow);

  /// Until the link carries more; zero: it does now.
  [[nodiscard]] Duration until_free() const;

 private:
  struct Node;
  struct Owner;

  /// Bytes that may be moved: they come in at a rate, and some are kept.
  class Bucket {
   public:
    Bucket(std::uint64_t bytes_per_s, double seconds_max);
    void fill(TimePoint now);
    /// @param debt_bytes_max  what is taken beyond it is forgotten.
    void take(std::uint64_t bytes, double debt_bytes_max);
    [[nodiscard]] bool limits() const { return bytes_per_s_ > 0; }
    [[nodiscard]] std::uint64_t bytes_per_s() const { return bytes_per_s_; }
    [[nodiscard]] double bytes() const { return bytes_; }
    /// Until it is half full.
    [[nodiscard]] Duration until_half() const;

   private:
    std::uint64_t bytes_per_s_;  ///< 0: there is no limit
    double bytes_max_;
    double bytes_;  ///< below 0: moved ahead of its time
    TimePoint filled_{};
  };

  /// What a flow, or all below a node, may move at once while it has rivals; 0: it waits.
  [[nodiscard]] double turn_of(const Node& node, double ahead_max) const;
  void mark_waiting(Flow& flow);
  void catch_up(Flow& flow);

  const Way way_;
  Bucket link_;
  double turn_;                                           ///< bytes
  std::map<std::string, std::unique_ptr<Owner>> owners_;  ///< also those without sessions
  std::vector<Flow*> waiting_;                            ///< wanted more in the last round
  std::vector<Flow*> wanting_;                            ///< want more in this one
  TimePoint now_{};
  std::unique_ptr<Node> root_;  ///< the link; owners are below it
  std::size_t flows_ = 0;
};

}  // namespace ho::transport::tcp
