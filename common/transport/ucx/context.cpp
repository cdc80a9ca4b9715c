#include "common/transport/ucx/context.hpp"

#include <ucs/debug/log_def.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/text/split_text.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "common/transport/ucx/ucx_transport.hpp"

namespace ho::transport {
namespace {

/// UCX has one log handler for the process, so there is one listener.
std::atomic<void (*)(const char*)> log_listener{nullptr};

/// UCX writes its log to stdout, which belongs to the program. So its lines go into our log. They
/// are not warnings: the operations report a lost peer too.
ucs_log_func_rc_t take_log_line(const char* file, unsigned line, const char* function,
                                ucs_log_level_t level, const ucs_log_component_config_t* component,
                                const char* format, va_list arguments) {
  if (level == UCS_LOG_LEVEL_FATAL) {
    return ucs_log_default_handler(file, line, function, level, component, format, arguments);
  }
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_STOP;
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  if (const auto say = log_listener.load(); say != nullptr) say(text.data());
  return UCS_LOG_FUNC_RC_STOP;
}

Result<void> configure(ucp_config_t* config, const UcxDevices& devices, UcxSide side) {
  UcxSurroundings here;
  unsigned release = 0;
  ucp_get_version(&here.major, &here.minor, &release);
  const auto active = active_rdma_devices();
  here.software_device = std::any_of(active.begin(), active.end(),
                                     [](const RdmaDevice& device) { return device.software; });
  return apply_ucx_settings(ucx_settings(devices, side, here), [&](const UcxSetting& setting) {
    switch (ucp_config_modify(config, setting.name.c_str(), setting.value.c_str())) {
      case UCS_OK: return UcxAnswer::kTaken;
      case UCS_ERR_NO_ELEM:
      case UCS_ERR_INVALID_PARAM: return UcxAnswer::kUnknown;  // since 1.20.1; or the value is bad
      default: return UcxAnswer::kFailed;
    }
  });
}

/// The device's name in UCX.
std::string name_of(const RdmaDevice& device) {
  return device.name + ":" + std::to_string(device.port);
}

}  // namespace

Errc errc_of_ucx(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE: return Errc::kExhausted;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR: return Errc::kInvalidArgument;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED: return Errc::kUnsupported;
    case UCS_ERR_IO_ERROR: return Errc::kIo;
    default: return Errc::kUnavailable;
  }
}

Error ucx_error(ucs_status_t status, const std::string& what) {
  return Error(errc_of_ucx(status), what + ": " + ucs_status_string(status));
}

void set_ucx_log(void (*say)(const char* line)) { log_listener.store(say); }

Result<std::unique_ptr<UcxContext>> UcxContext::create(const UcxDevices& devices, UcxSide side) {
  if (const auto known = check_ucx_transports(devices); !known) return known.error();
  if (const auto there = check_rdma_device(); !there && !devices.allow_emulation) {
    return there.error();
  }
  static std::once_flag once;  // the handler is the library's, for the whole process
  std::call_once(once, [] { ucs_log_push_handler(take_log_line); });
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return ucx_error(status, "reading UCX's configuration");
  const auto configured = configure(config, devices, side);
  std::unique_ptr<UcxContext> made(new UcxContext());
  made->settings_ = devices;
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // The target does not ask for RMA, except with allow_emulation: UCX would install handlers for
  // emulated access, which read and write wherever a message says. A wire-up needs some feature;
  // that of streams has one handler, which only queues.
  const bool target = side == UcxSide::kTarget;
  parameters.features = target && !devices.allow_emulation ? UCP_FEATURE_STREAM : UCP_FEATURE_RMA;
  if (target) parameters.features |= UCP_FEATURE_WAKEUP;
  parameters.name = "hyperoffload";
  if (configured) status = ucp_init(&parameters, config, &made->context_);
  ucp_config_release(config);
  if (!configured) return configured.error();
  if (status != UCS_OK) {
    const Error error = ucx_error(status, "no device that UCX can use for '" + devices.transports +
                                              "' on '" + devices.devices + "'");
    return Error(Errc::kUnsupported, error.context());
  }
  if (auto worker = made->create_worker(); !worker) return worker.error();
  return made;
}

