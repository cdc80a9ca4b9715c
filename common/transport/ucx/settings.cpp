#include "common/transport/ucx/settings.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "common/text/split_text.hpp"

namespace ho::transport {
namespace {

constexpr const char* kNoCache = "no cache of registrations";
constexpr const char* kShortQueues = "short queues to receive";
constexpr const char* kTimeout = "the time until a dead peer shows";
constexpr const char* kRetries = "the tries until a dead peer shows";
constexpr const char* kNoCopies = "no copies of larger pieces";
constexpr const char* kNoUdTimeout = "no end of a wire-up that is not answered";

/// The settings that do not depend on the machine. In code UCX 1.13 names a transport's settings by
/// its family; later versions use the names of the environment variables, if the module that
/// defines them is present. Up to 1.20.0 UCX only logs unknown names; since then they are errors.
constexpr struct {
  const char* purpose;
  const char* name;
  const char* value;
  bool optional = false;
} kSettings[] = {
    // No registration cache: an unmapped region must be out of reach at once, and our memory stays
    // registered for long anyway. Up to 1.14 each device's part had a cache. Since then there is
    // one above them, and ucp_mem_unmap() would leave the region registered in it.
    {kNoCache, "REG_METHODS", "direct"},
    {kNoCache, "IB_REG_METHODS", "direct"},
    {kNoCache, "RCACHE_ENABLE", "n"},
    // UCX copies small operations, and each 8 KiB takes a place in the device's queue. By default
    // it copies up to 150 KiB, since it counts the cost of a registration, which our memory already
    // has.
    {kNoCopies, "ZCOPY_THRESH", "16k"},
    // Only the wire-up receives messages. UCX's default of 4096 buffers costs 50 MB and most of the
    // time of a first connection.
    {kShortQueues, "RC_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "UD_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "RC_VERBS_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "RC_MLX5_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "DC_MLX5_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "UD_VERBS_RX_QUEUE_LEN", "128", true},
    {kShortQueues, "UD_MLX5_RX_QUEUE_LEN", "128", true},
    // A dead peer is detected after 7 tries of 134 ms (the device rounds up to a power of two).
    // UCX's own values take more than 30 s, and its 7 retries are endless with soft-RoCE.
    {kTimeout, "RC_TIMEOUT", "100ms"},
    {kRetries, "RC_RETRY_COUNT", "6"},
    {kTimeout, "RC_VERBS_TIMEOUT", "100ms"},
    {kRetries, "RC_VERBS_RETRY_COUNT", "6"},
    {kTimeout, "RC_MLX5_TIMEOUT", "100ms"},
    {kRetries, "RC_MLX5_RETRY_COUNT", "6"},
    {kTimeout, "DC_MLX5_TIMEOUT", "100ms"},
    {kRetries, "DC_MLX5_RETRY_COUNT", "6"},
    // Two years, which means never. A peer that vanishes after its first message of a wire-up
    // leaves an endpoint that only UCX knows. After 30 s, its default, UCX would close it and
    // assert that it has nothing left to send, which ends the process (1.13 to current, in builds
    // with assertions, as Debian's). So such endpoints stay, some KiB each. Our own connection
    // attempts have deadlines, and connected endpoints no longer use ud.
    {kNoUdTimeout, "UD_TIMEOUT", "1000000m"},
    {kNoUdTimeout, "UD_VERBS_TIMEOUT", "1000000m"},
    {kNoUdTimeout, "UD_MLX5_TIMEOUT", "1000000m"},
    // Makes UCX return an error instead of access by messages to the target's process. Known since
    // 1.21.
    {"no emulation", "PROTO_EMULATION_ENABLE", "n", true},
};

/// How UCX chooses an operation's protocol: see "Versions of UCX" in UCX.md.
const char* new_protocols(const UcxSurroundings& here) {
  return here.major > 1 || here.minor >= 19 ? "y" : "n";
}

}  // namespace

std::vector<UcxSetting> ucx_settings(const UcxDevices& devices, UcxSide side,
                                     const UcxSurroundings& here) {
  std::vector<UcxSetting> settings;
  for (const auto& one : kSettings) {
    if (devices.allow_emulation && std::string_view(one.name) == "PROTO_EMULATION_ENABLE") continue;
    // Emulation may need no RDMA, and some builds of UCX have no support for it.
    const bool optional =
        one.optional || (devices.allow_emulation && one.purpose != std::string_view(kNoCache));
    settings.push_back({one.name, one.value, one.purpose, optional});
  }
  settings.push_back({"PROTO_ENABLE", new_protocols(here)});
  settings.push_back({"TLS", devices.transports});
  settings.push_back({"NET_DEVICES", devices.devices.empty() ? "all" : devices.devices});
  // The control connections watch an initiator's peers. UCX's keep-alive needs the peer's process,
  // so a stopped daemon would look dead. The target does use it, to drop dead clients.
  settings.push_back({"KEEPALIVE_INTERVAL", side == UcxSide::kInitiator ? "inf" : "20s"});
  if (here.software_device) {
    // Soft-RoCE's completions lack the packet's kind, by which UCX recognizes its packets: it would
    // drop them all.
    settings.push_back({"UD_ETH_DGID_CHECK", "n", "soft-RoCE", true});
    settings.push_back({"UD_VERBS_ETH_DGID_CHECK", "n", "soft-RoCE", true});
  }
  // These have one name each in all versions.
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
  for (const std::string_view name : split_text(devices.transports, ',')) {
    if (name == "rc" || name == "dc") continue;
    return Error(Errc::kInvalidArgument, "UCX transport '" + std::string(name) +
                                             "': only rc and dc access memory without the peer");
  }
  return {};
}

}  // namespace ho::transport
