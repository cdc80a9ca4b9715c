#include "common/transport/ucx/endpoint.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport {
namespace {

/// How long the end of an endpoint may take; measured: below 10 ms.
constexpr Duration kCloseLimit = std::chrono::seconds(2);

/// The transports that UCX's description of an endpoint names, one call of `found` each. Its lines
/// are like "lane[0]:  0:rc_verbs/rxe0:1.0 md[0] -> ...".
template <typename Found>
void for_each_lane(std::string_view description, Found found) {
  while (!description.empty()) {
    const std::size_t end = description.find('\n');
    std::string_view line = description.substr(0, end);
    description.remove_prefix(end == std::string_view::npos ? description.size() : end + 1);
    const std::size_t lane = line.find("lane[");
    if (lane == std::string_view::npos) continue;
    const std::size_t slash = line.find('/', lane);
    const std::size_t colon = line.rfind(':', slash);
    if (slash == std::string_view::npos || colon == std::string_view::npos || colon < lane) {
      found(line.substr(lane));
    } else {
      found(line.substr(colon + 1, slash - colon - 1));
    }
  }
}

}  // namespace

Result<std::unique_ptr<UcxEndpoint>> UcxEndpoint::create(UcxContext& context,
                                                         const std::string& worker) {
  std::unique_ptr<UcxEndpoint> made(new UcxEndpoint(context));
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(worker.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = [](void* endpoint, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxEndpoint*>(endpoint)->error_ = status;
  };
  parameters.err_handler.arg = made.get();
  const ucs_status_t status = ucp_ep_create(context.worker(), &parameters, &made->handle_);
  if (status != UCS_OK) {
    made->handle_ = nullptr;
    return ucx_error(status, "the peer's RDMA devices cannot be reached from here");
  }
  return made;
}

UcxEndpoint::~UcxEndpoint() {
  start_close();
  const auto end = std::chrono::steady_clock::now() + kCloseLimit;
  while (!closed() && std::chrono::steady_clock::now() < end) context_.progress();
}

void UcxEndpoint::start_connect() {
  HO_CHECK(handle_ != nullptr && connecting_ == nullptr);
  ucp_request_param_t parameters{};
  void* const request = ucp_ep_flush_nbx(handle_, &parameters);
  if (UCS_PTR_IS_PTR(request)) {
    connecting_ = request;
  } else if (UCS_PTR_STATUS(request) != UCS_OK) {
    error_ = UCS_PTR_STATUS(request);
  }
}

bool UcxEndpoint::ready() {
  if (connecting_ == nullptr) return true;
  const ucs_status_t status = ucp_request_check_status(connecting_);
  if (status == UCS_INPROGRESS) return false;
  ucp_request_free(std::exchange(connecting_, nullptr));
  if (status != UCS_OK && error_ == UCS_OK) error_ = status;
  return true;
}

Result<void> UcxEndpoint::check_lanes() const {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* const stream = ::open_memstream(&text, &length);
  if (stream == nullptr) return Error(Errc::kExhausted, "open_memstream");
  ucp_ep_print_info(handle_, stream);
  std::fclose(stream);
  const std::string description(text, length);
  std::free(text);
  bool rdma = false;
  std::string others;
  for_each_lane(description, [&](std::string_view transport) {
    if (transport.starts_with("rc_") || transport.starts_with("dc_")) {
      rdma = true;
    } else {
      others += (others.empty() ? "" : ", ") + std::string(transport);
    }
  });
  if (rdma && others.empty()) return {};
  return Error(Errc::kUnsupported, "UCX would not run over RDMA alone: " +
                                       (others.empty() ? "it names no transport" : others));
}

Result<UcxRkey> UcxEndpoint::unpack(const std::string& packed) const {
  HO_CHECK(handle_ != nullptr);
  ucp_rkey_h key = nullptr;
  const ucs_status_t status = ucp_ep_rkey_unpack(handle_, packed.data(), &key);
  if (status != UCS_OK) {
    return Error(Errc::kInvalidArgument, ucx_error(status, "unpacking a remote key").context());
  }
  return UcxRkey(key);
}

void UcxEndpoint::start_close() {
  if (handle_ == nullptr) return;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const request = ucp_ep_close_nbx(std::exchange(handle_, nullptr), &parameters);
  if (UCS_PTR_IS_PTR(request)) closing_ = request;
}

bool UcxEndpoint::closed() {
  if (handle_ != nullptr || !ready()) return false;
  if (closing_ == nullptr) return true;
  if (ucp_request_check_status(closing_) == UCS_INPROGRESS) return false;
  ucp_request_free(std::exchange(closing_, nullptr));
  return true;
}

Result<void> try_key(UcxContext& context, UcxEndpoint& endpoint, const UcxTrial& trial,
                     const Clock& clock, TimePoint deadline) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
  parameters.memh = trial.scratch_memory;
  void* const request =
      ucp_get_nbx(endpoint.handle(), trial.scratch, 1, trial.address, trial.key, &parameters);
  ucs_status_t status = UCS_PTR_IS_PTR(request) ? UCS_INPROGRESS : UCS_PTR_STATUS(request);
  bool late = false;
  while (status == UCS_INPROGRESS) {
    context.progress();
    status = ucp_request_check_status(request);
    if (late || clock.now() < deadline) continue;
    late = true;
    endpoint.start_close();  // which ends the request
  }
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  if (late) return Error(Errc::kDeadline, "no answer from the target's device");
  if (status == UCS_OK) return {};
  const Error error = ucx_error(status, "reading with the key");
  // A connection that ends by retries has no peer any more; otherwise the device refused the key.
  return Error(nothing_answers(status) ? Errc::kUnavailable : Errc::kPermissionDenied,
               error.context());
}

}  // namespace ho::transport
