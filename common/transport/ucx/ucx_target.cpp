#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/ucx_transport.hpp"
#include "common/transport/ucx/wire.hpp"

namespace ho::transport {
namespace {

/// Workers that are looked at in one progress().
constexpr std::size_t kWokenMax = 16;

/// One rail of a session: a device, opened for this session alone. Its worker has all connections
/// of the rail.
struct TargetRail {
  std::unique_ptr<UcxContext> context;
  int descriptor = -1;           ///< its worker's; UCX owns it
  std::string address;           ///< its worker's
  std::uint32_t generation = 0;  ///< the last that a fence has ended
  bool awake = false;            ///< it may have work, and its descriptor does not say so
};

/// The daemon's side; see open_ucx_target(). Owner thread: the daemon's data thread. Data moves
/// without it: its progress serves only connecting.
///
/// Each session has contexts of its own, so keys that a device gave out for one session open
/// nothing in another, and connections can be ended for one session: UCX does not say which
/// connections a peer has made, but its worker's end ends them all.
class UcxTarget final : public Target {
 public:
  explicit UcxTarget(std::vector<UcxDevices> devices)
      : caps_{"ucx", devices.size()}, devices_(std::move(devices)) {}
  UcxTarget(const UcxTarget&) = delete;
  UcxTarget& operator=(const UcxTarget&) = delete;
  ~UcxTarget() override = default;

  /// Makes the descriptor to wait on.
  [[nodiscard]] Result<void> prepare();

  [[nodiscard]] const TargetCaps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::string> admit(const Credentials& session) override;
  void dismiss(SessionId session) override;
  [[nodiscard]] Result<std::string> fence(SessionId session, const RailFence& rail) override;
  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override;
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override;
  void shut() override;
  std::size_t progress() override;
  [[nodiscard]] int wait_descriptor() const override { return shut_ ? -1 : wait_.get(); }
  [[nodiscard]] bool arm() override { return awake_.empty(); }

 private:
  struct Session {
    std::vector<TargetRail> rails;
    std::size_t exposures = 0;
    bool dismissed = false;  ///< it goes with its last exposure
  };
  struct Region {
    SessionId session;
    std::vector<UcxMemory> memory;  ///< by rail
  };

  [[nodiscard]] Result<void> open_worker(TargetRail& rail);
  void close_worker(TargetRail& rail);
  [[nodiscard]] static std::string address_of(const Session& session);
  void wake(TargetRail& rail);

  const TargetCaps caps_;
  const std::vector<UcxDevices> devices_;
  UniqueFd wait_;  ///< readable when one of the workers that sleep is
  bool shut_ = false;
  std::unordered_map<SessionId, Session> sessions_;
  std::vector<TargetRail*> awake_;
  std::unordered_map<ExposureId, Region> regions_;  ///< destroyed before the sessions' contexts
  std::uint64_t next_id_ = 1;
};

Result<void> UcxTarget::prepare() {
  wait_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!wait_.valid()) return Error(Errc::kExhausted, "epoll_create1");
  return {};
}

/// Makes a rail's worker known: where it is, and when it has work.
Result<void> UcxTarget::open_worker(TargetRail& rail) {
  auto address = rail.context->worker_address();
  if (!address) return address.error();
  const ucs_status_t status = ucp_worker_get_efd(rail.context->worker(), &rail.descriptor);
  if (status != UCS_OK) return ucx_error(status, "asking for a descriptor to wait on");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &rail;
  if (::epoll_ctl(wait_.get(), EPOLL_CTL_ADD, rail.descriptor, &event) != 0) {
    return Error(Errc::kExhausted, "epoll_ctl");
  }
  rail.address = std::move(*address);
  wake(rail);
  return {};
}

/// Ends all connections of a rail.
void UcxTarget::close_worker(TargetRail& rail) {
  std::erase(awake_, &rail);
  rail.awake = false;
  if (rail.descriptor >= 0) {
    // A child that was forked meanwhile may keep it open, and `wait_` with it.
    (void)::epoll_ctl(wait_.get(), EPOLL_CTL_DEL, std::exchange(rail.descriptor, -1), nullptr);
  }
  rail.context->destroy_worker();
}

void UcxTarget::wake(TargetRail& rail) {
  if (!std::exchange(rail.awake, true)) awake_.push_back(&rail);
}

std::string UcxTarget::address_of(const Session& session) {
  std::vector<std::string> workers;
  for (const TargetRail& rail : session.rails) workers.push_back(rail.address);
  return encode_ucx_address(workers);
}

Result<std::string> UcxTarget::admit(const Credentials& session) {
  if (shut_) return Error(Errc::kUnavailable, "the target is shut");
  const auto [found, fresh] = sessions_.try_emplace(session.session);
  HO_CHECK(fresh);
  Session& admitted = found->second;
  admitted.rails.reserve(devices_.size());  // epoll has pointers to them
  std::optional<Error> failure;
  for (const UcxDevices& device : devices_) {
    TargetRail rail;
    auto context = UcxContext::create(device, UcxSide::kTarget);
    if (context) rail.context = std::move(*context);
    auto opened = context ? open_worker(admitted.rails.emplace_back(std::move(rail)))
                          : Result<void>(context.error());
    if (opened) continue;
    if (context) close_worker(admitted.rails.back());
    if (context) admitted.rails.pop_back();
    log(LogLevel::kWarning, "a session does without an RDMA device",
        {{"device", device.devices}, {"why", opened.error().message()}});
    if (!failure) failure = opened.error();
  }
  if (!admitted.rails.empty()) return address_of(admitted);
  sessions_.erase(found);
  return *failure;
}

void UcxTarget::dismiss(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  for (TargetRail& rail : found->second.rails) close_worker(rail);
  found->second.dismissed = true;
  if (found->second.exposures == 0) sessions_.erase(found);
}

Result<std::string> UcxTarget::fence(SessionId session, const RailFence& rail) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.dismissed ||
      rail.rail >= found->second.rails.size()) {
    return Error(Errc::kNotFound, "no such session, or no such rail");
  }
  if (shut_) return Error(Errc::kUnavailable, "the target is shut");
  TargetRail& fenced = found->second.rails[rail.rail];
  const bool closed = fenced.context->worker() == nullptr;  // by a fence that failed half-way
  if (rail.generation > fenced.generation || closed) {
    fenced.generation = std::max(fenced.generation, rail.generation);
    close_worker(fenced);
    if (auto made = fenced.context->create_worker(); !made) return made.error();
    if (auto opened = open_worker(fenced); !opened) return opened.error();
  }
  return address_of(found->second);
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
  if (shut_) return Error(Errc::kUnavailable, "the target is shut");
  if (request.memory.empty()) return Error(Errc::kInvalidArgument, "no memory to expose");
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end() || found->second.dismissed) {
    return Error(Errc::kNotFound, "the session is not admitted");
  }
  UcxKey key{reinterpret_cast<std::uintptr_t>(request.memory.data()),
             request.memory.size(),
             request.rights,
             {}};
  Region region{request.session, {}};
  for (const TargetRail& rail : found->second.rails) {
    auto memory = UcxMemory::create(*rail.context, request.memory);
    if (!memory) return memory.error();
    auto packed = memory->pack_key();
    if (!packed) return packed.error();
    key.packed.push_back(std::move(*packed));
    region.memory.push_back(std::move(*memory));
  }
  const ExposureId id(next_id_++);
  ++found->second.exposures;
  regions_.emplace(id, std::move(region));
  return Exposure{id, encode_ucx_key(key), {}};
}

