#pragma once

#include <rdma/fi_rma.h>

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ofi/endpoint.hpp"
#include "common/transport/ofi/wire.hpp"

namespace ho::transport {

/// One piece of an operation as libfabric sees it. Owned by the caller until it comes back.
struct Piece {
  static constexpr std::uint32_t kNoLane = UINT32_MAX;

  fi_context2 context{};           ///< libfabric's, while in flight; its address names the piece
  std::uint64_t offset_bytes = 0;  ///< in its operation
  std::uint32_t slot = 0;
  std::uint32_t length_bytes = 0;
  std::uint32_t lane = kNoLane;  ///< which of its peer's connections it is on
};

/// A working endpoint to one target. Owner thread: the transport's.
class Connection {
 public:
  /// Connects and reads the target's hello page. @return kUnavailable; kDeadline; kInvalidArgument
  /// (what answers is not a target of ours); kUnsupported.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> create(const OfiAddress& address,
                                                                  const Endpoint::Reach& how,
                                                                  const Clock& clock,
                                                                  TimePoint deadline);

  /// Reads one byte by `key`. @return kPermissionDenied where the target drops the connection over
  /// it (the connection is then of no more use); kDeadline.
  [[nodiscard]] Result<void> probe(const RemoteKey& key, const Clock& clock, TimePoint deadline);

  /// Makes memory usable for pieces under `id`, where the provider wants that.
  [[nodiscard]] Result<void> add_memory(LocalId id, std::span<std::byte> memory);
  void remove_memory(LocalId id) { memories_.erase(id); }

  /// Where a piece's bytes are, on both sides.
  struct Place {
    std::byte* local = nullptr;
    LocalId memory;
    std::uint64_t remote = 0;  ///< libfabric's address
    std::uint64_t key = 0;
  };
  /// @return 0, -FI_EAGAIN (poll and retry) or another libfabric code: nothing started then.
  [[nodiscard]] std::int64_t read(Piece& piece, const Place& place);
  /// Completes when visible at the target (FI_DELIVERY_COMPLETE).
  [[nodiscard]] std::int64_t write(Piece& piece, const Place& place);

  struct Event {
    Piece* piece = nullptr;  ///< null: the connection itself
    int code = 0;            ///< 0, or libfabric's (positive)
  };
  /// Reads the hello page once more, as a sign that the target still serves this connection. One at
  /// a time. @return as read().
  [[nodiscard]] std::int64_t ask(const RemoteKey& hello);
  /// Whether the event is the end of an ask().
  [[nodiscard]] bool asked(const Event& event) const { return event.piece == &scratch_piece_; }
  /// Makes progress. @return how many events were written.
  std::size_t poll(std::span<Event> out);

 private:
  explicit Connection(std::unique_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}
  [[nodiscard]] Result<void> read_small(const RemoteKey& key, std::uint64_t length_bytes,
                                        const Clock& clock, TimePoint deadline);
  [[nodiscard]] void* descriptor_of(LocalId id) const {
    const auto found = memories_.find(id);
    return found == memories_.end() ? nullptr : fi_mr_desc(found->second.get());
  }

  std::unique_ptr<Endpoint> endpoint_;
  std::unordered_map<LocalId, MemoryHandle> memories_;
  alignas(64) std::byte scratch_[64] = {};  ///< where hello and probes are read to
  Piece scratch_piece_;
};

}  // namespace ho::transport
