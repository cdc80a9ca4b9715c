#include <cstdint>
#include <unordered_map>
#include <utility>

#include "common/base/log.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/ucx_transport.hpp"
#include "common/transport/ucx/wire.hpp"

namespace ho::transport {
namespace {

/// Rounds of progress() at a time: bounded, and enough for a few clients that connect.
constexpr int kRoundsMax = 16;

Error target_is_shut() { return Error(Errc::kUnavailable, "the target is shut"); }

/// The daemon's side; see open_ucx_target(). Owner thread: the daemon's data thread. Data moves
/// without it: all that it progresses is connecting.
class UcxTarget final : public Target {
 public:
  UcxTarget(std::unique_ptr<UcxContext> context, std::string address, int wait_descriptor)
      : context_(std::move(context)),
        address_(std::move(address)),
        wait_descriptor_(wait_descriptor) {}

  [[nodiscard]] std::string_view name() const override { return "ucx"; }
  [[nodiscard]] const std::string& address() const override { return address_; }
  /// All sessions share the device's one table of keys.
  [[nodiscard]] Result<std::string> admit(TenantId /*tenant*/) override {
    if (context_->worker() == nullptr) return target_is_shut();
    return std::string();
  }
  void dismiss(TenantId /*tenant*/) override {}
  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override;
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override;
  void shut() override;
  std::size_t progress() override;
  [[nodiscard]] int wait_descriptor() const override { return wait_descriptor_; }
  [[nodiscard]] bool arm() override;

 private:
  std::unique_ptr<UcxContext> context_;
  std::string address_;
  int wait_descriptor_;
  std::unordered_map<ExposureId, UcxMemory> regions_;  ///< before the context, which they are of
  std::uint64_t next_id_ = 1;
};

Result<Exposure> UcxTarget::expose(const ExposeRequest& request) {
  if (context_->worker() == nullptr) return target_is_shut();
  if (request.memory.empty()) return Error(Errc::kInvalidArgument, "no memory to expose");
  auto memory = UcxMemory::create(*context_, request.memory);
  if (!memory) return memory.error();
  auto packed = memory->pack_key();
  if (!packed) return packed.error();
  const UcxKey key{reinterpret_cast<std::uintptr_t>(request.memory.data()), request.memory.size(),
                   request.rights, std::move(*packed)};
  const ExposureId id(next_id_++);
  regions_.emplace(id, std::move(*memory));
  return Exposure{id, encode_ucx_key(key), {}};
}

Result<void> UcxTarget::revoke(ExposureId exposure) {
  const auto found = regions_.find(exposure);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such exposure");
  const auto closed = found->second.close();
  regions_.erase(found);
  return closed;
}

void UcxTarget::shut() {
  // Registrations first: then no access ends well any more, whatever a connection still carries.
  // Where a device keeps one the worker's end takes its connections, and so the way to it.
  for (auto& [id, memory] : regions_) {
    if (auto closed = memory.close(); !closed) {
      log(LogLevel::kError, "a registration does not end; its connections do",
          {{"error", closed.error().message()}});
    }
  }
  context_->destroy_worker();
  wait_descriptor_ = -1;
}

std::size_t UcxTarget::progress() {
  std::size_t events = 0;
  for (int round = 0; round < kRoundsMax && context_->progress() > 0; ++round) ++events;
  return events;
}

bool UcxTarget::arm() {
  if (context_->worker() == nullptr) return true;
  return ucp_worker_arm(context_->worker()) != UCS_ERR_BUSY;
}

}  // namespace

Result<std::unique_ptr<Target>> open_ucx_target(const UcxDevices& devices) {
  auto context = UcxContext::create(devices, UcxSide::kTarget);
  if (!context) return context.error();
  const auto address = (*context)->worker_address();
  if (!address) return address.error();
  int descriptor = -1;
  const ucs_status_t status = ucp_worker_get_efd((*context)->worker(), &descriptor);
  if (status != UCS_OK) return ucx_error(status, "asking for a descriptor to wait on");
  return std::unique_ptr<Target>(
      std::make_unique<UcxTarget>(std::move(*context), encode_ucx_address(*address), descriptor));
}

}  // namespace ho::transport
