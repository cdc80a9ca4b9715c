#pragma once

#include <rdma/fi_rma.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ofi/endpoint.hpp"
#include "common/transport/ofi/wire.hpp"
#include "common/transport/striping/rail.hpp"

namespace ho::transport {

/// One endpoint to one target. Destroying it is the force close: afterwards libfabric knows none of
/// its operations and buffers. Owner thread: the initiator's.
class Connection {
 public:
  /// Operations in flight.
  static constexpr std::uint32_t kOpsMax = 512;

  /// Begins to connect and to read the target's hello page; open() once that is there.
  /// @return kInvalidArgument, kUnavailable, kUnsupported.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> begin(const OfiAddress& address,
                                                                 const Endpoint::Reach& how);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() = default;

  [[nodiscard]] bool open() const { return open_; }
  /// Over for good; nothing: it is not.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// Makes memory usable, where the provider wants that.
  [[nodiscard]] Result<void> add_memory(const LocalMemory* memory, std::span<std::byte> bytes);
  void remove_memory(const LocalMemory* memory) { memories_.erase(memory); }

  /// @return false: full, or failed: progress() and look.
  [[nodiscard]] bool post(RailOp& op, const RemoteKey& key);
  /// @return whether anything moved.
  bool progress(std::vector<RailOp*>& ended);
  /// After it was closed elsewhere: gives back what was in flight.
  void give_back(std::vector<RailOp*>& ended);

  /// Reads one byte by `key`; blocks. For a connection that carries nothing else.
  /// @return kPermissionDenied: the target refuses it, and the connection is of no more use;
  /// kDeadline.
  [[nodiscard]] Result<void> try_key(const RemoteKey& key, TimePoint deadline);

 private:
  struct Flight {
    fi_context2 context{};  ///< libfabric's; its address names the flight
    RailOp* op = nullptr;   ///< null: of the hello page, or of a key that is tried
  };

  explicit Connection(std::unique_ptr<Endpoint> endpoint, const OfiAddress& address);
  [[nodiscard]] std::int64_t read_scratch(const RemoteKey& key, std::size_t length_bytes);
  bool greet();
  bool take_events(std::vector<RailOp*>& ended);
  [[nodiscard]] void* descriptor_of(const LocalMemory* memory) const;

  std::unique_ptr<Endpoint> endpoint_;
  const RemoteKey hello_;
  bool open_ = false;
  bool asked_ = false;         ///< the scratch is being read into
  bool scratch_came_ = false;  ///< it has been, since that was asked for
  std::optional<Error> failure_;
  std::uint64_t bytes_ = 0;      ///< in flight
  std::vector<Flight> flights_;  ///< of constant size: lent out. The first is the scratch's
  std::vector<Flight*> free_;
  std::unordered_map<const LocalMemory*, MemoryHandle> memories_;  ///< null: the scratch's
  alignas(64) std::byte scratch_[64] = {};
};

}  // namespace ho::transport
