#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/unique_fd.hpp"

namespace ho::test {

using Bytes = std::vector<std::byte>;

/// What asks libfabric for a connection over its own TCP, with whom it names. Source: xnet_proto.h
/// and xnet_rdm_cm.c of libfabric 1.17 (prov/net).
struct Hello {
  std::uint8_t version = 3;
  std::uint8_t type = 0;  // 0 asks for a connection, 1 accepts
  std::uint16_t body_bytes = htons(8);
  std::uint32_t number = 0;
  std::uint64_t connection = 0;
  std::uint64_t message = 0;
  std::uint64_t byte_order = 1;
  std::uint8_t rdm_version = 0;
  std::uint8_t features = 0;
  std::uint16_t port = htons(1);
  std::uint32_t pid = 0;
};
static_assert(sizeof(Hello) == 40);

/// What asks for a read or a write. Source: ofi_proto.h and xnet_proto.h of libfabric 1.17
/// (prov/net).
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t key = 0;
};
inline constexpr std::uint8_t kRead = 2;
inline constexpr std::uint8_t kWrite = 4;
inline constexpr std::uint16_t kDelivered = 4;
struct Frame {
  std::uint8_t version = 3;
  std::uint8_t op = kWrite;
  std::uint16_t flags = 0;
  std::uint8_t op_data = 0;
  std::uint8_t ranges = 1;
  std::uint8_t header_bytes = 40;
  std::uint8_t reserved = 0;
  std::uint64_t whole_bytes = 40;
  Range range;
};
static_assert(sizeof(Frame) == 40);
[[nodiscard]] Frame write_of(const Range& range);
[[nodiscard]] Frame read_of(const Range& range);

template <typename T>
void append(Bytes& to, const T& what) {
  const auto* const first = reinterpret_cast<const std::byte*>(&what);
  to.insert(to.end(), first, first + sizeof what);
}

/// Where a target listens, from its address text.
[[nodiscard]] sockaddr_in socket_address(const std::string& address);
/// A connection to an ofi target that says nothing.
[[nodiscard]] UniqueFd call(const std::string& address);

/// A connection to an ofi target that has said hello, and speaks libfabric's TCP by hand.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address, const Hello& hello = {});
  /// Takes the target's hello. @return it is one.
  [[nodiscard]] bool accepted();
  void send(const Bytes& bytes);
  /// Up to so many bytes, fewer where the connection ends or is silent for 5 s.
  [[nodiscard]] Bytes receive(std::size_t length);
  /// The target closes it within 5 s.
  [[nodiscard]] bool ended();

 private:
  [[nodiscard]] bool readable() const;
  UniqueFd socket_;
};

}  // namespace ho::test
