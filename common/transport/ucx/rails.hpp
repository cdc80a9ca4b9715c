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

/// The connections to one target, one on each rail. A rail is a pair of a local device and one of
/// the target's; there are as many as the side with more devices has. Rails fail independently.
/// LaneLoads says which takes the next piece and which is silent, RailTurn when a rail that was
/// given up is tried again. Owner thread: the transport's.
///
///                  +-------------- it is connected and all has settled: revive() ----------------+
///                  v                                                                             |
///     open --fail()--> closing --all is back--> out --its turn has come--> probed --> connecting +
///                         ^                      ^-- no way there ------------+           |
///                         +------------------------ no answer, or give_up() --------------+
class UcxRails {
 public:
  /// How long a rail may take to connect while others live (no transfer waits for it), and how long
  /// connect() waits for the rest once one is connected. Usual: milliseconds, or up to a second if
  /// devices are emulated.
  static constexpr Duration kConnectTime = std::chrono::seconds(3);
  static constexpr Duration kOthersTime = std::chrono::milliseconds(250);
  /// Pieces in flight on one endpoint. A piece takes at most two of the 256 places in the device's
  /// queue: UCX copies pieces up to 16 KiB in parts of 8 KiB, larger ones not at all
  /// (settings.cpp). If the queue were full, UCX could not cancel anything before the device has
  /// tried all of it, which takes a second or more.
  static constexpr std::size_t kLanePiecesMax = 64;

  struct Trial {
    std::byte* scratch = nullptr;               ///< one byte,
    std::span<const UcxMemory> scratch_memory;  ///< registered with each device
  };
  /// Connects; rails that do not answer are left out, and the log says so. If the first pairs of
  /// devices do not connect, tries other pairs. May overrun the deadline by 1 s for each rail whose
  /// address the kernel cannot resolve.
  /// @param contexts outlive it. @param ended as UcxConnection::begin().
  /// @return if no rail connects: kUnavailable; kDeadline; kUnsupported.
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
  /// Whether the connection of a living rail has ended.
  [[nodiscard]] bool failed(std::uint32_t rail) const {
    return rails_[rail].bad || rails_[rail].connection->failed();
  }

  /// Tries a key, which has a part for each worker, on the first rail that answers: a target whose
  /// key is good on one rail made all parts. @return as UcxConnection::try_key().
  [[nodiscard]] Result<void> try_key(const UcxKey& key, const Clock& clock, TimePoint deadline);
  /// Unpacks the key for a rail that lives or is ready.
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
  /// @return whether it was posted; false: no rail is left, or none has room now.
  [[nodiscard]] bool post(UcxPiece& piece, const Transfer& transfer);
  /// Flushes the puts posted so far. Cheap if there are none.
  void flush();
  /// Notes that a piece has come back. Call it before anything else uses the piece.
  void ended(const UcxPiece& piece);
  [[nodiscard]] std::uint32_t rail_of(const UcxPiece& piece) const {
    return loads_.rail_of(piece.lane);
  }
  /// Bytes of large operations in flight.
  [[nodiscard]] std::uint64_t large_bytes() const { return loads_.large_bytes(); }
  /// Whether puts that a failed rail had in flight may be posted again.
  [[nodiscard]] bool settled() const { return loads_.settled(); }

  /// Leaves out a living rail; others live. Its pieces in flight come back, with a failure unless
  /// they had ended.
  void fail(std::uint32_t rail, std::string_view why);
  /// Notes the time. Call it before the contexts make progress.
  void look(TimePoint now) { loads_.look(now); }
  /// Advances the state of rails that do not live; tests idle ones. Call it after the contexts made
  /// progress. @return a rail that has been silent for too long, while others live.
  [[nodiscard]] std::optional<std::uint32_t> serve();
  /// A rail that was left out and is connected again: for revive() or give_up().
  [[nodiscard]] std::optional<std::uint32_t> ready() const;
  void revive(std::uint32_t rail);
  void give_up(std::uint32_t rail, const Error& why);
  /// Closes all connections by force. Every piece in flight comes back.
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
    TimePoint seen;  ///< while it connects: the time of the last check
    RailTurn turn;
    std::optional<Error> why;  ///< why it is left out, as the log has it
    UcxPiece sign;
    UcxKeys hello;  ///< keys for the test reads, unpacked at the first
    /// Last member, so destroyed first: while it closes, its pieces and keys are in use.
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
  std::vector<Rail> rails_;  ///< its size never changes: UCX holds pointers to each `sign`
};

}  // namespace ho::transport
