#include "common/transport/ucx/connection.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport {

namespace {

Error not_connected(ucs_status_t status) {
  return Error(Errc::kUnavailable, ucx_error(status, "connecting to the target").context());
}

}  // namespace

Result<std::unique_ptr<UcxConnection>> UcxConnection::begin(UcxContext& context,
                                                            const std::string& worker,
                                                            std::size_t pieces_max) {
  std::unique_ptr<UcxConnection> made(new UcxConnection(context, worker, pieces_max));
  for (Lane& lane : made->lanes_) {
    auto endpoint = UcxEndpoint::create(context, worker);
    if (!endpoint) return endpoint.error();
    lane.endpoint = std::move(*endpoint);
  }
  for (Lane& lane : made->lanes_) lane.endpoint->start_connect();
  return made;
}

bool UcxConnection::wired() {
  bool all = true;
  for (Lane& lane : lanes_) all = lane.endpoint->ready() && all;
  return all;
}

Result<void> UcxConnection::outcome() const {
  for (const Lane& lane : lanes_) {
    if (lane.endpoint->error() != UCS_OK) return not_connected(lane.endpoint->error());
    if (context_.allows_emulation()) continue;
    if (auto only_rdma = lane.endpoint->check_lanes(); !only_rdma) return only_rdma;
  }
  return {};
}

/// Connects the endpoint to try keys on, unless there is one. On failure there is none.
Result<void> UcxConnection::connect_trial(const Clock& clock, TimePoint deadline) {
  if (trial_ != nullptr) return {};
  auto endpoint = UcxEndpoint::create(context_, worker_);
  if (!endpoint) return endpoint.error();
  trial_ = std::move(*endpoint);
  trial_->start_connect();
  std::optional<Error> failure;
  while (!failure && !trial_->ready()) {
    context_.progress();
    if (clock.now() >= deadline) failure = Error(Errc::kDeadline, "no answer from the target");
  }
  if (!failure && trial_->error() != UCS_OK) failure = not_connected(trial_->error());
  if (!failure) return {};
  trial_.reset();
  return *failure;
}

Result<void> UcxConnection::try_key(const KeyTrial& trial, const Clock& clock, TimePoint deadline) {
  if (auto sent = connect_trial(clock, deadline); !sent) return sent;
  auto key = trial_->unpack(trial.packed);
  if (!key) return key.error();
  const auto tried = transport::try_key(
      context_, *trial_, {trial.scratch, trial.scratch_memory, trial.address, key->get()}, clock,
      deadline);
  if (tried) return tried;
  trial_.reset();
  if (tried.error().code() != Errc::kPermissionDenied) return tried;
  // UCX reports the same when the target's process ends its endpoints; then a new one gets no
  // answer.
  const auto sent = connect_trial(clock, deadline);
  if (sent && !failure()) {
    return Error(Errc::kPermissionDenied,
                 "the target's device refuses the key: " + tried.error().context());
  }
  return Error(Errc::kUnavailable, "the target has gone: " + tried.error().context());
}

Result<UcxKeys> UcxConnection::unpack(const std::string& packed) const {
  UcxKeys keys;
  for (std::size_t i = 0; i < kUcxLanes; ++i) {
    auto key = lanes_[i].endpoint->unpack(packed);
    if (!key) return key.error();
    keys[i] = std::move(*key);
  }
  return keys;
}

std::optional<Error> UcxConnection::failure() const {
  ucs_status_t status = UCS_OK;
  for (const Lane& lane : lanes_) {
    if (status == UCS_OK) status = lane.endpoint->error();
  }
  if (status == UCS_OK) status = status_;
  if (status == UCS_OK) return std::nullopt;
  // UCX's name for what the target's device refuses (1.13 to current). TCP has it for any end.
  const bool refused = status == UCS_ERR_CONNECTION_RESET && !context_.allows_emulation();
  const Errc code = refused ? Errc::kPermissionDenied : Errc::kUnavailable;
  return Error(code, ucx_error(status, "the connection has ended").context());
}

