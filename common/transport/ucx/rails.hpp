#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/striping/lane_loads.hpp"
#include "common/transport/striping/rail_turn.hpp"
#include "common/transport/ucx/connection.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/rail_try.hpp"
#include "common/transport/ucx/wire.hpp"

namespace ho::transport {

/// The connections to one target, one on each rail. A rail is a device of ours and one of the
/// target's: there are as many as the side with more devices has. One fails for itself; LaneLoads
/// says which takes the next piece and which is silent, RailTurn when one that was given up is
/// tried again. Owner thread: the transport's.
///
///                  +-------------- it is connected and all has settled: revive() ----------------+
///                  v                                                                             |
///     open --fail()--> closing --all is back--> out --its turn has come--> probed --> connecting +
///                         ^                      ^-- no way there ------------+           |
///                         +------------------------ no answer, or give_up() --------------+
class UcxRails {
 public:
  /// How long connecting a rail may take beside others that live, and how long connect() waits for
  /// the rest once one is there. Where nothing is wrong: milliseconds; where devices are emulated,
  /// up to a second. Nobody waits for the former.
  static constexpr Duration kConnectTime = std::chrono::seconds(3);
  static constexpr Duration kOthersTime = std::chrono::milliseconds(250);
  /// Pieces in flight on one endpoint. Each takes two places at most of the device's queue, which
  /// has 256 (what is copied goes in parts of 8 KiB, and what is larger than 16 KiB is not copied:
  /// settings.cpp): of a queue that is full UCX cannot take anything back before the device has
  /// tried all it has, which takes it a second and more.
  static constexpr std::size_t kLanePiecesMax = 64;

  struct Trial {
    std::byte* scratch = nullptr;               ///< one byte,
    std::span<const UcxMemory> scratch_memory;  ///< registered with each device
  };
  /// Connects; rails that do not answer are left out, and the log says so. Which device of ours
  /// reaches which of the target's is tried out where the first pairs do not. May overrun the
  /// deadline by 1 s for each rail whose address the kernel has to find out and does not.
  /// @param contexts outlive it. @param ended as UcxConnection::begin().
  /// @return where none does: kUnavailable; kDeadline; kUnsupported.
  [[nodiscard]] static Result<std::unique_ptr<UcxRails>> connect(
      const UcxContexts& contexts, std::vector<UcxWorker> workers, const Trial& trial,
      const Clock& clock, TimePoint deadline, std::vector<UcxPiece*>& ended);
  UcxRails(const UcxRails&) = delete;
  UcxRails& operator=(const UcxRails&) = delete;
  ~UcxRails() = default;

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(rails_.size()); }
  [[nodiscard]] std::size_t workers() const { return workers_.size(); }
  [[nodiscard]] bool lives(std::uint32_t rail) const { return loads_.lives(rail); }
  [[nodiscard]] std::uint32_t living() const { return loads_.living(); }
  /// Of one that lives: its connection has ended.
  [[nodiscard]] bool failed(std::uint32_t rail) const {
    return rails_[rail].bad || rails_[rail].connection->failed();
  }

  /// Tries a key, given by worker, on the first rail that answers: whoever gave out one good key
  /// gave out all. @return as UcxConnection::try_key().
  [[nodiscard]] Result<void> try_key(const UcxKey& key, const Clock& clock, TimePoint deadline);
  /// The key for a rail that lives or is ready.
  [[nodiscard]] Result<UcxKeys> unpack(std::uint32_t rail, const UcxKey& key) const;

  /// Where a piece's bytes are, on both sides.
  struct Transfer {
    std::byte* local = nullptr;
    std::span<const UcxMemory> memory;  ///< by our devices
    std::uint64_t remote = 0;
    std::span<const UcxKeys> keys;  ///< by rail
    LaneKind kind = LaneKind::kSmall;
    bool is_get = false;
  };
  /// @return whether it was posted: not where no rail is left, or has room now.
  [[nodiscard]] bool post(UcxPiece& piece, const Transfer& transfer);
  /// Makes the puts so far end. Cheap where there are none.
  void flush();
  /// A piece has come back. Before anything else is done about it.
  void ended(const UcxPiece& piece);
  [[nodiscard]] std::uint32_t rail_of(const UcxPiece& piece) const {
    return loads_.rail_of(piece.lane);
  }
  /// Of large operations, in flight.
  [[nodiscard]] std::uint64_t large_bytes() const { return loads_.large_bytes(); }
  /// Whether puts that a failed rail had in flight may be posted again.
  [[nodiscard]] bool settled() const { return loads_.settled(); }

  /// Leaves a rail that lives out; others live. What is in flight on it comes back, with a failure
  /// unless it had ended.
  void fail(std::uint32_t rail, std::string_view why);
  /// Notes the time. Before progress is made.
  void look(TimePoint now) { loads_.look(now); }
  /// Moves rails that do not live on; asks idle ones for signs of life. After progress was made.
  /// @return one that has been silent for too long; others live.
  [[nodiscard]] std::optional<std::uint32_t> serve();
  /// One that was left out and could be used again: for revive() or give_up().
  [[nodiscard]] std::optional<std::uint32_t> ready() const;
  void revive(std::uint32_t rail);
  void give_up(std::uint32_t rail, const Error& why);
  /// Closes all by force. Every piece in flight comes back.
  void start_close();
  /// Whether no piece and no endpoint is left.
  [[nodiscard]] bool closed();

 private:
  enum class State { kOut, kProbed, kConnecting, kConnected, kOpen, kClosing };
  struct Rail {
    State state = State::kOut;
    std::size_t device = 0;  ///< ours
    std::size_t worker = 0;  ///< the target's
    bool bad = false;        ///< no answer, though its connection has not failed
    std::uint32_t in_flight = 0;
    std::unique_ptr<UcxRailTry> probe;
    TimePoint connect_end;
    TimePoint seen;  ///< while it connects: when that was last looked at
    RailTurn turn;
    std::optional<Error> why;  ///< why it is left out, as the log has it
    UcxPiece sign;
    UcxKeys hello;  ///< the connection's, once a sign was asked for
    /// Last, so that it goes first: while it closes, its pieces and keys are in use.
    std::unique_ptr<UcxConnection> connection;
  };

  UcxRails(const UcxContexts& contexts, std::vector<UcxWorker> workers, const Trial& trial,
           std::vector<UcxPiece*>& ended);
  [[nodiscard]] Result<void> begin(Rail& rail, TimePoint now);
  void begin_all(std::size_t places, TimePoint now);
  void wait_for_some(const Clock& clock, TimePoint end);
  [[nodiscard]] Error why_none() const;
  void go_on(Rail& rail);
  [[nodiscard]] Result<void> probe(Rail& rail);
  void go_on_connecting(Rail& rail);
  void still_out(Rail& rail, const Error& why);
  static void close(Rail& rail);
  void ask(std::uint32_t rail);
  [[nodiscard]] std::string describe(const Rail& rail) const;
  void log_left_out(const Rail& rail) const;

  const UcxContexts& contexts_;
  const std::vector<UcxWorker> workers_;
  const Trial trial_;
  std::vector<UcxPiece*>& ended_;
  LaneLoads loads_;
  std::vector<Rail> rails_;  ///< of constant size: signs are lent out
};

}  // namespace ho::transport
