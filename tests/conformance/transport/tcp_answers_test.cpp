// The initiator of the tcp driver distrusts what answers it.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/net/address.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/tcp/wire.hpp"
#include "tests/conformance/transport/tcp_peer.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Rights;
using transport::tcp::Answer;
using transport::tcp::Hello;
using transport::tcp::Request;
using transport::tcp::Status;

/// A listening socket, and its address as text.
struct Listener {
  Listener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = net::socket_address("127.0.0.1", 0);
    REQUIRE(::bind(fd.get(), any->get(), any->length) == 0);
    REQUIRE(::listen(fd.get(), 16) == 0);
    address = net::to_text(*net::local_address(fd.get()));
  }
  UniqueFd fd;
  std::string address;
};

TEST_CASE("tcp: an initiator distrusts what answers, and says why it does not connect") {
  // A listener that answers with rubbish, or closes, or with a refusal.
  const Listener listener;
  Answer denied;
  denied.status = Status::kDenied;
  const SteadyClock clock;
  for (const auto& [said, code] :
       std::vector<std::pair<std::string, Errc>>{{std::string(24, 'r'), Errc::kInvalidArgument},
                                                 {"", Errc::kUnavailable},
                                                 {bytes_of(denied), Errc::kPermissionDenied}}) {
    std::thread server([&, text = said] {
      for (int i = 0; i < 2; ++i) {  // the lanes for small and for large operations
        const UniqueFd peer(::accept(listener.fd.get(), nullptr, nullptr));
        std::array<char, sizeof(Hello)> hello{};
        (void)::recv(peer.get(), hello.data(), hello.size(), MSG_WAITALL);
        (void)::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL);
      }
    });
    const auto initiator = transport::make_tcp_transport({}, clock);
    REQUIRE(initiator.ok());
    const auto peer =
        (*initiator)->connect({NodeId(1), listener.address, kSession}, clock.now() + 10s);
    server.join();
    REQUIRE_FALSE(peer.ok());
    CHECK(peer.error().code() == code);
  }
}

TEST_CASE("tcp: answers that our targets do not give end the peer, and are not believed") {
  const Listener listener;
  constexpr std::uint64_t kBytes = 32 * kMiB;
  Answer of_another;
  of_another.id = 1;
  Answer short_one;
  short_one.length = kBytes - 1;
  Answer unknown;
  unknown.status = static_cast<Status>(7);
  const Answer ok;  // to a put of which no more than the socket holds has gone out
  struct Case {
    bool is_get;
    Answer said;
  };
  const SteadyClock clock;
  std::vector<std::byte> memory(kBytes);
  for (const Case& one : {Case{true, of_another},
                          {true, short_one},
                          {true, unknown},
                          {true, ok},
                          {false, ok},
                          {false, short_one}}) {
    std::vector<UniqueFd> peers;  // open until the test is over
    const std::future<void> server = std::async(std::launch::async, [&] {
      const Answer welcome;
      std::size_t large = 0;
      for (std::size_t i = 0; i < 2; ++i) {
        peers.emplace_back(::accept(listener.fd.get(), nullptr, nullptr));
        Hello hello;
        (void)::recv(peers[i].get(), &hello, sizeof hello, MSG_WAITALL);
        (void)::send(peers[i].get(), &welcome, sizeof welcome, MSG_NOSIGNAL);
        if (hello.lane == transport::LaneKind::kLarge) large = i;
      }
      Request request;
      (void)::recv(peers[large].get(), &request, sizeof request, MSG_WAITALL);
      (void)::send(peers[large].get(), &one.said, sizeof one.said, MSG_NOSIGNAL);
    });
    const auto initiator = transport::make_tcp_transport({}, clock);
    const auto peer =
        (*initiator)->connect({NodeId(1), listener.address, kSession}, clock.now() + 10s);
    REQUIRE(peer.ok());
    const std::string key = transport::tcp::encode_key({0, 1, kBytes, Rights::kReadWrite});
    const auto region = (*initiator)->attach(*peer, {key, UniqueFd(), kBytes, Rights::kReadWrite});
    REQUIRE(region.ok());
    const auto local = (*initiator)->register_memory(memory);
    REQUIRE(local.ok());
    const TimePoint deadline = clock.now() + 60s;
    const auto direction = one.is_get ? transport::Direction::kGet : transport::Direction::kPut;
    const auto accepted =
        (*initiator)->submit({direction, OpId(1), memory, *local, *region, 0, deadline});
    REQUIRE(accepted.ok());
    std::array<Completion, 1> done;
    while ((*initiator)->poll(done) == 0) REQUIRE(clock.now() < deadline);
    CHECK(done[0].code == Errc::kUnavailable);
  }
}

