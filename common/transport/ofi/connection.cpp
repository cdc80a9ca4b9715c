#include "common/transport/ofi/connection.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport {
namespace {

/// How long try_key() polls without a pause: a round trip on a quiet machine.
constexpr Duration kSpin = std::chrono::microseconds(50);

}  // namespace

Connection::Connection(std::unique_ptr<Endpoint> endpoint, const OfiAddress& address)
    : endpoint_(std::move(endpoint)), hello_(address.hello), flights_(1 + kOpsMax) {
  free_.reserve(kOpsMax);
  for (std::size_t i = flights_.size(); i-- > 1;) free_.push_back(&flights_[i]);
}

Result<std::unique_ptr<Connection>> Connection::begin(const OfiAddress& address,
                                                      const Endpoint::Reach& how) {
  auto endpoint = Endpoint::reach(address, how);
  if (!endpoint) return endpoint.error();
  std::unique_ptr<Connection> made(new Connection(std::move(*endpoint), address));
  if (const auto added = made->add_memory(nullptr, made->scratch_); !added) return added.error();
  return made;
}

Result<void> Connection::add_memory(const LocalMemory* memory, std::span<std::byte> bytes) {
  if ((endpoint_->mr_mode() & FI_MR_LOCAL) == 0) return {};
  auto handle = endpoint_->register_memory({bytes, FI_READ | FI_WRITE, memories_.size() + 1});
  if (!handle) return handle.error();
  memories_[memory] = std::move(*handle);
  return {};
}

void* Connection::descriptor_of(const LocalMemory* memory) const {
  const auto found = memories_.find(memory);
  return found == memories_.end() ? nullptr : fi_mr_desc(found->second.get());
}

bool Connection::post(RailOp& op, const RemoteKey& key) {
  if (free_.empty() || failure_) return false;
  Flight& flight = *free_.back();
  void* descriptor = descriptor_of(op.memory);
  const std::uint64_t remote = key.base + op.offset_bytes;
  std::int64_t returned = 0;
  if (op.is_get) {
    returned = fi_read(endpoint_->ep(), op.bytes, op.length_bytes, descriptor, endpoint_->peer(),
                       remote, key.key, &flight.context);
  } else {
    iovec local{op.bytes, op.length_bytes};
    fi_rma_iov there{remote, op.length_bytes, key.key};
    fi_msg_rma message{};
    message.msg_iov = &local;
    message.desc = &descriptor;
    message.iov_count = 1;
    message.addr = endpoint_->peer();
    message.rma_iov = &there;
    message.rma_iov_count = 1;
    message.context = &flight.context;
    returned = fi_writemsg(endpoint_->ep(), &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
  }
  if (returned == -FI_EAGAIN) return false;
  if (returned != 0) {
    failure_ = fabric_error(returned, "posting");
    return false;
  }
  free_.pop_back();
  flight.op = &op;
  bytes_ += op.length_bytes;
  return true;
}

std::int64_t Connection::read_scratch(const RemoteKey& key, std::size_t length_bytes) {
  scratch_came_ = false;
  return fi_read(endpoint_->ep(), scratch_, length_bytes, descriptor_of(nullptr), endpoint_->peer(),
                 key.base, key.key, &flights_.front().context);
}

bool Connection::greet() {
  if (!asked_) {
    const std::int64_t returned = read_scratch(hello_, kHelloBytes);
    if (returned != 0 && returned != -FI_EAGAIN) failure_ = fabric_error(returned, "a first read");
    asked_ = returned == 0;
    return asked_;
  }
  if (!scratch_came_) return false;
  std::uint64_t magic = 0;
  std::memcpy(&magic, scratch_, sizeof magic);
  open_ = magic == kHelloMagic;
  if (!open_) failure_ = Error(Errc::kInvalidArgument, "not a target of this version");
  return true;
}

bool Connection::progress(std::vector<RailOp*>& ended) {
  if (failure_) return false;
  const bool moved = take_events(ended);
  return (!open_ && !failure_ && greet()) || moved;
}

bool Connection::take_events(std::vector<RailOp*>& ended) {
  std::array<fi_cq_entry, 32> entries;
  const ssize_t got = fi_cq_read(endpoint_->cq(), entries.data(), entries.size());
  for (ssize_t i = 0; i < got; ++i) {
    // The context is a flight's first member, and a Flight is standard layout.
    Flight& flight = *static_cast<Flight*>(entries[static_cast<std::size_t>(i)].op_context);
    RailOp* const op = std::exchange(flight.op, nullptr);
    if (&flight == &flights_.front()) {
      scratch_came_ = true;
      continue;
    }
    bytes_ -= op->length_bytes;
    free_.push_back(&flight);
    op->outcome = Errc::kOk;
    ended.push_back(op);
  }
  if (got > 0) return true;
  if (got == 0 || got == -FI_EAGAIN) return false;
  // What one operation did wrong costs the connection: libfabric does not say more of most of them.
  fi_cq_err_entry error{};
  const bool told = got == -FI_EAVAIL && fi_cq_readerr(endpoint_->cq(), &error, 0) == 1;
  failure_ = fabric_error(told && error.err != 0 ? -error.err : -FI_EOTHER, "the connection");
  return true;
}

void Connection::give_back(std::vector<RailOp*>& ended) {
  endpoint_.reset();
  memories_.clear();
  for (Flight& flight : flights_) {
    if (flight.op == nullptr) continue;
    flight.op->outcome = Errc::kUnavailable;
    ended.push_back(std::exchange(flight.op, nullptr));
  }
}

Result<void> Connection::try_key(const RemoteKey& key, TimePoint deadline) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  std::vector<RailOp*> none;
  bool posted = false;
  while (true) {
    (void)progress(none);
    if (failure_ && open_) {
      return Error(Errc::kPermissionDenied, "the target refuses the key: " + failure_->context());
    }
    if (failure_) return *failure_;
    if (posted && scratch_came_) return {};
    if (open_ && !posted) {
      const std::int64_t returned = read_scratch(key, 1);
      if (returned != 0 && returned != -FI_EAGAIN) return fabric_error(returned, "a small read");
      posted = returned == 0;
    }
    const TimePoint now = clock.now();
    if (now >= deadline) return Error(Errc::kDeadline, "no answer in time");
    if (now - start > kSpin) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace ho::transport