Result<void> UcxContext::create_worker() {
  HO_CHECK(worker_ == nullptr);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // One thread at a time, but not always the same: the thread that makes a worker passes it to the
  // thread that moves data. With mode SINGLE a UCX with assertions, as in Debian 13, ends the
  // process.
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  const ucs_status_t status = ucp_worker_create(context_, &worker, &worker_);
  if (status == UCS_OK) return {};
  worker_ = nullptr;
  return ucx_error(status, "making a UCX worker");
}

Result<UcxContexts> UcxContext::create_all(const UcxDevices& devices, UcxSide side) {
  std::vector<std::string> names;
  if (!devices.devices.empty() && devices.devices != "all") {
    const auto listed = split_text(devices.devices, ',');
    names.assign(listed.begin(), listed.end());
    std::set<std::string> distinct(names.begin(), names.end());
    if (names.size() > kRailsMax || distinct.size() != names.size() || distinct.count("") > 0) {
      return Error(Errc::kInvalidArgument, "RDMA devices '" + devices.devices + "': not 1 to " +
                                               std::to_string(kRailsMax) + " different names");
    }
  } else {
    for (const RdmaDevice& device : active_rdma_devices()) names.push_back(name_of(device));
    // Emulation needs no device. With none and no emulation UCX itself reports what is wrong.
    if (names.empty() || devices.allow_emulation) names = {std::string()};
    if (names.size() > kRailsMax) names.resize(kRailsMax);
  }
  UcxContexts made;
  std::vector<std::pair<std::string, Error>> failures;
  for (const std::string& name : names) {
    UcxDevices one = devices;
    one.devices = name;
    auto context = create(one, side);
    if (context) {
      made.push_back(std::move(*context));
    } else {
      failures.emplace_back(name, context.error());
    }
  }
  if (made.empty()) return failures.front().second;
  for (const auto& [name, error] : failures) {
    log(LogLevel::kWarning, "an RDMA device is left out",
        {{"device", name}, {"why", error.message()}});
  }
  return made;
}

bool UcxContext::up() const {
  if (settings_.allow_emulation || settings_.devices.empty()) return true;
  const auto active = active_rdma_devices();
  return std::any_of(active.begin(), active.end(), [this](const RdmaDevice& device) {
    return settings_.devices == device.name || settings_.devices == name_of(device);
  });
}

UcxContext::~UcxContext() {
  destroy_worker();
  if (context_ != nullptr) ucp_cleanup(context_);
}

std::size_t UcxContext::progress_all() {
  constexpr std::size_t kRoundsMax = 16;
  std::size_t rounds = 0;
  while (rounds < kRoundsMax && progress() > 0) ++rounds;
  return rounds;
}

void UcxContext::destroy_worker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  worker_ = nullptr;
}

Result<std::string> UcxContext::worker_address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) return ucx_error(status, "asking for the worker's address");
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

Result<UcxMemory> UcxMemory::create(const UcxContext& context, std::span<std::byte> memory) {
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  parameters.address = memory.data();
  parameters.length = memory.size();
  UcxMemory made;
  made.context_ = context.context();
  const ucs_status_t status = ucp_mem_map(made.context_, &parameters, &made.handle_);
  if (status != UCS_OK) {
    made.handle_ = nullptr;
    return ucx_error(status, "registering memory with the RDMA devices");
  }
  return made;
}

Result<std::vector<UcxMemory>> register_with_all(const UcxContexts& contexts,
                                                 std::span<std::byte> memory) {
  std::vector<UcxMemory> made;
  for (const auto& context : contexts) {
    auto one = UcxMemory::create(*context, memory);
    if (!one) return one.error();
    made.push_back(std::move(*one));
  }
  return made;
}

Result<std::string> UcxMemory::pack_key() const {
  HO_CHECK(handle_ != nullptr);
  void* packed = nullptr;
  std::size_t length = 0;
  const ucs_status_t status = ucp_rkey_pack(context_, handle_, &packed, &length);
  if (status != UCS_OK) return ucx_error(status, "packing a remote key");
  std::string bytes(static_cast<const char*>(packed), length);
  ucp_rkey_buffer_release(packed);
  return bytes;
}

Result<void> UcxMemory::close() {
  if (handle_ == nullptr) return {};
  const ucs_status_t status = ucp_mem_unmap(context_, std::exchange(handle_, nullptr));
  if (status != UCS_OK) {
    return Error(Errc::kIo, ucx_error(status, "unregistering memory").context());
  }
  return {};
}

}  // namespace ho::transport
