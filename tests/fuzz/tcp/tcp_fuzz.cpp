#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/net/stream.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/tcp/connection.hpp"

namespace {

namespace tcp = ho::transport::tcp;
using ho::transport::Rights;
using tcp::Connection;

constexpr std::size_t kPlace = 256;  ///< bytes for each segment; the last ones are a margin
constexpr std::size_t kMargin = 32;
constexpr std::size_t kPlaces = 8;

/// What the input says, byte by byte; zeros at its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t first = rest_.front();
    rest_ = rest_.subspan(1);
    return first;
  }
  std::span<const std::uint8_t> take(std::size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  /// Small numbers, and now and then one of those at which sums wrap.
  std::uint64_t number() {
    const std::uint8_t what = byte();
    if (what < 0xF0) return what;
    constexpr std::array<std::uint64_t, 4> kTops = {UINT64_MAX, std::uint64_t{1} << 63U, UINT32_MAX,
                                                    tcp::kLengthMax};
    return kTops[what % kTops.size()] - byte();
  }

 private:
  std::span<const std::uint8_t> rest_;
};

/// Lets in who shows a token of zeros.
class Keeper final : public tcp::HelloCheck {
 public:
  explicit Keeper(tcp::Session& session) : session_(session) {}
  [[nodiscard]] tcp::Session* admit(const tcp::Hello& hello,
                                    const ho::tls::CertificateFacts* /*peer*/) override {
    return tcp::equal_secrets(session_.token, hello.token) ? &session_ : nullptr;
  }
  [[nodiscard]] bool may_shake() override { return true; }
  void refused(const char* cause, const Connection&) override { HO_CHECK(cause != nullptr); }
  void answered(const tcp::Served& request, ho::TimePoint /*now*/) override {
    HO_CHECK(request.op.has_value());
  }

 private:
  tcp::Session& session_;
};

/// One connection to a session whose segments come and go, and the bytes that must stay as they
/// are: margins, free places, what may only be read.
class Bed {
 public:
  Bed() : keeper_(session_) {
    memory_.fill(std::byte{0x5A});
    expected_ = memory_;
    int ends[2];
    HO_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    peer_ = ho::UniqueFd(ends[0]);
    connection_.emplace(std::make_unique<ho::net::Stream>(ho::UniqueFd(ends[1])), std::uint8_t{0},
                        ho::TimePoint{});
  }

  void send(const void* bytes, std::size_t count) {
    (void)!::send(peer_.get(), bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void serve() {
    if (connection_->ended()) return;
    connection_->stream().set_readable();
    connection_->stream().set_writable();
    (void)connection_->receive(staging_, 4096, ho::TimePoint{}, keeper_);
    if (connection_->sends()) (void)connection_->send(4096, ho::TimePoint{}, keeper_);
    check();
  }
  void drain() {
    std::array<char, 4096> out;
    while (::recv(peer_.get(), out.data(), out.size(), MSG_DONTWAIT) > 0) {
    }
  }
  void add(std::uint8_t what) {
    const std::size_t place = what % kPlaces;
    if (live_[place]) return;
    const Rights rights = what < 128 ? Rights::kReadWrite : Rights::kRead;
    live_[place] = session_.segments.add(bytes_of(place), rights);
    HO_CHECK(live_[place].has_value());
  }
  void remove(std::uint8_t what) {
    const std::size_t place = what % kPlaces;
    if (!live_[place]) return;
    const auto was = session_.segments.remove(live_[place]->segment, live_[place]->generation);
    HO_CHECK(was.data() == bytes_of(place).data());
    connection_->let_go(was);
    live_[place].reset();
    // From here on it may be another's.
    std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(place * kPlace), kPlace,
                expected_.begin() + static_cast<std::ptrdiff_t>(place * kPlace));
  }

 private:
  [[nodiscard]] std::span<std::byte> bytes_of(std::size_t place) {
    return std::span(memory_).subspan(place * kPlace, kPlace - kMargin);
  }
  void check() const {
    for (std::size_t place = 0; place < kPlaces; ++place) {
      const bool written = live_[place] && live_[place]->rights == Rights::kReadWrite;
      const std::size_t from = place * kPlace + (written ? kPlace - kMargin : 0);
      const std::size_t count = written ? kMargin : kPlace;
      HO_CHECK(std::memcmp(&memory_[from], &expected_[from], count) == 0);
    }
  }

  std::array<std::byte, kPlace * kPlaces> memory_;
  std::array<std::byte, kPlace * kPlaces> expected_;
  std::array<std::optional<tcp::SegmentKey>, kPlaces> live_;
  std::array<std::byte, tcp::kStagingBytes> staging_;
  tcp::Session session_;
  Keeper keeper_;
  ho::UniqueFd peer_;
  std::optional<Connection> connection_;
};

}  // namespace

/// A peer that says anything, mostly requests that are nearly right, while segments come and go: no
/// byte is written but those of live segments with the right to write.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Bed bed;
  for (int steps = 0; !input.empty() && steps < 4096; ++steps) {
    const std::uint8_t what = input.byte();
    switch (what % 8) {
      case 0: bed.add(input.byte()); break;
      case 1: bed.remove(input.byte()); break;
      case 2: {
        tcp::Hello hello;
        if (what >= 240) hello.token[what % 16] = 1;
        bed.send(&hello, sizeof hello);
        break;
      }
      case 3:
      case 4: {
        tcp::Request request;
        request.op = static_cast<tcp::OpCode>(1 + input.byte() % 3);
        request.id = what;
        request.segment = static_cast<std::uint32_t>(input.number());
        request.generation = static_cast<std::uint32_t>(input.number());
        request.offset = input.number();
        request.length = input.number();
        bed.send(&request, sizeof request);
        break;
      }
      case 5: {
        const auto bytes = input.take(input.byte());
        bed.send(bytes.data(), bytes.size());
        break;
      }
      case 6: bed.serve(); break;
      case 7: bed.drain(); break;
    }
  }
  bed.serve();
  return 0;
}
