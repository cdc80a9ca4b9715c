#include "common/transport/ucx/settings.hpp"

#include <algorithm>
#include <set>
#include <string_view>

namespace ho::transport {
namespace {

constexpr const char* kNoCache = "no cache of registrations";
constexpr const char* kShortQueues = "short queues to receive";
constexpr const char* kTimeout = "the time until a dead peer shows";
constexpr const char* kRetries = "the tries until a dead peer shows";
constexpr const char* kNoCopies = "no copies of larger pieces";
constexpr const char* kNoUdTimeout = "no end of a wire-up that is not answered";

/// What does not depend on the machine. UCX 1.13 knows a transport's settings in code by the names
/// of the family, later versions by those of its environment variables, where the module that they
/// are of is there. Up to 1.20.0 names it does not know are only mentioned in its log; since then
/// they are errors.
constexpr struct {
  const char* purpose;
  const char* name;
  const char* value;
  bool optional = false;
} kSettings[] = {
    // No registration cache: an unmapped region must be out of reach at once, and memory of ours is
    // registered for long anyway. Up to 1.14 each device's part had a cache; since then there is
    // one above them, and ucp_mem_unmap() would leave the region registered in it.
    {kNoCache, "REG_METHODS", "direct"},
    {kNoCache, "IB_REG_METHODS", "direct"},
    {kNoCache, "RCACHE_ENABLE", "n"},
    // What is copied takes a place of the device's queue for every 8 KiB, and by UCX's own choice
    // up to 150 KiB are, since it reckons with a registration for each, which ours have already.
    {kNoCopies, "ZCOPY_THRESH", "16k"},
    // Nothing is received but the wire-up: UCX's own 4096 buffers each cost 50 MB and most of the
    // time that a first connection takes.
    {kShortQueues, "RC_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "UD_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "RC_VERBS_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "RC_MLX5_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "DC_MLX5_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "UD_VERBS_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "UD_MLX5_RX_QUEUE_LEN", "128", true},
    // A dead peer shows after 7 tries of 134 ms (the device rounds up to a power of two). UCX's own
    // values take more than 30 s; and the 7 retries it asks for are endless with soft-RoCE.
    {kTimeout, "RC_TIMEOUT", "100ms"},
    {kRetries, "RC_RETRY_COUNT", "6"},
    {kTimeout, "RC_VERBS_TIMEOUT", "100ms"},
    {kRetries, "RC_VERBS_RETRY_COUNT", "6"},
    {kTimeout, "RC_MLX5_TIMEOUT", "100ms"},
    {kRetries, "RC_MLX5_RETRY_COUNT", "6"},
    {kTimeout, "DC_MLX5_TIMEOUT", "100ms"},
    {kRetries, "DC_MLX5_RETRY_COUNT", "6"},
    // Never: in two years. A peer that vanishes once its first message of a wire-up has come leaves
    // an endpoint that UCX alone knows. After UCX's own 30 s it would be ended, but for an
    // assertion that it had nothing left to send, which ends the process (1.13 to current, where
    // assertions are compiled in, as in Debian's). So such endpoints stay, some KiB each. Our own
    // tries to connect have deadlines, and what is connected does not go over ud any more.
    {kNoUdTimeout, "UD_TIMEOUT", "1000000m"},
    {kNoUdTimeout, "UD_VERBS_TIMEOUT", "1000000m"},
    {kNoUdTimeout, "UD_MLX5_TIMEOUT", "1000000m"},
    // Rather an error than access by messages to the target's process. Known since 1.21.
    {"no emulation", "PROTO_EMULATION_ENABLE", "n", true},
};

/// How UCX chooses an operation's protocol: see "Versions of UCX" in README.md.
const char* new_protocols(const UcxSurroundings& here) {
  return here.major > 1 || here.minor >= 19 ? "y" : "n";
}

}  // namespace

std::vector<UcxSetting> ucx_settings(const UcxDevices& devices, UcxSide side,
                                     const UcxSurroundings& here) {
  std::vector<UcxSetting> settings;
  for (const auto& one : kSettings) {
    if (devices.allow_emulation && std::string_view(one.name) == "PROTO_EMULATION_ENABLE") continue;
    // What is emulated may need no RDMA, and some builds of UCX have nothing for it.
    const bool optional =
        one.optional || (devices.allow_emulation && one.purpose != std::string_view(kNoCache));
    settings.push_back({one.name, one.value, one.purpose, optional});
  }
  settings.push_back({"PROTO_ENABLE", new_protocols(here)});
  settings.push_back({"TLS", devices.transports});
  settings.push_back({"NET_DEVICES", devices.devices.empty() ? "all" : devices.devices});
  // An initiator's peers are watched by their control connections. UCX would ask a peer's process,
  // so that a stopped daemon looked dead. The target does ask, to be rid of dead clients.
  settings.push_back({"KEEPALIVE_INTERVAL", side == UcxSide::kInitiator ? "inf" : "20s"});
  if (here.software_device) {
    // Soft-RoCE leaves the packet's kind out of its completions, by which UCX would know that a
    // packet was meant for it: it would drop them all.
    settings.push_back({"UD_ETH_DGID_CHECK", "n", "soft-RoCE", true});
    settings.push_back({"UD_VERBS_ETH_DGID_CHECK", "n", "soft-RoCE", true});
  }
  // The rest have one name each in all versions.
  for (UcxSetting& setting : settings) {
    if (setting.purpose.empty()) setting.purpose = setting.name;
  }
  return settings;
}

Result<void> apply_ucx_settings(std::span<const UcxSetting> settings,
                                const std::function<UcxAnswer(const UcxSetting&)>& modify) {
  std::set<std::string> taken;
  for (const UcxSetting& setting : settings) {
    const UcxAnswer answer = modify(setting);
    if (answer == UcxAnswer::kFailed) {
      return Error(Errc::kUnsupported, "UCX does not set " + setting.name + " to " + setting.value);
    }
    if (answer == UcxAnswer::kTaken) taken.insert(setting.purpose);
  }
  for (const UcxSetting& setting : settings) {
    if (setting.optional || taken.count(setting.purpose) > 0) continue;
    std::string names;
    for (const UcxSetting& other : settings) {
      if (other.purpose != setting.purpose) continue;
      names += (names.empty() ? "" : ", ") + other.name;
    }
    return Error(Errc::kUnsupported, "this UCX knows no setting for " + setting.purpose + " (" +
                                         names + "); was it built for RDMA (libuct_ib)?");
  }
  return {};
}

Result<void> check_ucx_transports(const UcxDevices& devices) {
  if (devices.allow_emulation) return {};
  std::string_view rest = devices.transports;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    if (name != "rc" && name != "dc") {
      return Error(Errc::kInvalidArgument, "UCX transport '" + std::string(name) +
                                               "': only rc and dc access memory without the peer");
    }
    if (comma == std::string_view::npos) return {};
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace ho::transport
