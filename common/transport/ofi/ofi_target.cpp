#include <poll.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/alias.hpp"
#include "common/transport/ofi/endpoint.hpp"
#include "common/transport/ofi/fabric_log.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/sockets.hpp"
#include "common/transport/ofi/wire.hpp"
#include "common/transport/secret.hpp"

namespace ho::transport {
namespace {

constexpr std::size_t kHelloPageBytes = 4096;
/// Rounds of the completion queue per progress(): bounded, and enough to fill a socket's buffer.
constexpr int kRoundsMax = 8;

/// A page of our own that every initiator may read.
struct PageUnmap {
  void operator()(std::byte* page) const { ::munmap(page, kHelloPageBytes); }
};

/// The daemon's side; see make_ofi_target(). Owner thread: the daemon's data thread.
class OfiTarget final : public Target {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Target>> create(const OfiTargetOptions& options);
  OfiTarget() = default;
  OfiTarget(const OfiTarget&) = delete;
  OfiTarget& operator=(const OfiTarget&) = delete;
  ~OfiTarget() override {
    shut();
    for (auto& [id, region] : regions_) ::munmap(region.alias.data(), region.alias.size());
  }

  [[nodiscard]] std::string_view name() const override { return "ofi"; }
  [[nodiscard]] const std::string& address() const override { return address_; }
  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override;
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override;
  void shut() override;
  std::size_t progress() override;
  [[nodiscard]] int wait_descriptor() const override { return wait_descriptor_; }
  [[nodiscard]] bool arm() override;

 private:
  /// One address that it listens at.
  struct Rail {
    std::unique_ptr<Endpoint> endpoint;
    int wait_descriptor = -1;
  };
  struct Region {
    std::span<std::byte> alias;
    std::vector<MemoryHandle> memory;  ///< by rail
  };
  struct Registered {
    std::vector<MemoryHandle> memory;  ///< by rail
    std::vector<RemoteKey> keys;       ///< by rail
  };
  [[nodiscard]] Result<void> listen(const std::string& provider, const OfiRail& at);
  [[nodiscard]] Result<void> join_descriptors();
  [[nodiscard]] Result<Registered> register_exposed(std::span<std::byte> memory, Rights rights);
  [[nodiscard]] Result<Registered> register_exposed(std::span<std::byte> memory, Rights rights,
                                                    std::uint64_t secret);
  [[nodiscard]] Result<void> expose_hello(const std::string& provider);
  [[nodiscard]] static std::size_t progress(const Rail& rail);
  [[nodiscard]] static bool arm(const Rail& rail);

  std::vector<Rail> rails_;  ///< none once it is shut
  UniqueFd joined_;          ///< over the rails' descriptors; not valid with one rail
  int wait_descriptor_ = -1;
  std::string address_;
  std::unique_ptr<std::byte, PageUnmap> hello_page_;
  std::vector<MemoryHandle> hello_memory_;
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
  const auto provider = provider_here(options.provider);
  if (!provider) return provider.error();
  auto target = std::make_unique<OfiTarget>();
  for (const OfiRail& rail : options.rails) {
    const auto listening = target->listen(*provider, rail);
    if (!listening) return listening.error();
  }
  const auto joined = target->join_descriptors();
  if (!joined) return joined.error();
  const auto hello = target->expose_hello(*provider);
  if (!hello) return hello.error();
  return std::unique_ptr<Target>(std::move(target));
}

Result<void> OfiTarget::listen(const std::string& provider, const OfiRail& at) {
  if (at.bind_address == "0.0.0.0" || at.bind_address == "::") {
    return Error(Errc::kInvalidArgument, "bind_address: must be an address that peers can reach");
  }
  auto endpoint = Endpoint::listen(
      Endpoint::Listen{provider, at.domain, at.bind_address, std::to_string(at.port)});
  if (!endpoint) {
    const std::string& where = at.bind_address.empty() ? at.domain : at.bind_address;
    return endpoint.error().at("listening on " + where);
  }
  Rail rail{std::move(*endpoint), -1};
  const int returned = fi_control(&rail.endpoint->cq()->fid, FI_GETWAIT, &rail.wait_descriptor);
  if (returned != 0) return fabric_error(returned, "asking for a descriptor to wait on");
  rails_.push_back(std::move(rail));
  return {};
}

/// One descriptor that is readable when any rail's is.
Result<void> OfiTarget::join_descriptors() {
  wait_descriptor_ = rails_.front().wait_descriptor;
  if (rails_.size() == 1) return {};
  joined_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!joined_.valid()) return errno_error(errno, "joining descriptors to wait on");
  for (const Rail& rail : rails_) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(joined_.get(), EPOLL_CTL_ADD, rail.wait_descriptor, &event) != 0) {
      return errno_error(errno, "joining descriptors to wait on");
    }
  }
  wait_descriptor_ = joined_.get();
  return {};
}

