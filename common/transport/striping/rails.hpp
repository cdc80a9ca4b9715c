#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/striping/rail_retry.hpp"

namespace ho::transport {

/// All rails of one peer: which of them takes the next operation, which is lost, and when one is
/// connected again. Owner thread: the initiator's.
///
///            +-------------------------- fails, or has no answer in time --------+
///            v                                                                   |
///     out --its retry is due--> connecting --> open --lost--> ending --> out ...
///
/// An open rail is lost when its connection breaks, or when it has operations in flight and nothing
/// has moved on it for kSilence while another rail is open. It is `ending` until it is closed here
/// and the peer has answered the fence; only then may its puts be repeated. Time decides when a
/// rail is given up, never when a put is repeated.
class Rails {
 public:
  /// Longer than TCP takes to repeat a lost packet (0.2 s), and short enough that an operation of
  /// 1.5 s, the default, is repeated in time.
  static constexpr Duration kSilence = std::chrono::milliseconds(500);
  /// For an attempt beside other rails. A link that is up takes milliseconds, an emulated device up
  /// to a second.
  static constexpr Duration kConnectTime = std::chrono::seconds(3);
  /// How long connect() waits for the others once one rail is open. They go on connecting later.
  static constexpr Duration kOthersTime = std::chrono::milliseconds(250);

  /// Connects; blocks. Rails that do not answer are tried again later, and the log says so.
  /// @param driver, clock, generation outlive it; the last is counted on by each attempt.
  /// @return where none is open by the deadline: what the first
  /// answered; kDeadline.
  [[nodiscard]] static Result<std::unique_ptr<Rails>> connect(RailDriver& driver,
                                                              std::uint32_t& generation,
                                                              const PeerAddress& peer,
                                                              const Clock& clock,
                                                              TimePoint deadline);
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;
  ~Rails() = default;

  [[nodiscard]] std::size_t count() const { return rails_.size(); }
  /// Makes a region usable on all open rails, the first of which tries its key; on the others once
  /// they are open. @return as Rail::add().
  [[nodiscard]] Result<void> add(RemoteRegion& region, TimePoint now, TimePoint deadline);

  /// Takes an operation. @return the rail that has it; nothing: none is open or has room.
  [[nodiscard]] std::optional<std::uint32_t> post(RailOp& op);
  /// An operation has come back from a rail.
  void ended(std::uint32_t rail, const RailOp& op);
  /// A posted operation is given back, as Rail::give_back().
  void give_back(std::uint32_t rail, RailOp& op) {
    if (rails_[rail].rail->state() == Rail::State::kOpen) rails_[rail].rail->give_back(op);
  }
  /// How long nothing has moved on any open rail that has operations, of the time that was watched;
  /// zero where none has.
  [[nodiscard]] Duration silence() const;
  /// When something moved last on a rail that has operations.
  [[nodiscard]] TimePoint moved_at(std::uint32_t rail) const { return rails_[rail].moved; }
  /// On any that is open.
  [[nodiscard]] TimePoint moved_at() const;
  /// In flight.
  [[nodiscard]] std::uint64_t bytes(LaneKind kind) const {
    return bytes_[static_cast<std::size_t>(kind)];
  }

  /// The time of a poll.
  struct Turn {
    TimePoint now;
    Duration forgiven{};  ///< up to now, in which this process did not run
    Duration watched{};   ///< up to now, since the last poll
  };
  /// Moves everything on. Operations that end are appended to `ended`.
  void progress(const Turn& turn, std::vector<RailOp*>& ended);
  /// Moves states on, after ended() had all that came back; opens rails for `regions`.
  /// @return the peer is lost: its device refused an access, there is no fence, or that failed.
  [[nodiscard]] std::optional<Error> advance(TimePoint now, std::span<RemoteRegion* const> regions);
  /// Whether old puts of the rail may still come in.
  [[nodiscard]] bool ending(std::uint32_t rail) const {
    return rails_[rail].state == State::kEnding;
  }

  /// Closes all by force. Every operation comes back by progress().
  void close();
  [[nodiscard]] bool closed() const;

 private:
  enum class State : std::uint8_t { kOut, kConnecting, kOpen, kEnding };
  struct Entry {
    std::uint32_t number = 0;
    State state = State::kOut;
    std::string address;
    std::unique_ptr<Rail> rail;                     ///< null: out, or ended here
    std::uint32_t generation = 0;                   ///< of the last attempt
    std::array<std::uint64_t, kLaneKinds> bytes{};  ///< in flight
    std::uint32_t ops = 0;                          ///< in flight
    TimePoint moved;                                ///< when something moved last, or it was idle
    bool rested = false;                            ///< an operation was posted when it had none
    Duration silent{};                              ///< watched since then
    TimePoint connect_end;
    std::optional<std::future<Result<std::string>>> fence;
    RailRetry retry;
    std::string why;  ///< it is out, as the log has it
    [[nodiscard]] std::uint64_t all_bytes() const {
      return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
    }
  };

  Rails(RailDriver& driver, std::uint32_t& generation, const PeerAddress& peer,
        std::vector<std::string> addresses);
  [[nodiscard]] Result<void> begin(std::uint32_t number, TimePoint now, bool may_block);
  void wait_for_some(const Clock& clock, TimePoint end);
  [[nodiscard]] std::optional<Error> lose(std::uint32_t number, const Error& why);
  [[nodiscard]] std::optional<Error> advance_ending(Entry& entry, TimePoint now);
  void advance_connecting(Entry& entry, TimePoint now, std::span<RemoteRegion* const> regions);
  void stay_out(Entry& entry, const Error& why, TimePoint now);
  [[nodiscard]] std::size_t open_count() const;
  [[nodiscard]] bool silent(const Entry& entry, TimePoint now) const;

  RailDriver& driver_;
  std::uint32_t& generation_;
  const PeerAddress peer_;
  std::vector<Entry> rails_;
  std::array<std::uint64_t, kLaneKinds> bytes_{};  ///< in flight on all rails
};

}  // namespace ho::transport
