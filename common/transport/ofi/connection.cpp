#include "common/transport/ofi/connection.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport {
namespace {

/// Names scratch_ among the registered memories; the transport's ids start at 1.
constexpr LocalId kScratchId(0);
/// How long a small read is polled for without a pause: a round trip on a quiet machine.
constexpr Duration kSpin = std::chrono::microseconds(50);

}  // namespace

Result<std::unique_ptr<Connection>> Connection::create(const OfiAddress& address,
                                                       const Endpoint::Reach& how,
                                                       const Clock& clock, TimePoint deadline) {
  auto endpoint = Endpoint::reach(address, how);
  if (!endpoint) return endpoint.error();
  std::unique_ptr<Connection> connection(new Connection(std::move(*endpoint)));
  const auto added = connection->add_memory(kScratchId, connection->scratch_);
  if (!added) return added.error();
  const auto hello = connection->read_small(address.hello, kHelloBytes, clock, deadline);
  if (!hello) return hello.error().at("reaching the target");
  std::uint64_t magic = 0;
  std::memcpy(&magic, connection->scratch_, sizeof magic);
  if (magic != kHelloMagic) return Error(Errc::kInvalidArgument, "not a target of this version");
  return connection;
}

Result<void> Connection::probe(const RemoteKey& key, const Clock& clock, TimePoint deadline) {
  const auto read = read_small(key, 1, clock, deadline);
  if (read || read.error().code() == Errc::kDeadline) return read;
  return Error(Errc::kPermissionDenied, "the target refuses the key: " + read.error().context());
}

Result<void> Connection::read_small(const RemoteKey& key, std::uint64_t length_bytes,
                                    const Clock& clock, TimePoint deadline) {
  HO_CHECK(length_bytes <= sizeof scratch_);
  scratch_piece_.length_bytes = static_cast<std::uint32_t>(length_bytes);
  const Place place{scratch_, kScratchId, key.base, key.key};
  const TimePoint start = clock.now();
  bool posted = false;
  while (true) {
    if (!posted) {
      const std::int64_t returned = read(scratch_piece_, place);
      if (returned != 0 && returned != -FI_EAGAIN) return fabric_error(returned, "a small read");
      posted = returned == 0;
    }
    std::array<Event, 4> events;
    const std::size_t count = poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].code != 0) return fabric_error(-events[i].code, "a small read");
      if (events[i].piece == &scratch_piece_) return {};
    }
    const TimePoint now = clock.now();
    if (now >= deadline) return Error(Errc::kDeadline, "no answer in time");
    if (now - start > kSpin) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

std::int64_t Connection::ask(const RemoteKey& hello) {
  scratch_piece_.length_bytes = kHelloBytes;
  return read(scratch_piece_, {scratch_, kScratchId, hello.base, hello.key});
}

Result<void> Connection::add_memory(LocalId id, std::span<std::byte> memory) {
  if ((endpoint_->mr_mode() & FI_MR_LOCAL) == 0) return {};
  auto handle = endpoint_->register_memory(
      Endpoint::Registration{memory, FI_READ | FI_WRITE, id.value() + std::uint64_t{1}});
  if (!handle) return handle.error();
  memories_[id] = std::move(*handle);
  return {};
}

std::int64_t Connection::read(Piece& piece, const Place& place) {
  return fi_read(endpoint_->ep(), place.local, piece.length_bytes, descriptor_of(place.memory),
                 endpoint_->peer(), place.remote, place.key, &piece.context);
}

std::int64_t Connection::write(Piece& piece, const Place& place) {
  iovec local{place.local, piece.length_bytes};
  void* descriptor = descriptor_of(place.memory);
  fi_rma_iov remote{place.remote, piece.length_bytes, place.key};
  fi_msg_rma message{};
  message.msg_iov = &local;
  message.desc = &descriptor;
  message.iov_count = 1;
  message.addr = endpoint_->peer();
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = &piece.context;
  return fi_writemsg(endpoint_->ep(), &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

std::size_t Connection::poll(std::span<Event> out) {
  constexpr std::size_t kBatch = 32;
  fi_cq_entry entries[kBatch];
  const ssize_t got = fi_cq_read(endpoint_->cq(), entries, std::min(kBatch, out.size()));
  if (got > 0) {
    const auto count = static_cast<std::size_t>(got);
    // The context is a piece's first member, and a Piece is standard layout.
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = Event{static_cast<Piece*>(entries[i].op_context), 0};
    }
    return count;
  }
  if (got == 0 || got == -FI_EAGAIN || out.empty()) return 0;
  if (got != -FI_EAVAIL) {
    out[0] = Event{nullptr, static_cast<int>(-got)};
    return 1;
  }
  fi_cq_err_entry error{};
  if (fi_cq_readerr(endpoint_->cq(), &error, 0) != 1) return 0;
  out[0] = Event{static_cast<Piece*>(error.op_context), error.err != 0 ? error.err : FI_EOTHER};
  return 1;
}

}  // namespace ho::transport