TEST_CASE("tcp: a target without connections for bulk traffic gets it beside the rest") {
  enum class Third { kClosed, kDenied, kSilent };
  const auto third = GENERATE(Third::kClosed, Third::kDenied, Third::kSilent);
  const Listener listener;
  constexpr std::uint64_t kBytes = 128 * kKiB;
  constexpr int kGets = 20;
  const SteadyClock clock;
  std::atomic<bool> asked{false};
  std::atomic<bool> stop{false};
  std::thread server([&] {
    std::vector<UniqueFd> peers;
    std::size_t large = 0;
    const std::vector<std::byte> bytes(kBytes, std::byte{5});
    while (!stop) {
      std::vector<pollfd> ready{{listener.fd.get(), POLLIN, 0}};
      if (!peers.empty()) ready.push_back({peers[large].get(), POLLIN, 0});
      if (::poll(ready.data(), ready.size(), 10) <= 0) continue;
      if (ready[0].revents != 0) {
        UniqueFd one(::accept(listener.fd.get(), nullptr, nullptr));
        Hello hello;
        (void)::recv(one.get(), &hello, sizeof hello, MSG_WAITALL);
        const bool known = hello.lane <= transport::LaneKind::kLarge;
        if (hello.lane == transport::LaneKind::kLarge) large = peers.size();
        asked = asked || !known;
        Answer welcome;
        if (!known) welcome.status = Status::kDenied;
        if (known || third == Third::kDenied) {
          (void)::send(one.get(), &welcome, sizeof welcome, MSG_NOSIGNAL);
        }
        if (known || third == Third::kSilent) peers.push_back(std::move(one));
      } else {
        Request request;
        (void)::recv(peers[large].get(), &request, sizeof request, MSG_WAITALL);
        Answer answer;
        answer.id = request.id;
        answer.length = request.length;
        (void)::send(peers[large].get(), &answer, sizeof answer, MSG_NOSIGNAL);
        (void)::send(peers[large].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      }
    }
  });
  const auto initiator = transport::make_tcp_transport({}, clock);
  const auto peer =
      (*initiator)->connect({NodeId(1), listener.address, kSession}, clock.now() + 10s);
  int got = 0;
  if (peer.ok()) {
    std::vector<std::byte> memory(kBytes);
    const std::string key = transport::tcp::encode_key({0, 1, kBytes, Rights::kReadWrite});
    const auto region = (*initiator)->attach(*peer, {key, UniqueFd(), kBytes, Rights::kReadWrite});
    const auto local = (*initiator)->register_memory(memory);
    const TimePoint end = clock.now() + 20s;
    for (int i = 0; i < kGets; ++i) {
      transport::MemoryOp get{
          transport::Direction::kGet, OpId(1), memory, *local, *region, 0, clock.now() + 5s};
      get.traffic = transport::TrafficClass::kBulk;
      if (!(*initiator)->submit(get).ok()) break;
      std::array<Completion, 1> done{};
      while ((*initiator)->poll(done) == 0 && clock.now() < end) std::this_thread::yield();
      got += done[0].code == Errc::kOk && memory[kBytes - 1] == std::byte{5} ? 1 : 0;
    }
  }
  stop = true;
  server.join();
  REQUIRE(peer.ok());
  CHECK(asked);
  CHECK(got == kGets);
}

}  // namespace
}  // namespace ho::test