Result<void> UcxTarget::revoke(ExposureId exposure) {
  const auto found = regions_.find(exposure);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such exposure");
  const auto closed = close_all(found->second.memory);
  const auto owner = sessions_.find(found->second.session);
  HO_CHECK(owner != sessions_.end() && owner->second.exposures > 0);
  regions_.erase(found);
  if (--owner->second.exposures == 0 && owner->second.dismissed) sessions_.erase(owner);
  return closed;
}

void UcxTarget::shut() {
  // Registrations first: then no access succeeds, also of operations that a connection still
  // carries. If a device keeps one, the end of the worker ends its connections, and with them all
  // access.
  for (auto& [id, region] : regions_) {
    if (auto closed = close_all(region.memory); !closed) {
      log(LogLevel::kError, "a registration does not end; its connections do",
          {{"error", closed.error().message()}});
    }
  }
  for (auto& [id, session] : sessions_) {
    for (TargetRail& rail : session.rails) close_worker(rail);
  }
  shut_ = true;
}

std::size_t UcxTarget::progress() {
  if (shut_) return 0;
  std::array<epoll_event, kWokenMax> woken{};
  const int count = ::epoll_wait(wait_.get(), woken.data(), static_cast<int>(woken.size()), 0);
  for (int i = 0; i < count; ++i) {
    wake(*static_cast<TargetRail*>(woken[static_cast<std::size_t>(i)].data.ptr));
  }
  std::size_t events = 0;
  std::erase_if(awake_, [&events](TargetRail* rail) {
    const std::size_t rounds = rail->context->progress_all();
    events += rounds;
    // Work that has come in meanwhile keeps it awake: UCX then says that it is busy.
    rail->awake = rounds > 0 || ucp_worker_arm(rail->context->worker()) == UCS_ERR_BUSY;
    return !rail->awake;
  });
  return events;
}

}  // namespace

Result<std::unique_ptr<Target>> open_ucx_target(const UcxDevices& devices) {
  // Finds out which devices work. Each session opens them for itself.
  auto contexts = UcxContext::create_all(devices, UcxSide::kTarget);
  if (!contexts) return contexts.error();
  std::vector<UcxDevices> usable;
  for (const auto& context : *contexts) usable.push_back(context->settings());
  auto made = std::make_unique<UcxTarget>(std::move(usable));
  if (auto prepared = made->prepare(); !prepared) return prepared.error();
  return std::unique_ptr<Target>(std::move(made));
}

}  // namespace ho::transport
