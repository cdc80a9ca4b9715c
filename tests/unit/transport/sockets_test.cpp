#include "common/transport/ofi/sockets.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/wire.hpp"

namespace {

using namespace ho;
using namespace ho::transport;

/// A listener on loopback, a connection to it, and the end that was accepted.
struct Pair {
  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd initiator{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd target;
  OfiAddress address;

  Pair() {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof where;
    auto* const name = reinterpret_cast<sockaddr*>(&where);
    REQUIRE(::bind(listener.get(), name, length) == 0);
    REQUIRE(::listen(listener.get(), 4) == 0);
    REQUIRE(::getsockname(listener.get(), name, &length) == 0);
    REQUIRE(::connect(initiator.get(), name, length) == 0);
    target = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(target.valid());
    address.provider = "net";
    address.format = FI_SOCKADDR_IN;
    address.name.assign(reinterpret_cast<const char*>(&where), sizeof where);
  }

  enum class End { kReset, kClosed, kNone };
  /// How the connection looks from the other side.
  [[nodiscard]] End end() const {
    pollfd entry{target.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) == 0) return End::kNone;
    std::array<char, 64> bytes{};
    const ssize_t got = ::recv(target.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == ECONNRESET) return End::kReset;
    return got == 0 ? End::kClosed : End::kNone;
  }

  /// What giving up a rail does.
  void give_up(Leavings& leavings) {
    const auto alone = Leavings::alone();
    leavings.hold(address);
    initiator.reset();  // libfabric's own
    leavings.cut();
  }
};

/// Descriptors are taken until so many are open.
std::vector<UniqueFd> fill_descriptors(int count) {
  std::vector<UniqueFd> taken;
  while (true) {
    UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    REQUIRE(next.valid());
    if (next.get() >= count) return taken;
    taken.push_back(std::move(next));
  }
}

bool kept_alive(const UniqueFd& socket) {
  int on = 0;
  socklen_t length = sizeof on;
  REQUIRE(::getsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, &length) == 0);
  return on == 1;
}

/// Another listener at the same address.
UniqueFd listen_beside(const OfiAddress& address) {
  constexpr int kOn = 1;
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEPORT, &kOn, sizeof kOn) == 0);
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(address.name.data()),
                 static_cast<socklen_t>(address.name.size())) == 0);
  REQUIRE(::listen(listener.get(), 4) == 0);
  return listener;
}

rlimit descriptor_limit() {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return limit;
}

}  // namespace

TEST_CASE("sockets: a connection that is given up is reset, however many descriptors there are") {
  const rlimit before = descriptor_limit();
  rlimit wide = before;
  wide.rlim_cur = std::min<rlim_t>(before.rlim_max, 8192);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &wide) == 0);
  // At the ends of the kernel's tables a new descriptor makes a larger one, and of more than some
  // 1300 the kernel lists in several parts.
  for (const int count : {20, 61, 62, 63, 64, 253, 254, 255, 256, 1400, 3000}) {
    INFO(count << " descriptors");
    Pair pair;
    const auto taken = fill_descriptors(count);
    Leavings leavings;
    pair.give_up(leavings);
    CHECK(pair.end() == Pair::End::kReset);
    CHECK(leavings.gone());
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("sockets: a connection that somebody else in the process has goes on") {
  Pair pair;
  const UniqueFd others(::fcntl(pair.initiator.get(), F_DUPFD_CLOEXEC, 0));
  Leavings leavings;
  pair.give_up(leavings);
  CHECK(pair.end() == Pair::End::kNone);
  CHECK(leavings.gone());
}

TEST_CASE("sockets: two that give up connections to one target at once reset both") {
  for (int round = 0; round < 100; ++round) {
    Pair pair;
    UniqueFd second(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(second.get(), reinterpret_cast<const sockaddr*>(pair.address.name.data()),
                      static_cast<socklen_t>(pair.address.name.size())) == 0);
    const UniqueFd accepted(
        ::accept4(pair.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    REQUIRE(accepted.valid());
    Leavings ours;
    Leavings theirs;
    std::thread other([&] {
      const auto alone = Leavings::alone();
      theirs.hold(pair.address);
      second.reset();
      theirs.cut();
    });
    pair.give_up(ours);
    other.join();
    char byte = 0;
    REQUIRE(pair.end() == Pair::End::kReset);
    REQUIRE(::recv(accepted.get(), &byte, 1, 0) == -1);
    REQUIRE(errno == ECONNRESET);
  }
}

TEST_CASE("sockets: where connections cannot be looked for, nothing counts as gone") {
  Pair pair;
  const rlimit before = descriptor_limit();
  rlimit none = before;
  none.rlim_cur = 3;  // no new one
  Leavings leavings;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  leavings.hold(pair.address);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  leavings.cut();
  CHECK_FALSE(leavings.gone());
}

TEST_CASE("sockets: a listener is looked for among new descriptors, then among all") {
  OfiAddress address;
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.provider = "net";
  address.format = FI_SOCKADDR_IN;
  address.name.assign(reinterpret_cast<const char*>(&where), sizeof where);
  UniqueFd low(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd before = listen_beside(address);
  socklen_t length = sizeof where;
  REQUIRE(::getsockname(before.get(), reinterpret_cast<sockaddr*>(&where), &length) == 0);
  address.name.assign(reinterpret_cast<const char*>(&where), sizeof where);
  const int opened_from = next_descriptor();
  const UniqueFd after = listen_beside(address);
  CHECK(opened_from == after.get());
  end_lost_connections(address, opened_from);
  CHECK(kept_alive(after));
  CHECK_FALSE(kept_alive(before));  // it was there already: nobody looked
  // A number below has become free: what was opened since cannot be told from the rest.
  low.reset();
  end_lost_connections(address, opened_from);
  CHECK(kept_alive(before));
}

TEST_CASE("sockets: rails of two providers and one rail twice are no address") {
  const Pair pair;
  const Pair other;
  const auto text = [](const OfiAddress& one, const OfiAddress& two) {
    const std::array<OfiAddress, 2> rails = {one, two};
    return encode_addresses(rails);
  };
  OfiAddress foreign = other.address;
  foreign.provider = "tcp;ofi_rxm";
  CHECK(decode_addresses(text(pair.address, other.address)).ok());
  CHECK(decode_addresses(text(pair.address, foreign)).error().code() == Errc::kInvalidArgument);
  CHECK(decode_addresses(text(pair.address, pair.address)).error().code() ==
        Errc::kInvalidArgument);
}
