#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/transport/ofi/endpoint.hpp"
#include "common/transport/ofi/guarded_sockets.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/wire.hpp"

namespace ho::transport {

/// A page that every initiator may read, which proves whom it has reached. Shared by all places.
class HelloPage {
 public:
  [[nodiscard]] static Result<HelloPage> create();
  [[nodiscard]] std::span<std::byte> bytes() const { return {page_.get(), kBytes}; }

 private:
  static constexpr std::size_t kBytes = 4096;
  struct Unmap {
    void operator()(std::byte* page) const;
  };
  explicit HelloPage(std::byte* page) : page_(page) {}
  std::unique_ptr<std::byte, Unmap> page_;
};

/// Where a target is reached: an endpoint on each rail, with a table of keys of its own. A key that
/// was registered at one place is unknown at any other. Destroying it ends its connections. Owner
/// thread: the target's.
class Place {
 public:
  /// An endpoint. The last two are the target's.
  struct Rail {
    std::unique_ptr<Endpoint> endpoint;
    int wait_descriptor = -1;
    bool active = false;     ///< it must be prepared anew before the target may sleep
    std::uint32_t idle = 0;  ///< progress() calls in a row that found nothing to do

    /// Serves initiators for a bounded time. @return events handled.
    std::size_t progress() const;
    /// Prepares to sleep on the descriptor. @return false: there is work.
    [[nodiscard]] bool arm() const;
  };
  /// `provider` by its full name; `connections_max`: on each rail, where it is libfabric's own TCP.
  /// @return as make_ofi_target().
  [[nodiscard]] static Result<std::unique_ptr<Place>> open(const std::string& provider,
                                                           std::span<const OfiRail> at,
                                                           const HelloPage& hello,
                                                           std::size_t connections_max);

  [[nodiscard]] const std::string& address() const { return address_; }
  /// They stay where they are.
  [[nodiscard]] std::span<Rail> rails() { return rails_; }

  struct Registered {
    std::vector<MemoryHandle> memory;  ///< by rail
    std::vector<RemoteKey> keys;       ///< by rail
  };
  /// On every rail, under one key that nobody can guess where the provider lets us choose.
  [[nodiscard]] Result<Registered> register_memory(std::span<std::byte> memory, Rights rights);

 private:
  explicit Place(std::size_t connections_max) : connections_max_(connections_max) {}
  [[nodiscard]] Result<void> listen(const std::string& provider, const OfiRail& at);
  [[nodiscard]] Result<Registered> register_under(std::uint64_t secret, std::span<std::byte> memory,
                                                  Rights rights);
  [[nodiscard]] Result<void> expose_hello(const std::string& provider, const HelloPage& hello);
  [[nodiscard]] Result<void> guard(const std::vector<OfiAddress>& listening);
  [[nodiscard]] Result<void> prove_guarded(const OfiAddress& listening);
  /// The same memory, registered twice, has two keys unless a cache stands in between. `keys`: its
  /// first ones. @return kUnsupported: a cache does.
  [[nodiscard]] Result<void> check_not_cached(const HelloPage& hello,
                                              std::span<const RemoteKey> keys);

  const std::size_t connections_max_;
  std::vector<std::unique_ptr<GuardedAddress>> guarded_;  // until the endpoints have gone
  int opened_from_ = -1;  ///< descriptors of the rails have this number or higher ones
  std::vector<Rail> rails_;
  std::string address_;
  std::vector<MemoryHandle> hello_memory_;  // before the endpoints go
};

}  // namespace ho::transport
