// The tcp driver with TLS beside a plain stream of OpenSSL, in alternating turns of one run.
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <iostream>
#include <vector>

#include "common/base/units.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "tests/support/certificates.hpp"
#include "tools/bench/target_process.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kOpBytes = kMiB;
constexpr std::uint64_t kInFlight = 16;
constexpr auto kTurn = 1s;
constexpr int kTurns = 5;

enum class Way : std::uint8_t { kGet, kPut };

struct Folders {
  std::string daemon;
  std::string job;
};

/// Bytes per second of gets or puts, 1 MiB each and 16 in flight. @param folders  empty: plain.
double measure_driver(Way way, const Folders& folders) {
  const SteadyClock clock;
  const TimePoint far = clock.now() + 60s;
  TargetProcess::Options options{Driver::kTcp};
  options.tls_folder = folders.daemon;
  auto target = TargetProcess::start(options);
  REQUIRE(target.ok());
  auto segment = Segment::create(kInFlight * kOpBytes);
  REQUIRE(segment.ok());
  const auto exposed = (*target)->expose(**segment, transport::Rights::kReadWrite);
  REQUIRE(exposed.ok());
  transport::TcpOptions tcp_options;
  tcp_options.tls_folder = folders.job;
  auto initiator = transport::make_tcp_transport(tcp_options, clock);
  REQUIRE(initiator.ok());
  transport::Transport& tcp = **initiator;
  const auto peer = tcp.connect((*target)->peer(), far);
  if (!peer) FAIL(peer.error().message());
  transport::RegionGrant grant;
  grant.key = exposed->key;
  grant.length_bytes = (*segment)->bytes().size();
  const auto region = tcp.attach(*peer, std::move(grant));
  REQUIRE(region.ok());
  std::vector<std::byte> memory(kInFlight * kOpBytes, std::byte{3});
  const auto local = tcp.register_memory(memory);
  REQUIRE(local.ok());
  const auto start = [&](std::uint64_t op) {
    const auto bytes = std::span(memory).subspan(op * kOpBytes, kOpBytes);
    const auto direction =
        way == Way::kGet ? transport::Direction::kGet : transport::Direction::kPut;
    return tcp.submit({direction, OpId(op), bytes, *local, *region, op * kOpBytes, far});
  };
  for (std::uint64_t op = 0; op < kInFlight; ++op) REQUIRE(start(op).ok());
  const TimePoint begin = clock.now();
  std::uint64_t moved = 0;
  while (clock.now() < begin + kTurn) {
    std::array<Completion, 8> some;
    const std::size_t got = tcp.poll(some);
    for (std::size_t i = 0; i < got; ++i) {
      REQUIRE(some[i].code == Errc::kOk);
      moved += some[i].moved_bytes;
      REQUIRE(start(some[i].op.value()).ok());
    }
  }
  const std::chrono::duration<double> took = clock.now() - begin;
  return static_cast<double>(moved) / took.count();
}

SSL* make_ssl(const tls::Files& files, int socket) {
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  HO_CHECK(SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1);
  HO_CHECK(SSL_CTX_use_certificate_file(context, files.certificate.c_str(), SSL_FILETYPE_PEM) == 1);
  HO_CHECK(SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1);
  SSL* const ssl = SSL_new(context);
  HO_CHECK(SSL_set_fd(ssl, socket) == 1);
  return ssl;
}

/// Bytes per second of a stream between two processes over loopback TCP, 256 KiB a call.
double measure_stream(const Folders& folders) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(listener.get(), any, length) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  REQUIRE(::getsockname(listener.get(), any, &length) == 0);
  std::vector<std::byte> buffer(256 * kKiB, std::byte{3});
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::signal(SIGPIPE, SIG_IGN);
    const int socket = ::accept(listener.get(), nullptr, nullptr);
    SSL* const ssl = make_ssl(tls::files_in(folders.daemon), socket);
    if (SSL_accept(ssl) != 1) ::_exit(1);
    while (SSL_write(ssl, buffer.data(), static_cast<int>(buffer.size())) > 0) {
    }
    ::_exit(0);
  }
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(::connect(socket.get(), any, length) == 0);
  SSL* const ssl = make_ssl(tls::files_in(folders.job), socket.get());
  REQUIRE(SSL_connect(ssl) == 1);
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  std::uint64_t moved = 0;
  while (clock.now() < begin + kTurn) {
    const int got = SSL_read(ssl, buffer.data(), static_cast<int>(buffer.size()));
    REQUIRE(got > 0);
    moved += static_cast<std::uint64_t>(got);
  }
  const std::chrono::duration<double> took = clock.now() - begin;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return static_cast<double>(moved) / took.count();
}

}  // namespace

TEST_CASE("tcp tls: large gets and puts keep up with a plain stream of OpenSSL") {
  test::Certificates certificates;
  const Folders folders{certificates.daemon(), certificates.issue("trainer", tls::Role::kJob)};
  std::vector<double> stream;
  std::vector<double> get;
  std::vector<double> put;
  std::vector<double> plain;
  for (int turn = 0; turn < kTurns; ++turn) {
    stream.push_back(measure_stream(folders));
    get.push_back(measure_driver(Way::kGet, folders) / stream.back());
    put.push_back(measure_driver(Way::kPut, folders) / stream.back());
    plain.push_back(measure_driver(Way::kGet, {}) / stream.back());
  }
  std::cout << "openssl stream " << quantile(stream, 0.5) / 1e9 << " GB/s; get "
            << quantile(get, 0.5) << " (" << quantile(get, 0.25) << " .. " << quantile(get, 0.75)
            << ") of it, put " << quantile(put, 0.5) << " (" << quantile(put, 0.25) << " .. "
            << quantile(put, 0.75) << "), get without TLS " << quantile(plain, 0.5) << "\n";
  // The goal, in the better turns: other load slows some of them on our side.
  CHECK(quantile(get, 0.75) >= 0.9);
  CHECK(quantile(put, 0.75) >= 0.9);
}

}  // namespace ho::bench
