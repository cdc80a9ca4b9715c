#include <poll.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/transport/ofi/alias.hpp"
#include "common/transport/ofi/endpoint.hpp"
#include "common/transport/ofi/fabric_log.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
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
  OfiTarget(std::unique_ptr<Endpoint> endpoint, int wait_descriptor)
      : endpoint_(std::move(endpoint)), wait_descriptor_(wait_descriptor) {}
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
  struct Region {
    std::span<std::byte> alias;
    MemoryHandle memory;
  };
  struct Registered {
    MemoryHandle memory;
    RemoteKey key;
  };
  [[nodiscard]] Result<Registered> register_exposed(std::span<std::byte> memory, Rights rights);
  [[nodiscard]] Result<void> expose_hello(const std::string& provider);

  std::unique_ptr<Endpoint> endpoint_;
  int wait_descriptor_;
  std::string address_;
  std::unique_ptr<std::byte, PageUnmap> hello_page_;
  MemoryHandle hello_memory_;
  AliasSpace aliases_;
  std::unordered_map<ExposureId, Region> regions_;
  std::uint64_t next_id_ = 1;
};

Result<std::unique_ptr<Target>> OfiTarget::create(const OfiTargetOptions& options) {
  if (options.bind_address == "0.0.0.0" || options.bind_address == "::") {
    return Error(Errc::kInvalidArgument, "bind_address: must be an address that peers can reach");
  }
  if (options.refusals) {
    // Nobody is refused the less for not being counted.
    if (const auto counted = count_refusals(options.refusals); !counted) {
      log(LogLevel::kWarning, "refused accesses are not counted",
          {{"why", counted.error().context()}});
    }
  }
  auto endpoint = Endpoint::listen(Endpoint::Listen{
      options.provider, options.domain, options.bind_address, std::to_string(options.port)});
  if (!endpoint) return endpoint.error().at("listening on " + options.bind_address);
  int descriptor = -1;
  const int returned = fi_control(&(*endpoint)->cq()->fid, FI_GETWAIT, &descriptor);
  if (returned != 0) return fabric_error(returned, "asking for a descriptor to wait on");
  auto target = std::make_unique<OfiTarget>(std::move(*endpoint), descriptor);
  const auto hello = target->expose_hello(options.provider);
  if (!hello) return hello.error();
  return std::unique_ptr<Target>(std::move(target));
}

Result<OfiTarget::Registered> OfiTarget::register_exposed(std::span<std::byte> memory,
                                                          Rights rights) {
  std::uint64_t access = FI_REMOTE_READ;
  if (rights == Rights::kReadWrite) access |= FI_REMOTE_WRITE;
  const bool keys_are_ours = (endpoint_->mr_mode() & FI_MR_PROV_KEY) == 0;
  const std::size_t key_bytes = endpoint_->info().domain_attr->mr_key_size;
  for (int attempt = 0; attempt < 4; ++attempt) {  // a key may be taken, hardly ever twice
    const auto secret = random_secret();
    if (!secret) return secret.error();
    std::uint64_t wanted = *secret;
    if (key_bytes < sizeof wanted) wanted &= (std::uint64_t{1} << (8 * key_bytes)) - 1;
    auto handle = endpoint_->register_memory(
        Endpoint::Registration{memory, access, keys_are_ours ? wanted : 0});
    if (!handle) {
      if (attempt < 3 && keys_are_ours) continue;
      return handle.error();
    }
    const bool by_address = (endpoint_->mr_mode() & FI_MR_VIRT_ADDR) != 0;
    const RemoteKey key{fi_mr_key(handle->get()),
                        by_address ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0,
                        memory.size(), rights};
    return Registered{std::move(*handle), key};
  }
  return Error(Errc::kExhausted, "no free key");
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
  const auto name = endpoint_->own_name();
  if (!name) return name.error();
  address_ =
      encode_address(OfiAddress{provider, endpoint_->info().addr_format, *name, registered->key});
  return {};
}

Result<Exposure> OfiTarget::expose(const ExposeRequest& request) {
  if (!endpoint_) return Error(Errc::kUnavailable, "the target is shut");
  const auto alias = aliases_.open(request);
  if (!alias) return alias.error();
  auto registered = register_exposed(*alias, request.rights);
  if (!registered) {
    ::munmap(alias->data(), alias->size());
    return registered.error();
  }
  const ExposureId id(next_id_++);
  regions_.emplace(id, Region{*alias, std::move(registered->memory)});
  return Exposure{id, encode_key(registered->key), *alias};
}

Result<void> OfiTarget::revoke(ExposureId exposure) {
  const auto found = regions_.find(exposure);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such exposure");
  found->second.memory.reset();
  aliases_.retire(found->second.alias);
  regions_.erase(found);
  return {};
}

void OfiTarget::shut() {
  // Registrations first, then the endpoint and with it all connections: a transfer caught half-way
  // stays half, and nothing touches the aliases any more.
  hello_memory_.reset();
  for (auto& [id, region] : regions_) region.memory.reset();
  endpoint_.reset();
  wait_descriptor_ = -1;
}

std::size_t OfiTarget::progress() {
  if (!endpoint_) return 0;
  // One-sided accesses leave no entry in the queue, so the descriptor says whether there was work.
  std::size_t events = 0;
  for (int round = 0; round < kRoundsMax; ++round) {
    pollfd ready{wait_descriptor_, POLLIN, 0};
    const bool work = ::poll(&ready, 1, 0) > 0;
    // Some providers leave the descriptor readable until somebody prepares to wait again.
    if (work) (void)arm();
    fi_cq_entry entries[16];
    const ssize_t got = fi_cq_read(endpoint_->cq(), entries, 16);
    if (got == -FI_EAVAIL) {
      // A peer's connection ended in the middle of something. The rest goes on.
      fi_cq_err_entry error{};
      (void)fi_cq_readerr(endpoint_->cq(), &error, 0);
    }
    if (!work && (got == -FI_EAGAIN || got == 0)) break;
    ++events;
  }
  return events;
}

bool OfiTarget::arm() {
  if (!endpoint_) return true;
  fid* waited[] = {&endpoint_->cq()->fid};
  return fi_trywait(endpoint_->fabric(), waited, 1) == 0;
}

}  // namespace

Result<std::unique_ptr<Target>> make_ofi_target(const OfiTargetOptions& options) {
  return OfiTarget::create(options);
}

}  // namespace ho::transport
