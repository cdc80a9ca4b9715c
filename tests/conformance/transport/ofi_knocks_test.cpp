// The ofi driver's target against those who have no key: what they can do is to connect, and to say
// hello or less. Whatever they do, they must not cost it descriptors or time. And against those who
// have one and want more than their share.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/tally.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/wire.hpp"
#include "tests/conformance/transport/raw_peer.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kAnswerBytes = 16 + kPageBytes;
/// What a target has waiting at one address for answers to be taken, and a session's connections.
constexpr std::size_t kUnansweredMax = 4096;
constexpr std::size_t kConnectionsMax = 128;

/// A target in this process, so that its descriptors can be counted with the test's own.
class TargetHere {
 public:
  TargetHere() {
    transport::OfiTargetOptions options;
    options.rails[0].bind_address = "127.0.0.1";
    options.refusals = refusals_;
    auto made = transport::make_ofi_target(options);
    if (!made) FAIL(made.error().message());
    target_ = std::move(*made);
  }
  ~TargetHere() { pause(); }
  TargetHere(const TargetHere&) = delete;
  TargetHere& operator=(const TargetHere&) = delete;
  /// Only while it does not run.
  transport::Target& operator*() { return *target_; }
  /// How often something was refused for this.
  [[nodiscard]] std::uint64_t refused(std::string_view cause) const {
    for (const Tally::Entry& entry : refusals_->entries()) {
      if (entry.cause == cause) return entry.count;
    }
    return 0;
  }
  /// Where a session is served. Only while it does not run.
  [[nodiscard]] std::string admit(std::uint64_t session) {
    const auto address = target_->admit(transport::TenantId(session));
    if (!address) FAIL(address.error().message());
    return *address;
  }
  void run() {
    stop_ = false;
    thread_ = std::thread([this] {
      while (!stop_) {
        errno = EAGAIN;  // as every send leaves it that fills a socket
        (void)target_->progress();
      }
    });
  }
  void pause() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  const SteadyClock clock_;
  const std::shared_ptr<Tally> refusals_ = std::make_shared<Tally>("refused", clock_);
  std::unique_ptr<transport::Target> target_;
  std::atomic<bool> stop_{true};
  std::thread thread_;
};

/// Of this process, without the one that reads them.
std::size_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all))) - 1;
}

/// @return so many there are, or come to be.
bool comes_to(std::size_t wanted) {
  for (int wait = 0; wait < 500 && descriptors() != wanted; ++wait) {
    std::this_thread::sleep_for(10ms);
  }
  UNSCOPED_INFO(descriptors() << " descriptors, " << wanted << " wanted");
  return descriptors() == wanted;
}

/// A read of a whole page that everybody who has the address may read.
Frame page_read(const std::string& address) {
  const auto decoded = transport::decode_address(address);
  REQUIRE(decoded.ok());
  return read_of({decoded->hello.base, kPageBytes, decoded->hello.key});
}

/// @return it was told what it asked for.
bool answered(RawPeer& peer, const std::string& address) {
  Bytes question;
  append(question, page_read(address));
  peer.send(question);
  return peer.receive(kAnswerBytes).size() == kAnswerBytes;
}

TEST_CASE("ofi: whoever knocks, says a part of a hello or is cut costs the target no descriptor") {
  TargetHere here;
  const std::string address = (*here).address();
  here.run();
  const std::size_t before = descriptors();
  Bytes hello;
  append(hello, Hello{});
  for (const std::size_t length : {0U, 1U, 31U, 32U, 39U}) {  // 32: all but who it is
    INFO(length << " bytes");
    std::vector<UniqueFd> callers;
    for (int i = 0; i < 40; ++i) {
      callers.push_back(call(address));
      CHECK(::send(callers.back().get(), hello.data(), length, MSG_NOSIGNAL) ==
            static_cast<ssize_t>(length));
    }
    if (length == 0) callers.clear();
    CHECK(RawPeer(address).accepted());
    CHECK(comes_to(before + callers.size()));
  }
  constexpr std::size_t kSilentMax = 256;
  std::vector<UniqueFd> silent;
  while (silent.size() < kSilentMax + 40) silent.push_back(call(address));
  RawPeer last(address);
  CHECK(last.accepted());
  CHECK(comes_to(before + silent.size() + 1 + kSilentMax));
  silent.clear();
  CHECK(comes_to(before + 2));
}

