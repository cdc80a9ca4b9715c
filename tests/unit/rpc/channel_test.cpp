// FrameChannel over a socket pair: the effect of reaching each limit.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cstring>
#include <optional>

#include "proto/control/frame_channel.hpp"
#include "tests/support/few_files.hpp"

namespace ho {

namespace {

using std::chrono::milliseconds;

/// A channel at one end and a plain socket at the other, in one thread.
struct Pair {
  explicit Pair(const FrameChannel::Options& options) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    peer = UniqueFd(ends[1]);
    const timeval limit{5, 0};
    ::setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    FrameChannel::Socket socket(io, asio::generic::stream_protocol(AF_UNIX, 0), ends[0]);
    channel = std::make_shared<FrameChannel>(std::move(socket), options);
    FrameChannel::Callbacks callbacks;
    callbacks.on_frame = [this](FrameChannel::Frame frame) { frames.push_back(std::move(frame)); };
    callbacks.on_closed = [this](const Error& error) { closed = error; };
    channel->start(std::move(callbacks));
  }
  ~Pair() {
    if (channel->open()) channel->close();
    io.poll();
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void write(const std::string& bytes, const std::vector<int>& descriptors = {}) const {
    iovec vector{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    std::string control(CMSG_SPACE(sizeof(int) * descriptors.size()), '\0');
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
      std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
    }
    REQUIRE(::sendmsg(peer.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  /// Runs until a failure closes the channel, for 5 s at most. @return the code of the error.
  Errc run_until_closed() {
    const auto end = std::chrono::steady_clock::now() + milliseconds(5000);
    while (!closed && std::chrono::steady_clock::now() < end) io.run_for(milliseconds(5));
    return closed ? closed->code() : Errc::kOk;
  }
  void run(milliseconds time) {
    io.restart();
    io.run_for(time);
  }
  /// All bytes that the channel has sent, up to its end of the connection.
  [[nodiscard]] std::string read_all() const {
    std::string out;
    char buffer[65536];
    for (ssize_t got = 1; got > 0;) {
      got = ::recv(peer.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got > 0) out.append(buffer, static_cast<std::size_t>(got));
    }
    return out;
  }

  asio::io_context io{1};
  UniqueFd peer;
  std::shared_ptr<FrameChannel> channel;
  std::vector<FrameChannel::Frame> frames;
  std::optional<Error> closed;
};

std::string frame_of(const std::string& payload, std::size_t descriptors = 0) {
  return *encode_frame(payload, descriptors);
}

FrameChannel::Options short_times() {
  FrameChannel::Options options;
  options.frame_time_max = milliseconds(50);
  return options;
}

}  // namespace

TEST_CASE("channel: a frame that is not completed in time closes it") {
  Pair pair(short_times());
  pair.write(frame_of("hello").substr(0, 10));
  CHECK(pair.run_until_closed() == Errc::kDeadline);
  CHECK(pair.frames.empty());
}

TEST_CASE("channel: the time between frames has no limit") {
  Pair pair(short_times());
  pair.write(frame_of("one"));
  pair.run(milliseconds(150));
  pair.write(frame_of("two"));
  pair.run(milliseconds(50));
  CHECK_FALSE(pair.closed);
  REQUIRE(pair.frames.size() == 2);
  CHECK(pair.frames[1].payload == "two");
}

TEST_CASE("channel: a frame over the receive limit closes it, and the limit can be raised") {
  FrameChannel::Options options;
  options.receive_bytes_max = 16;
  Pair pair(options);
  pair.write(frame_of(std::string(16, 'x')));
  pair.run(milliseconds(20));
  pair.channel->limit_received(32);
  pair.write(frame_of(std::string(32, 'x')));
  pair.run(milliseconds(20));
  REQUIRE(pair.frames.size() == 2);
  pair.write(frame_of(std::string(33, 'x')));
  CHECK(pair.run_until_closed() == Errc::kCorrupt);
}

TEST_CASE("channel: a peer that does not read fills its queue and nothing more") {
  FrameChannel::Options options;
  options.send_queue_bytes_max = 1024 * 1024;
  Pair pair(options);
  const std::string payload(64 * 1024, 'x');
  int sent = 0;
  Result<void> last;
  while (sent < 1000 && (last = pair.channel->send(payload, {})).ok()) ++sent;
  REQUIRE_FALSE(last.ok());
  CHECK(last.error().code() == Errc::kBusy);
  CHECK(pair.channel->open());
  CHECK(sent >= 15);
  CHECK(sent < 1000);
}

TEST_CASE("channel: beyond the shared limit only a channel with nothing unsent may queue") {
  FrameChannel::Options options;
  options.send_budget = std::make_shared<FrameChannel::SendBudget>();
  options.send_budget->bytes_max = 512 * 1024;
  Pair silent(options);
  const std::string payload(64 * 1024, 'x');
  Result<void> last;
  for (int i = 0; i < 1000 && (last = silent.channel->send(payload, {})).ok(); ++i) {
  }
  REQUIRE_FALSE(last.ok());
  CHECK(last.error().code() == Errc::kBusy);
  Pair reading(options);
  CHECK(reading.channel->send(payload, {}).ok());
  silent.channel->close();
  reading.channel->close();
  CHECK(options.send_budget->bytes == 0);
}

TEST_CASE("channel: a payload above the frame limit is refused, and the channel stays open") {
  Pair pair({});
  CHECK(pair.channel->send(std::string(kFrameBytesMax + 1, 'x'), {}).error().code() ==
        Errc::kInvalidArgument);
  CHECK(pair.channel->send("small", {}).ok());
  CHECK(pair.read_all() == frame_of("small"));
}

TEST_CASE("channel: closing after sending sends what is queued, takes nothing more, and ends") {
  Pair pair(short_times());
  const std::string payload(512 * 1024, 'x');  // more than the buffer of a socket
  REQUIRE(pair.channel->send(payload, {}).ok());
  pair.channel->close_after_sending();
  CHECK(pair.channel->send("late", {}).error().code() == Errc::kUnavailable);
  SECTION("to a peer that reads") {
    std::string got;
    for (int i = 0; i < 200 && pair.channel->open(); ++i) {
      got += pair.read_all();
      pair.run(milliseconds(1));
    }
    got += pair.read_all();
    CHECK(got == frame_of(payload));
  }
  SECTION("to one that does not, by its deadline") { pair.run(milliseconds(300)); }
  CHECK_FALSE(pair.channel->open());
  CHECK_FALSE(pair.closed);  // closing on request is not a failure
}

TEST_CASE("channel: descriptors come with the frame that announced them") {
  FrameChannel::Options options;
  options.receive_descriptors = true;
  Pair pair(options);
  const UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  pair.write(frame_of("none"));
  pair.write(frame_of("one", 1), {one.get()});
  pair.run(milliseconds(20));
  REQUIRE(pair.frames.size() == 2);
  CHECK(pair.frames[0].descriptors.empty());
  REQUIRE(pair.frames[1].descriptors.size() == 1);
  CHECK(pair.frames[1].descriptors[0].valid());
}

#ifndef HO_TEST_SANITIZED  // see FewFiles
TEST_CASE("channel: a frame whose descriptors this process cannot open comes without them") {
  FrameChannel::Options options;
  options.receive_descriptors = true;
  Pair pair(options);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  pair.write(frame_of("none"));
  pair.write(frame_of("three", 3), {null.get(), null.get(), null.get()});
  pair.write(frame_of("one", 1), {null.get()});
  {
    const test::FewFiles one_more(1);
    const auto end = std::chrono::steady_clock::now() + milliseconds(5000);
    while (pair.frames.size() < 3 && std::chrono::steady_clock::now() < end) {
      pair.run(milliseconds(5));
    }
  }
  REQUIRE(pair.frames.size() == 3);
  CHECK_FALSE(pair.frames[0].descriptors_lost);
  CHECK(pair.frames[1].payload == "three");
  CHECK(pair.frames[1].descriptors_lost);
  CHECK(pair.frames[1].descriptors.empty());
  CHECK_FALSE(pair.frames[2].descriptors_lost);
  CHECK(pair.frames[2].descriptors.size() == 1);
  CHECK_FALSE(pair.closed);
}
#endif

TEST_CASE("channel: announced descriptors that do not come close it") {
  FrameChannel::Options options;
  options.receive_descriptors = true;
  Pair pair(options);
  pair.write(frame_of("two", 2));
  CHECK(pair.run_until_closed() == Errc::kCorrupt);
}

TEST_CASE("channel: descriptors that no frame announces close it before they accumulate") {
  FrameChannel::Options options;
  options.receive_descriptors = true;
  Pair pair(options);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> many(kFrameDescriptorsMax, null.get());
  for (int i = 0; i < 3; ++i) pair.write(frame_of("x"), many);
  CHECK(pair.run_until_closed() == Errc::kCorrupt);
}

TEST_CASE("channel: more descriptors at once than a frame may have close it") {
  FrameChannel::Options options;
  options.receive_descriptors = true;
  Pair pair(options);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  pair.write(frame_of("x", 64), std::vector<int>(kFrameDescriptorsMax + 1, null.get()));
  CHECK(pair.run_until_closed() == Errc::kExhausted);
}

TEST_CASE("channel: a daemon's end takes no descriptors at all") {
  Pair pair({});
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  pair.write(frame_of("x"), {null.get()});
  pair.run(milliseconds(20));
  REQUIRE(pair.frames.size() == 1);
  CHECK(pair.frames[0].descriptors.empty());
  pair.write(frame_of("y", 1), {null.get()});
  CHECK(pair.run_until_closed() == Errc::kCorrupt);
}

TEST_CASE("channel: the end of the connection by the peer is reported once") {
  Pair pair({});
  pair.peer.reset();
  CHECK(pair.run_until_closed() == Errc::kUnavailable);
  CHECK(pair.channel->send("late", {}).error().code() == Errc::kUnavailable);
}

}  // namespace ho
