#include <sys/epoll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/log.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/alias.hpp"
#include "common/transport/ofi/fabric_log.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/place.hpp"
#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/provider_names.hpp"
#include "common/transport/ofi/registration_cache.hpp"
#include "common/transport/ofi/wire.hpp"

namespace ho::transport {
namespace {

/// A rail with nothing to do is served this often before it is left to its descriptor: the next
/// request of a peer with one in flight comes sooner.
constexpr std::uint32_t kIdleMax = 16;
/// All rails are looked at this often, should a provider ever have work and not say so.
constexpr Duration kLookEvery = std::chrono::seconds(1);
/// Connections to one address of a session's. A job has 17 at most (1 + OfiOptions::large_lanes)
/// and one that tries a key; the others are for those that lost their link and have yet to end.
constexpr std::size_t kConnectionsMax = 128;
/// To one of nobody's, for all who ask for no address of their own.
constexpr std::size_t kSharedConnectionsMax = 512;

/// The daemon's side; see make_ofi_target(). Owner thread: the daemon's data thread.
///
/// A rail that was served is active until it has had nothing to do for a while; the others are left
/// alone until their descriptors are readable, so that idle tenants cost nothing while one is busy.
class OfiTarget final : public Target {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Target>> create(const OfiTargetOptions& options);
  OfiTarget(OfiTargetOptions options, std::string provider, HelloPage hello, UniqueFd joined)
      : options_(std::move(options)),
        provider_(std::move(provider)),
        hello_(std::move(hello)),
        joined_(std::move(joined)) {}
  OfiTarget(const OfiTarget&) = delete;
  OfiTarget& operator=(const OfiTarget&) = delete;
  ~OfiTarget() override {
    shut();
    for (auto& [id, region] : regions_) {
      if (!region.alias.empty()) ::munmap(region.alias.data(), region.alias.size());
    }
  }

  [[nodiscard]] std::string_view name() const override { return "ofi"; }
  [[nodiscard]] const std::string& address() const override { return address_; }
  [[nodiscard]] Result<std::string> admit(TenantId tenant) override;
  void dismiss(TenantId tenant) override;
  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override;
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override;
  void shut() override;
  std::size_t progress() override;
  [[nodiscard]] int wait_descriptor() const override { return joined_.get(); }
  [[nodiscard]] bool arm() override;

 private:
  struct Region {
    std::span<std::byte> alias;        ///< empty: none is needed
    std::vector<MemoryHandle> memory;  ///< by rail
    TenantId tenant;                   ///< at whose place it is
  };
  struct Tenant {
    std::unique_ptr<Place> place;
    std::size_t regions = 0;
    bool dismissed = false;  ///< goes with its last region
  };
  [[nodiscard]] Result<void> add(TenantId tenant);
  void remove(TenantId tenant);
  void activate(Place::Rail& rail);

