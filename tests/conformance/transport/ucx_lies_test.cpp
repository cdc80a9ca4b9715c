// The ucx driver's target against an initiator that speaks UCX by itself, and has UCX emulate
// access by messages to the target's process.
#include <ucp/api/ucp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <string>

#include "common/base/checksum.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "common/transport/ucx/settings.hpp"
#include "common/transport/ucx/wire.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Rights;

/// A worker of UCX's with one endpoint, over rc alone.
class Liar {
 public:
  explicit Liar(const std::string& address) {
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
    ucp_ep_params_t to{};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    to.address = reinterpret_cast<const ucp_address_t*>(address.data());
    to.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    REQUIRE(ucp_ep_create(worker_, &to, &endpoint_) == UCS_OK);
    REQUIRE(ends(flush(), 20s));
  }
  Liar(const Liar&) = delete;
  Liar& operator=(const Liar&) = delete;
  ~Liar() {
    if (endpoint_ != nullptr) {
      ucp_request_param_t force{};
      force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      force.flags = UCP_EP_CLOSE_FLAG_FORCE;
      (void)ends(ucp_ep_close_nbx(endpoint_, &force), 5s);
    }
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    if (context_ != nullptr) ucp_cleanup(context_);
  }

  [[nodiscard]] ucp_rkey_h unpack(const std::string& key) {
    ucp_rkey_h made = nullptr;
    REQUIRE(ucp_ep_rkey_unpack(endpoint_, key.data(), &made) == UCS_OK);
    return made;
  }
  void* put(std::span<const std::byte> bytes, std::uint64_t address, ucp_rkey_h key) {
    ucp_request_param_t none{};
    return ucp_put_nbx(endpoint_, bytes.data(), bytes.size(), address, key, &none);
  }
  void* get(std::span<std::byte> bytes, std::uint64_t address, ucp_rkey_h key) {
    ucp_request_param_t none{};
    return ucp_get_nbx(endpoint_, bytes.data(), bytes.size(), address, key, &none);
  }
  void* flush() {
    ucp_request_param_t none{};
    return ucp_ep_flush_nbx(endpoint_, &none);
  }
  /// Progresses until the request ends, or that long. @return whether it did, and well.
  bool ends(void* request, std::chrono::seconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    ucs_status_t status = UCS_PTR_IS_PTR(request) ? UCS_INPROGRESS : UCS_PTR_STATUS(request);
    while (status == UCS_INPROGRESS && std::chrono::steady_clock::now() < end) {
      ucp_worker_progress(worker_);
      status = ucp_request_check_status(request);
    }
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    return status == UCS_OK;
  }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

/// A key that names no device's registration: UCX sends messages then, that name an address.
/// Source: ucp_rkey_pack() of UCX 1.13: a map of devices, 8 bytes, and the kind of memory, 1 byte.
const std::string kNoDevice(9, '\0');

TEST_CASE("ucx: what UCX would emulate by messages is neither written nor read at the target") {
  const auto there = transport::check_rdma_device();
  if (!there) {
    skip(there.error().context());
    return;
  }
  const auto rig = make_rig("ucx");
  Bench other(*rig, kMiB, 4096);
  fill(other.exposed.truth, 5);
  const std::uint64_t before = checksum64(other.exposed.truth);
  const auto key = transport::decode_ucx_key(other.exposed.key);
  const auto address = transport::decode_ucx_address(rig->peer(other.target).address);
  REQUIRE((key.ok() && address.ok()));
  // They outlive the endpoint: what has not ended in time ends with it.
  const std::vector<std::byte> bytes(64, std::byte{0xEE});
  std::vector<std::byte> read(64);
  std::vector<std::byte> stolen(64);
  {
    Liar liar(address->front().address);
    // That it is connected, and what it may: the device's access with a good key.
    ucp_rkey_h good = liar.unpack(key->packed.front());
    REQUIRE(liar.ends(liar.get(read, key->base, good), 20s));
    REQUIRE(std::memcmp(read.data(), other.exposed.truth.data(), read.size()) == 0);
    ucp_rkey_destroy(good);
    ucp_rkey_h none = liar.unpack(kNoDevice);
    (void)liar.ends(liar.put(bytes, key->base + 4096, none), 2s);
    (void)liar.ends(liar.flush(), 2s);
    CHECK(rig->alive(other.target));
    CHECK(checksum64(other.exposed.truth) == before);
    CHECK_FALSE(liar.ends(liar.get(stolen, key->base, none), 2s));
    CHECK(std::memcmp(stolen.data(), other.exposed.truth.data(), stolen.size()) != 0);
    ucp_rkey_destroy(none);
  }
  REQUIRE(rig->alive(other.target));
  REQUIRE(other.get(1, {0, 0, 4096}).ok());
  CHECK(collect(*rig, *other.initiator, 1)[0].code == Errc::kOk);
}

}  // namespace
}  // namespace ho::test
