#pragma once

#include <ucp/api/ucp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/transport/ucx/settings.hpp"

namespace ho::test {

/// An initiator that speaks UCX by itself, and follows no rules. Its endpoints are closed first.
class UcxPeer {
 public:
  UcxPeer() {
    ucp_config_t* config = nullptr;
    REQUIRE(ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
    for (const auto& setting :
         transport::ucx_settings({}, transport::UcxSide::kInitiator, {1, 13, true})) {
      (void)ucp_config_modify(config, setting.name.c_str(), setting.value.c_str());
    }
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_RMA;
    const ucs_status_t made = ucp_init(&parameters, config, &context_);
    ucp_config_release(config);
    REQUIRE(made == UCS_OK);
    ucp_worker_params_t worker{};
    REQUIRE(ucp_worker_create(context_, &worker, &worker_) == UCS_OK);
  }
  UcxPeer(const UcxPeer&) = delete;
  UcxPeer& operator=(const UcxPeer&) = delete;
  ~UcxPeer() {
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    if (context_ != nullptr) ucp_cleanup(context_);
  }

  [[nodiscard]] ucp_ep_h connect(const std::string& address) {
    ucp_ep_params_t to{};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    to.address = reinterpret_cast<const ucp_address_t*>(address.data());
    to.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    ucp_ep_h endpoint = nullptr;
    REQUIRE(ucp_ep_create(worker_, &to, &endpoint) == UCS_OK);
    REQUIRE(ends(flush(endpoint), std::chrono::seconds(20)));
    return endpoint;
  }
  void close(ucp_ep_h endpoint) {
    ucp_request_param_t force{};
    force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    force.flags = UCP_EP_CLOSE_FLAG_FORCE;
    (void)ends(ucp_ep_close_nbx(endpoint, &force), std::chrono::seconds(5));
  }

  [[nodiscard]] static ucp_rkey_h unpack(ucp_ep_h endpoint, const std::string& key) {
    ucp_rkey_h made = nullptr;
    REQUIRE(ucp_ep_rkey_unpack(endpoint, key.data(), &made) == UCS_OK);
    return made;
  }
  [[nodiscard]] static void* put(ucp_ep_h endpoint, std::span<const std::byte> bytes,
                                 std::uint64_t address, ucp_rkey_h key) {
    ucp_request_param_t none{};
    return ucp_put_nbx(endpoint, bytes.data(), bytes.size(), address, key, &none);
  }
  [[nodiscard]] static void* get(ucp_ep_h endpoint, std::span<std::byte> bytes,
                                 std::uint64_t address, ucp_rkey_h key) {
    ucp_request_param_t none{};
    return ucp_get_nbx(endpoint, bytes.data(), bytes.size(), address, key, &none);
  }
  [[nodiscard]] static void* flush(ucp_ep_h endpoint) {
    ucp_request_param_t none{};
    return ucp_ep_flush_nbx(endpoint, &none);
  }
  void progress() { ucp_worker_progress(worker_); }
  /// Progresses until the request ends, or that long. @return whether it did, and well.
  bool ends(void* request, std::chrono::seconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    ucs_status_t status = UCS_PTR_IS_PTR(request) ? UCS_INPROGRESS : UCS_PTR_STATUS(request);
    while (status == UCS_INPROGRESS && std::chrono::steady_clock::now() < end) {
      progress();
      status = ucp_request_check_status(request);
    }
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    return status == UCS_OK;
  }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
};

}  // namespace ho::test
