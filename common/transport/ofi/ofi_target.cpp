#include <poll.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/base/log.hpp"
#include "common/system/random.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/ofi/alias.hpp"
#include "common/transport/ofi/endpoint.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/provider_names.hpp"
#include "common/transport/ofi/registration_cache.hpp"
#include "common/transport/ofi/wire.hpp"

namespace ho::transport {
namespace {

/// Rounds of a completion queue per progress(): bounded, and enough to fill a socket's buffer.
constexpr int kRoundsMax = 8;
constexpr std::size_t kHelloPageBytes = 4096;

struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::byte* base) const { ::munmap(base, bytes); }
};
using Mapping = std::unique_ptr<std::byte, Unmap>;

/// The page that every initiator may read, which proves whom it has reached.
Result<Mapping> map_hello() {
  void* const page = ::mmap(nullptr, kHelloPageBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (page == MAP_FAILED) return errno_error(errno, "mapping a page");
  std::memcpy(page, &kHelloMagic, sizeof kHelloMagic);
  return Mapping(static_cast<std::byte*>(page), Unmap{kHelloPageBytes});
}

/// Memory as it is registered on each rail.
struct Registered {
  std::vector<MemoryHandle> memory;
  std::vector<RemoteKey> keys;
};

/// The daemon's side; see make_ofi_target(). Owner thread: the daemon's data thread.
class OfiTarget final : public Target {
 public:
  OfiTarget(std::string provider, std::size_t rails)
      : caps_{"ofi", rails}, provider_(std::move(provider)) {}
  OfiTarget(const OfiTarget&) = delete;
  OfiTarget& operator=(const OfiTarget&) = delete;
  ~OfiTarget() override {
    shut();
    for (auto& [id, region] : regions_) {
      if (!region.alias.empty()) ::munmap(region.alias.data(), region.alias.size());
    }
  }

  [[nodiscard]] Result<void> open(const std::vector<OfiListen>& rails);

  [[nodiscard]] const TargetCaps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::string> admit(const Credentials& session) override {
    if (rails_.empty()) return Error(Errc::kUnavailable, "the target is shut");
    sessions_.insert(session.session);
    return address_;
  }
  void dismiss(SessionId session) override { sessions_.erase(session); }
  [[nodiscard]] Result<std::string> fence(SessionId /*session*/,
                                          const RailFence& /*rail*/) override {
    return Error(Errc::kUnsupported, "libfabric's targets cannot end one peer's connection");
  }
  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override;
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override;
  void shut() override;
  std::size_t progress() override;
  [[nodiscard]] int wait_descriptor() const override { return joined_.get(); }
  [[nodiscard]] bool arm() override {
    return std::all_of(rails_.begin(), rails_.end(), [](const Rail& rail) { return arm(rail); });
  }

 private:
  struct Rail {
    std::unique_ptr<Endpoint> endpoint;
    int wait_descriptor = -1;
  };
  struct Region {
    std::span<std::byte> alias;        ///< empty: none is needed
    std::vector<MemoryHandle> memory;  ///< by rail
  };

  [[nodiscard]] Result<void> listen(const OfiListen& at);
  [[nodiscard]] Result<void> expose_hello();
  [[nodiscard]] Result<Registered> register_memory(std::span<std::byte> memory, Rights rights);
  [[nodiscard]] Result<Registered> register_under(std::uint64_t secret, std::span<std::byte> memory,
                                                  Rights rights);
  [[nodiscard]] static bool arm(const Rail& rail);
  static std::size_t progress(const Rail& rail);

  const TargetCaps caps_;
  const std::string provider_;
  Mapping hello_;
  std::string address_;
  UniqueFd joined_;          ///< over all rails' descriptors
  std::vector<Rail> rails_;  ///< none once it is shut
  std::vector<MemoryHandle> hello_memory_;
  std::unordered_set<SessionId> sessions_;
  AliasSpace aliases_;
  std::unordered_map<ExposureId, Region> regions_;
  std::uint64_t next_id_ = 1;
};

Result<void> OfiTarget::open(const std::vector<OfiListen>& rails) {
  auto hello = map_hello();
  if (!hello) return hello.error();
  hello_ = std::move(*hello);
  joined_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!joined_.valid()) return errno_error(errno, "joining descriptors to wait on");
  for (const OfiListen& rail : rails) {
    if (auto listening = listen(rail); !listening) return listening;
  }
  return expose_hello();
}

