#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"
#include "common/transport/ucx/settings.hpp"

namespace ho::transport {

[[nodiscard]] Errc errc_of_ucx(ucs_status_t status);
[[nodiscard]] Error ucx_error(ucs_status_t status, const std::string& what);

/// One UCX context and its only worker, on one device, set up for hardware transports. Owner
/// thread: its user's. Outlives every endpoint, registration and unpacked key made with it.
class UcxContext {
 public:
  /// @return kUnsupported (no device, or none that UCX can use); kExhausted; kIo.
  [[nodiscard]] static Result<std::unique_ptr<UcxContext>> create(const UcxDevices& devices,
                                                                  UcxSide side);
  /// Makes one for each named device; with no name, or "all", one for each port that is up: 1 ..
  /// kRailsMax. A device that UCX cannot use is left out if another one works, and the log says so.
  /// @return as create(), for the first; kInvalidArgument: a list with an empty name, one given
  /// twice, or too many.
  [[nodiscard]] static Result<std::vector<std::unique_ptr<UcxContext>>> create_all(
      const UcxDevices& devices, UcxSide side);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  [[nodiscard]] ucp_context_h context() const { return context_; }
  [[nodiscard]] ucp_worker_h worker() const { return worker_; }
  /// The settings it was made with: one device, or none if UCX chooses.
  [[nodiscard]] const UcxDevices& settings() const { return settings_; }
  /// As "mlx5_0:1"; "all" where UCX chooses.
  [[nodiscard]] std::string device() const {
    return settings_.devices.empty() ? "all" : settings_.devices;
  }
  /// Whether the kernel says that its port is up. Reads a few small files.
  [[nodiscard]] bool up() const;
  /// Whether endpoints may run over any transport: the user asked for it.
  [[nodiscard]] bool allows_emulation() const { return settings_.allow_emulation; }
  /// Makes progress once. @return how much there was; 0: nothing.
  unsigned progress() { return worker_ == nullptr ? 0 : ucp_worker_progress(worker_); }
  /// Makes progress until there is none, in a bounded number of rounds, which suffices for a few
  /// clients that connect. @return the rounds with some.
  std::size_t progress_all();
  /// Ends all connections. Afterwards nothing that was sent on them reaches memory any more.
  void destroy_worker();
  /// In place of one that was destroyed. @return as create().
  [[nodiscard]] Result<void> create_worker();
  [[nodiscard]] Result<std::string> worker_address() const;

 private:
  UcxContext() = default;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  UcxDevices settings_;
};

using UcxContexts = std::vector<std::unique_ptr<UcxContext>>;

/// Memory registered with a context's device.
class UcxMemory {
 public:
  UcxMemory() = default;
  /// @return kExhausted, kIo.
  [[nodiscard]] static Result<UcxMemory> create(const UcxContext& context,
                                                std::span<std::byte> memory);
  UcxMemory(UcxMemory&& other) noexcept
      : context_(other.context_), handle_(std::exchange(other.handle_, nullptr)) {}
  UcxMemory& operator=(UcxMemory&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~UcxMemory() { (void)close(); }

  [[nodiscard]] ucp_mem_h handle() const { return handle_; }
  /// The bytes that ucp_ep_rkey_unpack() takes on the other side.
  [[nodiscard]] Result<std::string> pack_key() const;
  /// Afterwards no device touches the memory. @return kIo: that is not certain.
  [[nodiscard]] Result<void> close();

 private:
  ucp_context_h context_ = nullptr;
  ucp_mem_h handle_ = nullptr;
};

/// Registers memory with each of the devices, or, on an error, with none. @return as
/// UcxMemory::create().
[[nodiscard]] Result<std::vector<UcxMemory>> register_with_all(const UcxContexts& contexts,
                                                               std::span<std::byte> memory);

}  // namespace ho::transport
