#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ofi/connection.hpp"

namespace ho::transport {

/// Slots with pieces still to post, first come first served.
class SlotRing {
 public:
  explicit SlotRing(std::size_t depth) : slots_(depth) {}
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::uint32_t front() const {
    HO_CHECK(count_ > 0);
    return slots_[head_];
  }
  void pop() {
    HO_CHECK(count_ > 0);
    head_ = (head_ + 1) % slots_.size();
    --count_;
  }
  void push(std::uint32_t slot) {
    HO_CHECK(count_ < slots_.size());
    slots_[(head_ + count_) % slots_.size()] = slot;
    ++count_;
  }
  void clear() { count_ = 0; }

 private:
  std::vector<std::uint32_t> slots_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

/// The connections to one target: one for small operations, so that none waits behind the bytes of
/// large ones, and some that share the pieces of large ones. They live and fail together. Owner
/// thread: the transport's.
class Lanes {
 public:
  static constexpr std::uint32_t kLargeMax = 16;
  struct Options {
    std::uint32_t large = 1;             ///< connections for large operations, 1 .. kLargeMax
    std::uint64_t flight_bytes_max = 0;  ///< of large operations, over all of them
  };
  enum class Kind { kSmall, kLarge };

  /// None: closed.
  Lanes() = default;
  /// Connects them one after the other. @return as Connection::create().
  [[nodiscard]] static Result<Lanes> create(const OfiAddress& address, const Endpoint::Reach& how,
                                            const Options& options, const Clock& clock,
                                            TimePoint deadline);
  [[nodiscard]] bool open() const { return !lanes_.empty(); }
  /// Afterwards libfabric knows none of the pieces and buffers in flight any more.
  void close();

  /// On all or none.
  [[nodiscard]] Result<void> add_memory(LocalId id, std::span<std::byte> memory);
  void remove_memory(LocalId id);

  /// Whether another piece of a large operation may go out now. Both processes move whatever a
  /// socket takes before they look at the next one, so a small operation waits for about as much as
  /// is in flight; but much in flight keeps the wire busy while either process does not run. So
  /// there may be little beside small operations, and flight_bytes_max otherwise.
  [[nodiscard]] bool room_for_large() const;
  struct Transfer {
    Connection::Place place;
    Kind kind = Kind::kSmall;
    bool is_get = false;
  };
  /// A large operation's goes to the lane that has the least to do. @return as Connection::read().
  [[nodiscard]] std::int64_t post(Piece& piece, const Transfer& transfer);
  /// The piece has come back.
  void ended(const Piece& piece);

  /// Notes the time, and what is in flight now. Before the lanes are polled.
  void look(TimePoint now);
  [[nodiscard]] std::size_t size() const { return lanes_.size(); }
  [[nodiscard]] bool idle(std::size_t lane) const { return lanes_[lane].pieces_in_flight == 0; }
  [[nodiscard]] std::size_t poll(std::size_t lane, std::span<Connection::Event> out) {
    return lanes_[lane].connection->poll(out);
  }

 private:
  struct Lane {
    std::unique_ptr<Connection> connection;
    std::size_t pieces_in_flight = 0;
    std::uint64_t flight_bytes = 0;
  };
  [[nodiscard]] std::uint32_t idlest_large() const;

  Options options_;
  std::vector<Lane> lanes_;  ///< the first for small operations
  std::uint64_t large_bytes_ = 0;
  TimePoint now_{};
  TimePoint last_small_{};  ///< when a small operation was last seen in flight
};

}  // namespace ho::transport
