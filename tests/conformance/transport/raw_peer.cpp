#include "tests/conformance/transport/raw_peer.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "common/transport/ofi/wire.hpp"

namespace ho::test {

sockaddr_in socket_address(const std::string& address) {
  const auto decoded = transport::decode_address(address);
  REQUIRE(decoded.ok());
  sockaddr_in where{};
  REQUIRE(decoded->name.size() >= sizeof where);
  std::memcpy(&where, decoded->name.data(), sizeof where);
  REQUIRE(where.sin_family == AF_INET);
  return where;
}

UniqueFd call(const std::string& address) {
  const sockaddr_in where = socket_address(address);
  UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(made.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
  return made;
}

Frame write_of(const Range& range) {
  Frame frame;
  frame.flags = kDelivered;
  frame.whole_bytes = sizeof frame + range.length_bytes;
  frame.range = range;
  return frame;
}

Frame read_of(const Range& range) {
  Frame frame;
  frame.op = kRead;
  frame.range = range;
  return frame;
}

RawPeer::RawPeer(const std::string& address, const Hello& hello) : socket_(call(address)) {
  // The port is a peer's name; two of one name would replace each other.
  sockaddr_in own{};
  socklen_t length = sizeof own;
  REQUIRE(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0);
  Hello said = hello;
  said.port = own.sin_port;
  Bytes bytes;
  append(bytes, said);
  send(bytes);
}

bool RawPeer::accepted() {
  const Bytes answer = receive(sizeof(Hello));
  return answer.size() == sizeof(Hello) && answer[1] == std::byte{1};
}

void RawPeer::send(const Bytes& bytes) {
  (void)!::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

Bytes RawPeer::receive(std::size_t length) {
  Bytes bytes(length);
  std::size_t done = 0;
  while (done < length && readable()) {
    const ssize_t got = ::recv(socket_.get(), bytes.data() + done, length - done, 0);
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

bool RawPeer::ended() {
  while (readable()) {
    std::byte rest[4096];
    if (::recv(socket_.get(), rest, sizeof rest, 0) <= 0) return true;
  }
  return false;
}

bool RawPeer::readable() const {
  pollfd waits{socket_.get(), POLLIN, 0};
  return ::poll(&waits, 1, 5000) > 0;
}

}  // namespace ho::test
