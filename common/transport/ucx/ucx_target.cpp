#include <sys/epoll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/log.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/ucx_transport.hpp"
#include "common/transport/ucx/wire.hpp"

namespace ho::transport {
namespace {

Error target_is_shut() { return Error(Errc::kUnavailable, "the target is shut"); }

/// The daemon's side; see open_ucx_target(). Owner thread: the daemon's data thread. Data moves
/// without it: its progress serves only connecting.
class UcxTarget final : public Target {
 public:
  explicit UcxTarget(UcxContexts contexts)
      : caps_{"ucx", contexts.size()}, contexts_(std::move(contexts)) {}

  /// Makes the address for initiators, and the descriptor to wait on.
  [[nodiscard]] Result<void> prepare();

  [[nodiscard]] const TargetCaps& caps() const override { return caps_; }
  /// All sessions share the device's one table of keys.
  [[nodiscard]] Result<std::string> admit(const Credentials& /*session*/) override {
    if (shut_) return target_is_shut();
    return address_;
  }
  void dismiss(SessionId /*session*/) override {}
  [[nodiscard]] Result<std::string> fence(SessionId /*session*/,
                                          const RailFence& /*rail*/) override {
    return Error(Errc::kUnsupported, "ucx ends no rail at its target");
  }
  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override;
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override;
  void shut() override;
  std::size_t progress() override;
  [[nodiscard]] int wait_descriptor() const override { return shut_ ? -1 : wait_.get(); }
  [[nodiscard]] bool arm() override;

 private:
  [[nodiscard]] Result<std::vector<std::string>> pack(const std::vector<UcxMemory>& memory) const;

  const TargetCaps caps_;
  UcxContexts contexts_;  ///< one a device
  std::string address_;
  UniqueFd wait_;  ///< readable when one of the workers' is
  bool shut_ = false;
  /// The byte that initiators read to test the connection. UCX registers memory for reading and
  /// writing, so a peer could change it: this side never reads it.
  alignas(4096) std::byte hello_[4096] = {};
  std::vector<UcxMemory> hello_memory_;  ///< destroyed before the contexts, as are
  std::unordered_map<ExposureId, std::vector<UcxMemory>> regions_;
  std::uint64_t next_id_ = 1;
};

Result<void> UcxTarget::prepare() {
  auto memory = register_with_all(contexts_, hello_);
  if (!memory) return memory.error();
  hello_memory_ = std::move(*memory);
  auto packed = pack(hello_memory_);
  if (!packed) return packed.error();
  wait_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!wait_.valid()) return Error(Errc::kExhausted, "epoll_create1");
  std::vector<UcxWorker> workers;
  for (std::size_t i = 0; i < contexts_.size(); ++i) {
    auto address = contexts_[i]->worker_address();
    if (!address) return address.error();
    workers.push_back(
        {std::move(*address), reinterpret_cast<std::uintptr_t>(&hello_), std::move((*packed)[i])});
    int descriptor = -1;
    const ucs_status_t status = ucp_worker_get_efd(contexts_[i]->worker(), &descriptor);
    if (status != UCS_OK) return ucx_error(status, "asking for a descriptor to wait on");
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(wait_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return Error(Errc::kExhausted, "epoll_ctl");
    }
  }
  address_ = encode_ucx_address(workers);
  return {};
}

/// The key of memory for each device.
Result<std::vector<std::string>> UcxTarget::pack(const std::vector<UcxMemory>& memory) const {
  std::vector<std::string> keys;
  for (const UcxMemory& one : memory) {
    auto packed = one.pack_key();
    if (!packed) return packed.error();
    keys.push_back(std::move(*packed));
  }
  return keys;
}

/// Ends the registrations with all devices. @return as UcxMemory::close(), of the first that
/// failed.
Result<void> close_all(std::vector<UcxMemory>& memory) {
  Result<void> outcome;
  for (UcxMemory& one : memory) {
    auto closed = one.close();
    if (!closed && outcome) outcome = closed;
  }
  return outcome;
}

Result<Exposure> UcxTarget::expose(const ExposeRequest& request) {
  if (shut_) return target_is_shut();
  if (request.memory.empty()) return Error(Errc::kInvalidArgument, "no memory to expose");
  auto memory = register_with_all(contexts_, request.memory);
  if (!memory) return memory.error();
  auto packed = pack(*memory);
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
  const auto closed = close_all(found->second);
  regions_.erase(found);
  return closed;
}

void UcxTarget::shut() {
  // Registrations first: then no access succeeds, also of operations that a connection still
  // carries. If a device keeps one, the end of the worker ends its connections, and with them all
  // access.
  for (auto& [id, memory] : regions_) {
    if (auto closed = close_all(memory); !closed) {
      log(LogLevel::kError, "a registration does not end; its connections do",
          {{"error", closed.error().message()}});
    }
  }
  (void)close_all(hello_memory_);
  for (const auto& context : contexts_) context->destroy_worker();
  shut_ = true;
}

std::size_t UcxTarget::progress() {
  std::size_t events = 0;
  for (const auto& context : contexts_) events += context->progress_all();
  return events;
}

bool UcxTarget::arm() {
  if (shut_) return true;
  return std::none_of(contexts_.begin(), contexts_.end(), [](const auto& context) {
    return ucp_worker_arm(context->worker()) == UCS_ERR_BUSY;
  });
}

}  // namespace

Result<std::unique_ptr<Target>> open_ucx_target(const UcxDevices& devices) {
  auto contexts = UcxContext::create_all(devices, UcxSide::kTarget);
  if (!contexts) return contexts.error();
  auto made = std::make_unique<UcxTarget>(std::move(*contexts));
  if (auto prepared = made->prepare(); !prepared) return prepared.error();
  return std::unique_ptr<Target>(std::move(made));
}

}  // namespace ho::transport