/// One end that a piece waits for has come: its own, or that of its flush.
void UcxConnection::part_ended(UcxPiece& piece, ucs_status_t status) {
  if (piece.status == UCS_OK) piece.status = status;
  if (status_ == UCS_OK) status_ = status;
  HO_CHECK(piece.waits_for > 0);
  if (--piece.waits_for > 0) return;
  HO_CHECK(ended_.size() < ended_.capacity());
  ended_.push_back(&piece);
}

/// The piece's own part of its transfer.
ucp_request_param_t UcxConnection::parameters_of(UcxPiece& piece, const Place& place) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
  parameters.cb.send = [](void* request, ucs_status_t status, void* user) {
    ucp_request_free(request);
    auto& mine = *static_cast<UcxPiece*>(user);
    mine.of->answered_ = mine.of->answered_ || status == UCS_OK;
    mine.of->part_ended(mine, status);
  };
  parameters.user_data = &piece;
  parameters.memh = place.memory;
  return parameters;
}

void UcxConnection::get(LaneKind lane, UcxPiece& piece, const Place& place) {
  piece.waits_for = 1;
  piece.status = UCS_OK;
  piece.of = this;
  const ucp_request_param_t parameters = parameters_of(piece, place);
  void* const request = ucp_get_nbx(at(lane).endpoint->handle(), place.local, piece.length_bytes,
                                    place.remote, place.key, &parameters);
  if (!UCS_PTR_IS_PTR(request)) part_ended(piece, UCS_PTR_STATUS(request));
}

void UcxConnection::put(LaneKind lane, UcxPiece& piece, const Place& place) {
  piece.waits_for = 2;
  piece.status = UCS_OK;
  piece.of = this;
  piece.next = std::exchange(at(lane).unflushed, &piece);
  const ucp_request_param_t parameters = parameters_of(piece, place);
  void* const request = ucp_put_nbx(at(lane).endpoint->handle(), place.local, piece.length_bytes,
                                    place.remote, place.key, &parameters);
  if (!UCS_PTR_IS_PTR(request)) part_ended(piece, UCS_PTR_STATUS(request));
}

void UcxConnection::flush_ended(Flush& flush, ucs_status_t status) {
  UcxPiece* piece = std::exchange(flush.first, nullptr);
  flush.of = nullptr;
  while (piece != nullptr) {
    UcxPiece* const next = std::exchange(piece->next, nullptr);
    part_ended(*piece, status);
    piece = next;
  }
}

void UcxConnection::flush() {
  for (Lane& lane : lanes_) flush(lane);
}

void UcxConnection::flush(Lane& lane) {
  if (lane.unflushed == nullptr || lane.endpoint->handle() == nullptr) return;
  const auto idle = std::find_if(lane.flushes.begin(), lane.flushes.end(),
                                 [](const Flush& flush) { return flush.of == nullptr; });
  if (idle == lane.flushes.end()) return;
  idle->of = this;
  idle->first = std::exchange(lane.unflushed, nullptr);
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = [](void* request, ucs_status_t status, void* user) {
    ucp_request_free(request);
    auto& mine = *static_cast<Flush*>(user);
    mine.of->answered_ = mine.of->answered_ || status == UCS_OK;
    mine.of->flush_ended(mine, status);
  };
  parameters.user_data = &*idle;
  void* const request = ucp_ep_flush_nbx(lane.endpoint->handle(), &parameters);
  if (!UCS_PTR_IS_PTR(request)) flush_ended(*idle, UCS_PTR_STATUS(request));
}

void UcxConnection::start_close() {
  if (trial_ != nullptr) trial_->start_close();
  for (Lane& lane : lanes_) {
    lane.endpoint->start_close();
    // No flush will come behind these any more.
    Flush rest{this, std::exchange(lane.unflushed, nullptr)};
    flush_ended(rest, UCS_ERR_CANCELED);
  }
}

bool UcxConnection::closed() {
  const auto lane_closed = [](const Lane& lane) {
    const bool flushing = std::any_of(lane.flushes.begin(), lane.flushes.end(),
                                      [](const Flush& flush) { return flush.of != nullptr; });
    return !flushing && lane.endpoint->closed();
  };
  return std::all_of(lanes_.begin(), lanes_.end(), lane_closed) &&
         (trial_ == nullptr || trial_->closed());
}

}  // namespace ho::transport
