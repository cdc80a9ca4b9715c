#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ofi/connection.hpp"
#include "common/transport/ofi/rail_try.hpp"
#include "common/transport/ofi/sockets.hpp"
#include "common/transport/striping/lane_loads.hpp"
#include "common/transport/striping/rail_turn.hpp"

namespace ho::transport {

/// The connections to one target: on each of its rails one for small operations, so that none waits
/// behind the bytes of large ones, and some that share the pieces of large ones. Those of a rail
/// live and fail together; LaneLoads says which is used, and when a rail is given up; RailTurn,
/// when it is tried again. Owner thread: the transport's.
class Lanes {
 public:
  static constexpr std::uint32_t kLargeMax = 16;
  struct Options {
    Endpoint::Reach how = {};         ///< its source is filled in for each rail
    std::string source_address = {};  ///< numeric; empty: any
    std::uint32_t large = 1;  ///< connections of a rail for large operations, 1 .. kLargeMax
    std::uint64_t flight_bytes_max = 0;  ///< of large operations, over all of them
  };
  /// One address of the target, and how it is reached.
  struct Rail {
    OfiAddress address;
    Endpoint::Reach how;
  };

  /// None: closed.
  Lanes() = default;
  /// Connects them one after the other. Rails that do not answer are left out, and the log says so.
  /// @return where none does: as Connection::create() and knock() for the first.
  [[nodiscard]] static Result<Lanes> create(std::span<const OfiAddress> rails,
                                            const Options& options, const Clock& clock,
                                            TimePoint deadline);
  [[nodiscard]] bool open() const { return loads_.living() > 0; }
  /// Afterwards libfabric knows none of the pieces and buffers in flight any more. A try that is
  /// under way is ended, and waited for when this object goes.
  void close();

  [[nodiscard]] std::span<const Rail> rails() const { return rails_; }
  [[nodiscard]] bool lives(std::uint32_t rail) const { return loads_.lives(rail); }
  [[nodiscard]] std::uint32_t living() const { return loads_.living(); }
  [[nodiscard]] std::uint32_t rail_of(std::size_t lane) const { return loads_.rail_of(lane); }
  /// Leaves a rail out: closes its lanes as close() does, and drops what they had not sent yet
  /// (Leavings says why). Others must live.
  void fail(std::uint32_t rail, std::string_view why);
  using Memories = std::unordered_map<LocalId, std::span<std::byte>>;
  /// Tries rails that are left out again, one at a time, and takes those back that answer. Never
  /// waits; registers `memories` for one that is taken back, where its provider wants that.
  void retry(const Memories& memories, const Clock& clock);
  /// Whether puts that a failed rail had in flight may be posted again.
  [[nodiscard]] bool settled() const { return loads_.settled(); }

  /// Tries a region's keys, given by rail, on a connection of its own: a refused key costs a
  /// connection, and that one is used by nobody. By the first rail that answers: whoever gave out
  /// one good key gave out all. Takes 1 s at most over TCP, 5 s over a device. @return as
  /// Connection::create() and Connection::probe().
  [[nodiscard]] Result<void> try_keys(std::span<const RemoteKey> keys, const Clock& clock) const;

  /// On all or none.
  [[nodiscard]] Result<void> add_memory(LocalId id, std::span<std::byte> memory);
  void remove_memory(LocalId id);

  [[nodiscard]] bool room_for_large() const { return loads_.room_for_large(); }
  /// Where a piece's bytes are, on both sides.
  struct Transfer {
    std::byte* local = nullptr;
    LocalId memory;
    std::uint64_t offset_bytes = 0;   ///< in the region
    std::span<const RemoteKey> keys;  ///< the region's, by rail
    LaneKind kind = LaneKind::kSmall;
    bool is_get = false;
  };
  /// @return as Connection::read(); piece.lane is the one that was tried last.
  [[nodiscard]] std::int64_t post(Piece& piece, const Transfer& transfer);
  /// The piece has come back.
  void ended(const Piece& piece) { loads_.ended(piece.lane, piece.length_bytes); }

  /// Notes the time, and what is in flight now. Before the lanes are polled.
  void look(TimePoint now) { loads_.look(now); }
  [[nodiscard]] std::size_t size() const { return connections_.size(); }
  [[nodiscard]] bool connected(std::size_t lane) const { return connections_[lane] != nullptr; }
  /// Nothing will come of polling it.
  [[nodiscard]] bool idle(std::size_t lane) const { return loads_.idle(lane) && !refused_[lane]; }
  [[nodiscard]] std::size_t poll(std::size_t lane, std::span<Connection::Event> out) {
    refused_[lane] = false;
    return connections_[lane]->poll(out);
  }
  /// Whether the event is no operation's, but about a sign of life that was asked for.
  [[nodiscard]] bool is_sign(std::size_t lane, const Connection::Event& event) const {
    return event.piece != nullptr && connections_[lane]->asked(event);
  }
  void sign_came(std::size_t lane) { loads_.sign_ended(lane); }
  /// After the lanes were polled. @return a rail that has been silent for too long; others live.
  [[nodiscard]] std::optional<std::uint32_t> tick();

 private:
  [[nodiscard]] Result<void> connect(std::uint32_t rail, const Clock& clock, TimePoint deadline);
  void drop(std::uint32_t rail, std::string_view why, TimePoint now);
  [[nodiscard]] Result<void> begin_try(std::uint32_t rail, const Clock& clock);
  [[nodiscard]] Result<void> end_try(const Memories& memories);
  /// A try has failed. The log says why, unless it said so last time.
  void still_out(std::uint32_t rail, const Error& error);

  std::vector<Rail> rails_;
  std::vector<RailTurn> turns_;    ///< by rail
  std::vector<std::string> whys_;  ///< by rail: why it is left out, as the log has it
  std::uint32_t lanes_of_rail_ = 0;
  std::unique_ptr<RailTry> try_;  ///< nullptr: none is under way
  LaneLoads loads_;
  Leavings leavings_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< by lane; nullptr: of a rail left out
  std::vector<bool> refused_;  ///< by lane: it took no piece and must be polled to take one again
};

}  // namespace ho::transport