Result<void> OfiTarget::listen(const OfiListen& at) {
  if (at.address == "0.0.0.0" || at.address == "::") {
    return Error(Errc::kInvalidArgument, "address: must be one that peers can reach");
  }
  auto endpoint = Endpoint::listen({provider_, at.domain, at.address});
  if (!endpoint) {
    const std::string& where = at.address.empty() ? at.domain : at.address;
    return endpoint.error().at(where.empty() ? "listening" : "listening on " + where);
  }
  Rail rail;
  rail.endpoint = std::move(*endpoint);
  const int returned = fi_control(&rail.endpoint->cq()->fid, FI_GETWAIT, &rail.wait_descriptor);
  if (returned != 0) return fabric_error(returned, "asking for a descriptor to wait on");
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(joined_.get(), EPOLL_CTL_ADD, rail.wait_descriptor, &event) != 0) {
    return errno_error(errno, "joining descriptors to wait on");
  }
  rails_.push_back(std::move(rail));
  return {};
}

Result<void> OfiTarget::expose_hello() {
  const std::span<std::byte> page(hello_.get(), kHelloPageBytes);
  auto registered = register_memory(page, Rights::kRead);
  if (!registered) return registered.error();
  if ((rails_.front().endpoint->mr_mode() & FI_MR_PROV_KEY) != 0) {
    // The same memory, registered twice, has two keys unless a cache stands in between.
    const auto again = register_memory(page, Rights::kRead);
    if (!again) return again.error();
    for (std::size_t i = 0; i < rails_.size(); ++i) {
      if (again->keys[i].key != registered->keys[i].key) continue;
      return Error(
          Errc::kUnsupported,
          "the provider keeps registrations in a cache, with rights that were not asked for "
          "and beyond their end: FI_MR_CACHE_MAX_COUNT=0 in the environment turns it off");
    }
  }
  hello_memory_ = std::move(registered->memory);
  std::vector<OfiAddress> addresses;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const Endpoint& endpoint = *rails_[i].endpoint;
    const auto name = endpoint.own_name();
    if (!name) return name.error();
    addresses.push_back({provider_, endpoint.info().addr_format, *name, registered->keys[i]});
  }
  address_ = encode_addresses(addresses);
  return {};
}

Result<Registered> OfiTarget::register_memory(std::span<std::byte> memory, Rights rights) {
  const Endpoint& first = *rails_.front().endpoint;
  const bool keys_are_ours = (first.mr_mode() & FI_MR_PROV_KEY) == 0;
  const std::size_t key_bytes = first.info().domain_attr->mr_key_size;
  for (int attempt = 0;; ++attempt) {     // a key may be taken, hardly ever twice
    std::uint64_t wanted = random_u64();  // which peers must not guess
    if (key_bytes < sizeof wanted) wanted &= (std::uint64_t{1} << (8 * key_bytes)) - 1;
    auto made = register_under(keys_are_ours ? wanted : 0, memory, rights);
    if (made || attempt == 3 || !keys_are_ours) return made;
  }
}

Result<Registered> OfiTarget::register_under(std::uint64_t secret, std::span<std::byte> memory,
                                             Rights rights) {
  std::uint64_t access = FI_REMOTE_READ;
  if (rights == Rights::kReadWrite) access |= FI_REMOTE_WRITE;
  Registered made;
  for (const Rail& rail : rails_) {
    auto handle = rail.endpoint->register_memory({memory, access, secret});
    if (!handle) return handle.error();
    const bool by_address = (rail.endpoint->mr_mode() & FI_MR_VIRT_ADDR) != 0;
    made.keys.push_back({fi_mr_key(handle->get()),
                         by_address ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0,
                         memory.size(), rights});
    made.memory.push_back(std::move(*handle));
  }
  return made;
}