  const OfiTargetOptions options_;
  const std::string provider_;
  const HelloPage hello_;
  const UniqueFd joined_;  ///< over all rails' descriptors
  std::string address_;
  std::unordered_map<TenantId, Tenant> tenants_;  ///< none once it is shut; kNobody's is address_
  std::vector<Place::Rail*> active_;
  SteadyClock clock_;
  TimePoint last_look_{};
  AliasSpace aliases_;
  std::unordered_map<ExposureId, Region> regions_;
  std::uint64_t next_id_ = 1;
};

Result<std::unique_ptr<Target>> OfiTarget::create(const OfiTargetOptions& options) {
  if (options.rails.empty() || options.rails.size() > kRailsMax) {
    return Error(Errc::kInvalidArgument,
                 "a target listens at 1 to " + std::to_string(kRailsMax) + " addresses");
  }
  if (options.refusals) {
    // Nobody is refused the less for not being counted.
    if (const auto counted = count_refusals(options.refusals); !counted) {
      log(LogLevel::kWarning, "refused accesses are not counted",
          {{"why", counted.error().context()}});
    }
  }
  auto provider = provider_here(options.provider);
  if (!provider) return provider.error();
  if (!runs_over_tcp(*provider)) {
    // Whether there is one that matters shows where memory is registered; see Place.
    if (const auto off = turn_off_registration_cache(); !off) {
      log(LogLevel::kWarning, "libfabric's registration cache stays as it is",
          {{"why", off.error().context()}});
    }
  }
  auto hello = HelloPage::create();
  if (!hello) return hello.error();
  UniqueFd joined(::epoll_create1(EPOLL_CLOEXEC));
  if (!joined.valid()) return errno_error(errno, "joining descriptors to wait on");
  auto target = std::make_unique<OfiTarget>(options, std::move(*provider), std::move(*hello),
                                            std::move(joined));
  const auto added = target->add(kNobody);
  if (!added) return added.error();
  target->address_ = target->tenants_.at(kNobody).place->address();
  return std::unique_ptr<Target>(std::move(target));
}

Result<void> OfiTarget::add(TenantId tenant) {
  auto rails = options_.rails;
  if (tenant != kNobody) {
    for (OfiRail& rail : rails) rail.port = 0;  // the one that is named is nobody's
  }
  const std::size_t connections_max = tenant == kNobody ? kSharedConnectionsMax : kConnectionsMax;
  auto place = Place::open(provider_, rails, hello_, connections_max);
  if (!place) return place.error();
  for (Place::Rail& rail : (*place)->rails()) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &rail;
    if (::epoll_ctl(joined_.get(), EPOLL_CTL_ADD, rail.wait_descriptor, &event) != 0) {
      return errno_error(errno, "joining descriptors to wait on");
    }
  }
  for (Place::Rail& rail : (*place)->rails()) activate(rail);
  tenants_[tenant].place = std::move(*place);
  return {};
}

void OfiTarget::remove(TenantId tenant) {
  const auto found = tenants_.find(tenant);
  for (Place::Rail& rail : found->second.place->rails()) {
    std::erase(active_, &rail);
    // Before the endpoint goes: no event may name a rail that is no more.
    (void)::epoll_ctl(joined_.get(), EPOLL_CTL_DEL, rail.wait_descriptor, nullptr);
  }
  tenants_.erase(found);
}

Result<std::string> OfiTarget::admit(TenantId tenant) {
  HO_CHECK(tenant != kNobody && tenants_.count(tenant) == 0);
  if (tenants_.empty()) return Error(Errc::kUnavailable, "the target is shut");
  if (!separates_tenants(provider_)) return std::string();
  const auto added = add(tenant);
  if (!added) return added.error().at("a place of the session's own");
  return tenants_.at(tenant).place->address();
}

void OfiTarget::dismiss(TenantId tenant) {
  const auto found = tenants_.find(tenant);
  if (tenant == kNobody || found == tenants_.end()) return;
  found->second.dismissed = true;
  if (found->second.regions == 0) remove(tenant);
}

Result<Exposure> OfiTarget::expose(const ExposeRequest& request) {
  if (tenants_.empty()) return Error(Errc::kUnavailable, "the target is shut");
  const auto at = tenants_.find(separates_tenants(provider_) ? request.tenant : kNobody);
  if (at == tenants_.end() || at->second.dismissed) {
    return Error(Errc::kNotFound, "the session has no place at this driver (any more)");
  }
  if (request.memory.empty()) return Error(Errc::kInvalidArgument, "no memory to expose");
  // A device needs no alias: closing the registration ends its accesses. Nor could it have one of
  // read-only memory: before Linux 6.2 pages are pinned for reading through writable mappings only,
  // and the memfd may be sealed against another. The registration's rights are what it checks.
  std::span<std::byte> alias;
  if (!serves_by_device(provider_)) {
    const auto opened = aliases_.open(request);
    if (!opened) return opened.error();
    alias = *opened;
  }
  const std::span<std::byte> served = alias.empty() ? request.memory : alias;
  auto registered = at->second.place->register_memory(served, request.rights);
  if (!registered) {
    if (!alias.empty()) ::munmap(alias.data(), alias.size());
    return registered.error();
  }
  const ExposureId id(next_id_++);
  regions_.emplace(id, Region{alias, std::move(registered->memory), at->first});
  at->second.regions += 1;
  return Exposure{id, encode_keys(registered->keys), alias};
}

Result<void> OfiTarget::revoke(ExposureId exposure) {
  const auto found = regions_.find(exposure);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such exposure");
  // The device may have kept a registration that does not close.
  Result<void> closed;
  for (MemoryHandle& memory : found->second.memory) {
    const int returned = fi_close(&memory.release()->fid);
    if (returned != 0) {
      closed = Error(Errc::kIo, fabric_error(returned, "closing a registration").context());
    }
  }
  if (!found->second.alias.empty()) aliases_.retire(found->second.alias);
  const TenantId tenant = found->second.tenant;
  regions_.erase(found);
  const auto at = tenants_.find(tenant);
  if (at == tenants_.end()) return closed;  // shut
  HO_CHECK(at->second.regions > 0);
  at->second.regions -= 1;
  if (at->second.dismissed && at->second.regions == 0) remove(tenant);
  return closed;
}

void OfiTarget::shut() {
  // Registrations first, then the endpoints and with them all connections: a transfer caught
  // half-way stays half, and nothing touches the aliases any more.
  for (auto& [id, region] : regions_) region.memory.clear();
  while (!tenants_.empty()) remove(tenants_.begin()->first);
}

void OfiTarget::activate(Place::Rail& rail) {
  if (rail.active) return;
  rail.active = true;
  rail.idle = 0;
  active_.push_back(&rail);
}

std::size_t OfiTarget::progress() {
  std::array<epoll_event, 32> ready;
  const int count = ::epoll_wait(joined_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (const epoll_event& event :
       std::span(ready).first(static_cast<std::size_t>(std::max(count, 0)))) {
    activate(*static_cast<Place::Rail*>(event.data.ptr));
  }
  if (const TimePoint now = clock_.now(); now - last_look_ >= kLookEvery) {
    last_look_ = now;
    for (auto& [id, tenant] : tenants_) {
      for (Place::Rail& rail : tenant.place->rails()) {
        if (rail.active) continue;
        activate(rail);
        rail.idle = kIdleMax - 1;  // once is enough
      }
    }
  }
  std::size_t events = 0;
  for (std::size_t i = active_.size(); i-- > 0;) {
    Place::Rail& rail = *active_[i];
    const std::size_t here = rail.progress();
    events += here;
    rail.idle = here > 0 ? 0 : rail.idle + 1;
    if (rail.idle < kIdleMax || !rail.arm()) continue;
    rail.active = false;
    active_[i] = active_.back();
    active_.pop_back();
  }
  return events;
}

bool OfiTarget::arm() {
  for (const Place::Rail* rail : active_) {
    if (!rail->arm()) return false;
  }
  for (Place::Rail* rail : active_) rail->active = false;
  active_.clear();
  return true;
}

}  // namespace

Result<std::unique_ptr<Target>> make_ofi_target(const OfiTargetOptions& options) {
  return OfiTarget::create(options);
}

}  // namespace ho::transport