TEST_CASE("ofi: with a session's place its connections are closed that have asked for nothing") {
  TargetHere here;
  here.run();
  const UniqueFd elsewhere = call((*here).address());
  RawPeer stays((*here).address());
  REQUIRE(stays.accepted());
  here.pause();
  const std::size_t before = descriptors();
  for (const std::uint64_t session : {1U, 2U}) {
    INFO("session " << session);
    const std::string address = here.admit(session);
    here.run();
    std::vector<UniqueFd> silent;
    std::vector<std::unique_ptr<RawPeer>> greeted;
    while (silent.size() < 30) silent.push_back(call(address));
    while (greeted.size() < 30) {
      greeted.push_back(std::make_unique<RawPeer>(address));
      REQUIRE(greeted.back()->accepted());
    }
    here.pause();
    (*here).dismiss(transport::TenantId(session));
    CHECK(comes_to(before + silent.size() + greeted.size()));
    for (const auto& peer : greeted) CHECK(peer->ended());
    pollfd alive{elsewhere.get(), POLLIN, 0};
    CHECK(::poll(&alive, 1, 0) == 0);
    here.run();
    CHECK(RawPeer((*here).address()).accepted());
    silent.clear();
    greeted.clear();
    CHECK(comes_to(before));
    here.pause();
  }
}

TEST_CASE(
    "ofi: whoever asks on and on and takes no answers loses its connection, and nobody else") {
  TargetHere here;
  const std::string first = here.admit(1);
  const std::string second = here.admit(2);
  here.run();
  RawPeer stays(first);
  RawPeer other(second);
  REQUIRE(stays.accepted());
  REQUIRE(other.accepted());
  constexpr std::size_t kAsked = 60'000;
  RawPeer hoards(first);
  REQUIRE(hoards.accepted());
  Bytes questions;
  for (std::size_t i = 0; i < kAsked; ++i) append(questions, page_read(first));
  hoards.send(questions);
  const Bytes answers = hoards.receive(kAsked * kAnswerBytes);
  CHECK(answers.size() < kAsked * kAnswerBytes);
  CHECK(hoards.ended());
  CHECK(here.refused("ofi: more requests than may wait for their answers to be taken") == 1);
  CHECK(answered(stays, first));
  CHECK(answered(other, second));
  RawPeer again(first);
  CHECK(again.accepted());
  CHECK(answered(again, first));
}

TEST_CASE("ofi: as many requests as may be unanswered are answered, whenever that is taken") {
  TargetHere here;
  const std::string address = here.admit(1);
  here.run();
  RawPeer peer(address);
  REQUIRE(peer.accepted());
  Bytes questions;
  for (std::size_t i = 0; i < kUnansweredMax; ++i) append(questions, page_read(address));
  for (int round = 0; round < 3; ++round) {
    INFO("round " << round);
    peer.send(questions);
    REQUIRE(peer.receive(kUnansweredMax * kAnswerBytes).size() == kUnansweredMax * kAnswerBytes);
  }
}

TEST_CASE("ofi: a session has so many connections and no more, and others have theirs") {
  TargetHere here;
  const std::string first = here.admit(1);
  const std::string second = here.admit(2);
  here.run();
  RawPeer other(second);
  REQUIRE(other.accepted());
  const std::size_t before = descriptors();
  std::vector<std::unique_ptr<RawPeer>> held;
  while (held.size() < kConnectionsMax) {
    held.push_back(std::make_unique<RawPeer>(first));
    REQUIRE(held.back()->accepted());
    REQUIRE(answered(*held.back(), first));
  }
  for (int more = 0; more < 3; ++more) {
    RawPeer beyond(first);
    CHECK(beyond.ended());
  }
  CHECK(here.refused("ofi: more connections than one address takes") == 3);
  CHECK(comes_to(before + 2 * kConnectionsMax));
  for (const auto& peer : held) CHECK(answered(*peer, first));
  CHECK(answered(other, second));
  RawPeer new_there(second);
  CHECK(new_there.accepted());
  RawPeer new_here((*here).address());
  CHECK(new_here.accepted());
  // Whoever goes makes room.
  held.pop_back();
  CHECK(comes_to(before + 2 * kConnectionsMax - 2 + 4));
  RawPeer next(first);
  CHECK(next.accepted());
  CHECK(answered(next, first));
}

TEST_CASE("ofi: whoever has no key keeps nobody from a session's address") {
  TargetHere here;
  const std::string address = here.admit(1);
  here.run();
  const std::size_t before = descriptors();
  RawPeer asks(address);
  REQUIRE(asks.accepted());
  REQUIRE(answered(asks, address));
  std::vector<UniqueFd> silent;
  while (silent.size() < kConnectionsMax) silent.push_back(call(address));
  for (int i = 0; i < 3; ++i) {
    RawPeer comes(address);
    CHECK(comes.accepted());
    CHECK(answered(comes, address));
  }
  CHECK(answered(asks, address));
  pollfd oldest{silent.front().get(), POLLIN, 0};
  CHECK(::poll(&oldest, 1, 0) == 1);
  pollfd newest{silent.back().get(), POLLIN, 0};
  CHECK(::poll(&newest, 1, 0) == 0);
  silent.clear();
  CHECK(comes_to(before + 2));
  // Nor afterwards.
  std::vector<std::unique_ptr<RawPeer>> held;
  while (held.size() < kConnectionsMax - 1) {
    held.push_back(std::make_unique<RawPeer>(address));
    REQUIRE(held.back()->accepted());
    REQUIRE(answered(*held.back(), address));
  }
}

}  // namespace
}  // namespace ho::test