Result<Exposure> OfiTarget::expose(const ExposeRequest& request) {
  if (rails_.empty()) return Error(Errc::kUnavailable, "the target is shut");
  if (request.memory.empty()) return Error(Errc::kInvalidArgument, "no memory to expose");
  if (sessions_.count(request.session) == 0) {
    return Error(Errc::kNotFound, "the session is not admitted to this driver (any more)");
  }
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
  auto registered = register_memory(served, request.rights);
  if (!registered) {
    if (!alias.empty()) ::munmap(alias.data(), alias.size());
    return registered.error();
  }
  const ExposureId id(next_id_++);
  regions_.emplace(id, Region{alias, std::move(registered->memory)});
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
  if (!found->second.alias.empty()) {
    if (auto cut = aliases_.retire(found->second.alias); !cut) closed = cut;
  }
  regions_.erase(found);
  return closed;
}

void OfiTarget::shut() {
  // Registrations first, then the endpoints and with them all connections: a transfer caught
  // half-way stays half, and nothing touches the memory any more.
  for (auto& [id, region] : regions_) region.memory.clear();
  hello_memory_.clear();
  for (const Rail& rail : rails_) {
    (void)::epoll_ctl(joined_.get(), EPOLL_CTL_DEL, rail.wait_descriptor, nullptr);
  }
  rails_.clear();
}

std::size_t OfiTarget::progress() {
  std::size_t events = 0;
  for (const Rail& rail : rails_) events += progress(rail);
  return events;
}

std::size_t OfiTarget::progress(const Rail& rail) {
  // One-sided accesses leave no entry in the queue, so the descriptor says whether there was work.
  std::size_t events = 0;
  for (int round = 0; round < kRoundsMax; ++round) {
    pollfd ready{rail.wait_descriptor, POLLIN, 0};
    const bool work = ::poll(&ready, 1, 0) > 0;
    // Some providers leave the descriptor readable until somebody prepares to wait again.
    if (work) (void)arm(rail);
    fi_cq_entry entries[16];
    const ssize_t got = fi_cq_read(rail.endpoint->cq(), entries, 16);
    if (got == -FI_EAVAIL) {
      // A peer's connection ended in the middle of something. The rest goes on.
      fi_cq_err_entry error{};
      (void)fi_cq_readerr(rail.endpoint->cq(), &error, 0);
    }
    if (!work && (got == -FI_EAGAIN || got == 0)) break;
    ++events;
  }
  return events;
}

bool OfiTarget::arm(const Rail& rail) {
  fid* waited[] = {&rail.endpoint->cq()->fid};
  return fi_trywait(rail.endpoint->fabric(), waited, 1) == 0;
}

}  // namespace

Result<std::unique_ptr<Target>> make_ofi_target(const OfiTargetOptions& options) {
  if (options.rails.empty() || options.rails.size() > kRailsMax) {
    return Error(Errc::kInvalidArgument,
                 "a target listens at 1 to " + std::to_string(kRailsMax) + " addresses");
  }
  auto provider = provider_here(options.provider, options.allow_emulation);
  if (!provider) return provider.error();
  // Whether there is one that matters shows where memory is registered.
  if (const auto off = turn_off_registration_cache(); !off) {
    log(LogLevel::kWarning, "libfabric's registration cache stays as it is",
        {{"why", off.error().context()}});
  }
  auto made = std::make_unique<OfiTarget>(std::move(*provider), options.rails.size());
  if (auto opened = made->open(options.rails); !opened) return opened.error();
  return std::unique_ptr<Target>(std::move(made));
}

}  // namespace ho::transport
