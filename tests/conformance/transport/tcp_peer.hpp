#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/tally.hpp"
#include "common/net/address.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/tcp/wire.hpp"

// A target of the tcp driver, and peers that send it what a test says.
namespace ho::test {

inline const transport::Credentials kSession{SessionId(7), "sixteen secret b"};
inline const transport::Credentials kOther{SessionId(8), "another secret.."};

template <typename Frame>
[[nodiscard]] std::string bytes_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(&frame), sizeof frame};
}

/// A target in the test's own thread: it runs while the test waits for something.
class TcpTargetHere {
 public:
  explicit TcpTargetHere(std::size_t rails = 1, std::shared_ptr<tls::ContextSlot> tls = {},
                         const transport::Credentials& session = kSession,
                         std::uint64_t link_bytes_per_s = 0) {
    transport::TcpTargetOptions options;
    options.rails.resize(rails);
    for (auto& rail : options.rails) rail.link_bytes_per_s = link_bytes_per_s;
    options.refusals = refusals_;
    options.tls = std::move(tls);
    auto made = transport::make_tcp_target(options);
    if (!made) FAIL(made.error().message());
    target_ = std::move(*made);
    const auto address = target_->admit(session);
    REQUIRE(address.ok());
    const auto addresses = transport::tcp::decode_rails(*address);
    REQUIRE(addresses.ok());
    addresses_ = *addresses;
  }

  transport::Target& operator*() { return *target_; }
  transport::Target* operator->() { return target_.get(); }
  [[nodiscard]] const std::string& address(std::size_t rail = 0) const {
    return addresses_.at(rail);
  }
  [[nodiscard]] transport::tcp::SegmentKey expose(
      std::span<std::byte> memory, transport::Rights rights,
      const transport::Credentials& session = kSession) {
    const auto exposure = target_->expose({memory, rights, -1, session.session});
    REQUIRE(exposure.ok());
    exposures_.push_back(exposure->id);
    return *transport::tcp::decode_key(exposure->key);
  }
  void revoke_last() {
    REQUIRE(target_->revoke(exposures_.back()).ok());
    exposures_.pop_back();
  }
  [[nodiscard]] std::uint64_t refused(const std::string& cause) const {
    for (const Tally::Entry& entry : refusals_->entries()) {
      if (entry.cause == cause) return entry.count;
    }
    return 0;
  }
  void run(Duration time = std::chrono::milliseconds(20)) {
    const SteadyClock clock;
    const TimePoint end = clock.now() + time;
    while (clock.now() < end) (void)target_->progress();
  }
  /// Runs until something has happened; fails the test if it does not happen in 10 s.
  template <typename Condition>
  void run_until(Condition happened) {
    const SteadyClock clock;
    const TimePoint end = clock.now() + std::chrono::seconds(10);
    while (!happened()) {
      REQUIRE(clock.now() < end);
      (void)target_->progress();
    }
  }

 private:
  SteadyClock clock_;
  std::shared_ptr<Tally> refusals_ = std::make_shared<Tally>("refused", clock_);
  std::unique_ptr<transport::Target> target_;
  std::vector<std::string> addresses_;
  std::vector<transport::ExposureId> exposures_;
};

/// The other end of one connection, which sends what the test says.
class TcpPeer {
 public:
  using Answer = transport::tcp::Answer;
  using Hello = transport::tcp::Hello;
  using LaneKind = transport::LaneKind;
  using OpCode = transport::tcp::OpCode;
  using Request = transport::tcp::Request;
  using SegmentKey = transport::tcp::SegmentKey;
  using Credentials = transport::Credentials;

  explicit TcpPeer(TcpTargetHere& target, std::size_t rail = 0) : target_(target) {
    const auto rail_address = transport::tcp::decode_rail(target.address(rail));
    REQUIRE(rail_address.ok());
    const net::SocketAddress* const to = &rail_address->where;
    socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket_.get(), to->get(), to->length) == 0);
  }

  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Sends all of it, as fast as the target reads. @return false: the target has closed.
  bool send(const std::string& text) {
    std::size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t now = ::send(socket_.get(), text.data() + sent, text.size() - sent,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
      if (now < 0 && errno != EAGAIN) return false;
      if (now > 0) sent += static_cast<std::size_t>(now);
      (void)target_->progress();
    }
    return true;
  }
  /// Exactly so many bytes; nothing: the target has closed before.
  [[nodiscard]] std::optional<std::string> receive(std::size_t bytes,
                                                   Duration limit = std::chrono::seconds(10)) {
    std::string text(bytes, '\0');
    std::size_t got = 0;
    const SteadyClock clock;
    const TimePoint end = clock.now() + limit;
    while (got < bytes) {
      (void)target_->progress();
      const ssize_t now = ::recv(socket_.get(), text.data() + got, bytes - got, MSG_DONTWAIT);
      if (now == 0 || (now < 0 && errno != EAGAIN)) return std::nullopt;
      if (now > 0) got += static_cast<std::size_t>(now);
      REQUIRE(clock.now() < end);
    }
    return text;
  }
  [[nodiscard]] std::optional<Answer> answer() {
    const auto text = receive(sizeof(Answer));
    if (!text) return std::nullopt;
    Answer answer;
    std::memcpy(&answer, text->data(), sizeof answer);
    return answer;
  }
  [[nodiscard]] bool closed() {
    const auto more = receive(1);
    return !more;
  }
  /// @return whether the target takes it.
  bool greet(const Credentials& session = kSession, std::uint32_t generation = 1,
             std::uint8_t rail = 0, LaneKind lane = LaneKind::kSmall) {
    if (!send(bytes_of(hello(session, generation, rail, lane)))) return false;
    const auto welcome = answer();
    return welcome && welcome->status == transport::tcp::Status::kOk;
  }
  [[nodiscard]] static Hello hello(const Credentials& session, std::uint32_t generation,
                                   std::uint8_t rail = 0, LaneKind lane = LaneKind::kSmall) {
    Hello hello;
    hello.rail = rail;
    hello.lane = lane;
    hello.generation = generation;
    hello.session = session.session.value();
    std::memcpy(hello.token.data(), session.token.data(), hello.token.size());
    return hello;
  }
  [[nodiscard]] static Request request(OpCode op, const SegmentKey& key, std::uint64_t offset,
                                       std::uint64_t length, std::uint64_t id = 0) {
    Request request;
    request.op = op;
    request.id = id;
    request.segment = key.segment;
    request.generation = key.generation;
    request.offset = offset;
    request.length = length;
    return request;
  }
  /// Reads 64 bytes. @return whether they are right.
  bool gets(const SegmentKey& key, std::span<const std::byte> truth) {
    if (!send(bytes_of(request(OpCode::kGet, key, 0, 64, 9)))) return false;
    const auto got = answer();
    if (!got || got->status != transport::tcp::Status::kOk || got->length != 64 || got->id != 9)
      return false;
    const auto data = receive(64);
    return data && std::memcmp(data->data(), truth.data(), 64) == 0;
  }

 private:
  TcpTargetHere& target_;
  UniqueFd socket_;
};

}  // namespace ho::test
