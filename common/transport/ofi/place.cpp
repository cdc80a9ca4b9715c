#include "common/transport/ofi/place.hpp"

#include <poll.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/provider_names.hpp"
#include "common/transport/ofi/sockets.hpp"
#include "common/transport/secret.hpp"

namespace ho::transport {
namespace {

/// Rounds of the completion queue per progress(): bounded, and enough to fill a socket's buffer.
constexpr int kRoundsMax = 8;
/// A connection within this machine takes microseconds.
constexpr Duration kProofTime = std::chrono::seconds(5);

}  // namespace

void HelloPage::Unmap::operator()(std::byte* page) const { ::munmap(page, kBytes); }

Result<HelloPage> HelloPage::create() {
  void* page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (page == MAP_FAILED) return errno_error(errno, "mapping a page");
  std::memcpy(page, &kHelloMagic, sizeof kHelloMagic);
  return HelloPage(static_cast<std::byte*>(page));
}

Result<std::unique_ptr<Place>> Place::open(const std::string& provider, std::span<const OfiRail> at,
                                           const HelloPage& hello, std::size_t connections_max) {
  std::unique_ptr<Place> place(new Place(connections_max));
  place->opened_from_ = next_descriptor();
  for (const OfiRail& rail : at) {
    const auto listening = place->listen(provider, rail);
    if (!listening) return listening.error();
  }
  const auto exposed = place->expose_hello(provider, hello);
  if (!exposed) return exposed.error();
  return place;
}

Result<void> Place::listen(const std::string& provider, const OfiRail& at) {
  if (at.bind_address == "0.0.0.0" || at.bind_address == "::") {
    return Error(Errc::kInvalidArgument, "bind_address: must be an address that peers can reach");
  }
  auto endpoint = Endpoint::listen(
      Endpoint::Listen{provider, at.domain, at.bind_address, std::to_string(at.port)});
  if (!endpoint) {
    const std::string& where = at.bind_address.empty() ? at.domain : at.bind_address;
    return endpoint.error().at(where.empty() ? "listening" : "listening on " + where);
  }
  Rail rail;
  rail.endpoint = std::move(*endpoint);
  const int returned = fi_control(&rail.endpoint->cq()->fid, FI_GETWAIT, &rail.wait_descriptor);
  if (returned != 0) return fabric_error(returned, "asking for a descriptor to wait on");
  rails_.push_back(std::move(rail));
  return {};
}

Result<Place::Registered> Place::register_memory(std::span<std::byte> memory, Rights rights) {
  const auto& first = *rails_.front().endpoint;
  const bool keys_are_ours = (first.mr_mode() & FI_MR_PROV_KEY) == 0;
  const std::size_t key_bytes = first.info().domain_attr->mr_key_size;
  for (int attempt = 0; attempt < 4; ++attempt) {  // a key may be taken, hardly ever twice
    const auto secret = random_secret();
    if (!secret) return secret.error();
    std::uint64_t wanted = *secret;
    if (key_bytes < sizeof wanted) wanted &= (std::uint64_t{1} << (8 * key_bytes)) - 1;
    auto made = register_under(keys_are_ours ? wanted : 0, memory, rights);
    if (made || attempt == 3 || !keys_are_ours) return made;
  }
  return Error(Errc::kExhausted, "no free key");
}

Result<Place::Registered> Place::register_under(std::uint64_t secret, std::span<std::byte> memory,
                                                Rights rights) {
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

Result<void> Place::expose_hello(const std::string& provider, const HelloPage& hello) {
  auto registered = register_memory(hello.bytes(), Rights::kRead);
  if (!registered) return registered.error();
  const auto kept = check_not_cached(hello, registered->keys);
  if (!kept) return kept.error();
  hello_memory_ = std::move(registered->memory);
  std::vector<OfiAddress> addresses;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const Endpoint& endpoint = *rails_[i].endpoint;
    const auto name = endpoint.own_name();
    if (!name) return name.error();
    addresses.push_back({provider, endpoint.info().addr_format, *name, registered->keys[i]});
    end_lost_connections(addresses.back(), opened_from_);
  }
  const auto guarded = guard(addresses);
  if (!guarded) return guarded.error();
  address_ = encode_addresses(addresses);
  return {};
}

/// All of them before anything makes progress: whoever waits at one is accepted then.
Result<void> Place::guard(const std::vector<OfiAddress>& listening) {
  for (const OfiAddress& each : listening) {
    // ofi_rxm has a protocol of its own above TCP's, of messages.
    if (!separates_tenants(each.provider)) return {};
    auto guarded = GuardedAddress::create(each, connections_max_);
    if (!guarded) return guarded.error();
    guarded_.push_back(std::move(*guarded));
  }
  return anything_guarded() ? Result<void>() : prove_guarded(listening.front());
}

Result<void> Place::prove_guarded(const OfiAddress& listening) {
  const auto where = socket_address(listening);
  HO_CHECK(where.has_value());
  const UniqueFd socket(::socket(where->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno_error(errno, "a socket to try our own address with");
  const auto length = static_cast<socklen_t>(listening.name.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*where), length) != 0 &&
      errno != EINPROGRESS) {
    return errno_error(errno, "connecting to our own address " + describe(listening));
  }
  const SteadyClock clock;
  const TimePoint end = clock.now() + kProofTime;
  bool sent = false;
  while (!anything_guarded()) {
    if (clock.now() > end) {
      return Error(Errc::kUnsupported,
                   "libfabric reads from " + describe(listening) +
                       " past the check of what peers send (is FI_TCP_IO_URING set?)");
    }
    constexpr char kHalfAHello = 0;
    sent = sent || ::send(socket.get(), &kHalfAHello, 1, MSG_NOSIGNAL) == 1;
    for (const Rail& rail : rails_) (void)rail.progress();
  }
  return {};
}

Result<void> Place::check_not_cached(const HelloPage& hello, std::span<const RemoteKey> keys) {
  if ((rails_.front().endpoint->mr_mode() & FI_MR_PROV_KEY) == 0) return {};  // they are ours
  const auto again = register_memory(hello.bytes(), Rights::kRead);
  if (!again) return again.error();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (again->keys[i].key != keys[i].key) continue;
    return Error(Errc::kUnsupported,
                 "the provider keeps registrations in a cache, with rights that were not asked for "
                 "and beyond their end: FI_MR_CACHE_MAX_COUNT=0 in the environment turns it off");
  }
  return {};
}

std::size_t Place::Rail::progress() const {
  // One-sided accesses leave no entry in the queue, so the descriptor says whether there was work.
  std::size_t events = 0;
  for (int round = 0; round < kRoundsMax; ++round) {
    pollfd ready{wait_descriptor, POLLIN, 0};
    const bool work = ::poll(&ready, 1, 0) > 0;
    // Some providers leave the descriptor readable until somebody prepares to wait again.
    if (work) (void)arm();
    fi_cq_entry entries[16];
    const ssize_t got = fi_cq_read(endpoint->cq(), entries, 16);
    if (got == -FI_EAVAIL) {
      // A peer's connection ended in the middle of something. The rest goes on.
      fi_cq_err_entry error{};
      (void)fi_cq_readerr(endpoint->cq(), &error, 0);
    }
    if (!work && (got == -FI_EAGAIN || got == 0)) break;
    ++events;
  }
  return events;
}

bool Place::Rail::arm() const {
  fid* waited[] = {&endpoint->cq()->fid};
  return fi_trywait(endpoint->fabric(), waited, 1) == 0;
}

}  // namespace ho::transport