/// On every rail, under one key where the provider lets us choose.
Result<OfiTarget::Registered> OfiTarget::register_exposed(std::span<std::byte> memory,
                                                          Rights rights) {
  const auto& first = *rails_.front().endpoint;
  const bool keys_are_ours = (first.mr_mode() & FI_MR_PROV_KEY) == 0;
  const std::size_t key_bytes = first.info().domain_attr->mr_key_size;
  for (int attempt = 0; attempt < 4; ++attempt) {  // a key may be taken, hardly ever twice
    const auto secret = random_secret();
    if (!secret) return secret.error();
    std::uint64_t wanted = *secret;
    if (key_bytes < sizeof wanted) wanted &= (std::uint64_t{1} << (8 * key_bytes)) - 1;
    auto made = register_exposed(memory, rights, keys_are_ours ? wanted : 0);
    if (made || attempt == 3 || !keys_are_ours) return made;
  }
  return Error(Errc::kExhausted, "no free key");
}

Result<OfiTarget::Registered> OfiTarget::register_exposed(std::span<std::byte> memory,
                                                          Rights rights, std::uint64_t secret) {
  std::uint64_t access = FI_REMOTE_READ;
  if (rights == Rights::kReadWrite) access |= FI_REMOTE_WRITE;
  Registered made;
  for (const Rail& rail : rails_) {
    auto handle = rail.endpoint->register_memory(Endpoint::Registration{memory, access, secret});
    if (!handle) return handle.error();
    const bool by_address = (rail.endpoint->mr_mode() & FI_MR_VIRT_ADDR) != 0;
    made.keys.push_back({fi_mr_key(handle->get()),
                         by_address ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0,
                         memory.size(), rights});
    made.memory.push_back(std::move(*handle));
  }
  return made;
}

Result<void> OfiTarget::expose_hello(const std::string& provider) {
  void* page = ::mmap(nullptr, kHelloPageBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (page == MAP_FAILED) return errno_error(errno, "mapping a page");
  hello_page_.reset(static_cast<std::byte*>(page));
  std::memcpy(page, &kHelloMagic, sizeof kHelloMagic);
  auto registered = register_exposed({hello_page_.get(), kHelloPageBytes}, Rights::kRead);
  if (!registered) return registered.error();
  hello_memory_ = std::move(registered->memory);
  std::vector<OfiAddress> addresses;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const Endpoint& endpoint = *rails_[i].endpoint;
    const auto name = endpoint.own_name();
    if (!name) return name.error();
    addresses.push_back({provider, endpoint.info().addr_format, *name, registered->keys[i]});
    end_lost_connections(addresses.back());
  }
  address_ = encode_addresses(addresses);
  return {};
}

Result<Exposure> OfiTarget::expose(const ExposeRequest& request) {
  if (rails_.empty()) return Error(Errc::kUnavailable, "the target is shut");
  const auto alias = aliases_.open(request);
  if (!alias) return alias.error();
  auto registered = register_exposed(*alias, request.rights);
  if (!registered) {
    ::munmap(alias->data(), alias->size());
    return registered.error();
  }
  const ExposureId id(next_id_++);
  regions_.emplace(id, Region{*alias, std::move(registered->memory)});
  return Exposure{id, encode_keys(registered->keys), *alias};
}

Result<void> OfiTarget::revoke(ExposureId exposure) {
  const auto found = regions_.find(exposure);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such exposure");
  found->second.memory.clear();
  aliases_.retire(found->second.alias);
  regions_.erase(found);
  return {};
}

void OfiTarget::shut() {
  // Registrations first, then the endpoints and with them all connections: a transfer caught
  // half-way stays half, and nothing touches the aliases any more.
  hello_memory_.clear();
  for (auto& [id, region] : regions_) region.memory.clear();
  joined_.reset();
  rails_.clear();
  wait_descriptor_ = -1;
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

bool OfiTarget::arm() {
  return std::all_of(rails_.begin(), rails_.end(), [](const Rail& rail) { return arm(rail); });
}

}  // namespace

Result<std::unique_ptr<Target>> make_ofi_target(const OfiTargetOptions& options) {
  return OfiTarget::create(options);
}

}  // namespace ho::transport
