#include "common/transport/ofi/fabric_log.hpp"

#include <rdma/fabric.h>
#include <rdma/fi_ext.h>

#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

namespace ho::transport {
namespace {

// libfabric has one log a process, and its callbacks carry no argument of ours.
std::mutex mutex;
std::shared_ptr<Tally> counts;  // under mutex

int wanted(const fi_provider* /*provider*/, fi_log_level level, fi_log_subsys subsystem,
           std::uint64_t /*flags*/) {
  return level <= FI_LOG_WARN && (subsystem == FI_LOG_MR || subsystem == FI_LOG_EP_CTRL) ? 1 : 0;
}

int ready(const fi_provider* provider, fi_log_level level, fi_log_subsys subsystem,
          std::uint64_t flags, std::uint64_t* showtime) {
  if (showtime != nullptr) *showtime = 0;
  return wanted(provider, level, subsystem, flags);
}

/// The cause behind one of libfabric's lines; nullptr: a line that tells of no refusal.
/// Source: util_mr_map.c and xnet_cm.c of libfabric 1.17.
const char* cause_of(fi_log_subsys subsystem, std::string_view message) {
  if (subsystem == FI_LOG_EP_CTRL) {
    const bool foreign = message.find("protocol version mismatch") != std::string_view::npos;
    return foreign ? "ofi: not our protocol" : nullptr;
  }
  if (message.find("unknown key") != std::string_view::npos) return "ofi: unknown key";
  if (message.find("out of registered range") != std::string_view::npos) {
    return "ofi: range outside of the region";
  }
  // Two lines a refusal; this one once.
  if (message.find("invalid access: requested") != std::string_view::npos) {
    return "ofi: access without the right";
  }
  return nullptr;
}

void take(const fi_provider* provider, fi_log_level /*level*/, fi_log_subsys subsystem,
          const char* /*function*/, int /*line*/, const char* message) {
  const char* const cause = cause_of(subsystem, message);
  if (cause == nullptr) return;
  // The message itself may hold keys and addresses: not for a log.
  note_refusal(cause, provider != nullptr ? provider->name : "libfabric");
}

}  // namespace

void note_refusal(const char* cause, std::string_view detail) {
  std::shared_ptr<Tally> to;
  {
    const std::lock_guard lock(mutex);
    to = counts;
  }
  if (to) to->note(cause, detail);
}

Result<void> count_refusals(std::shared_ptr<Tally> tally) {
  static fi_ops_log operations{};
  static fid_logging sink{};
  static const int imported = [] {
    operations.enabled = wanted;
    operations.ready = ready;
    operations.log = take;
    sink.ops = &operations;
    return fi_import_log(FI_VERSION(1, 17), 0, &sink);
  }();
  if (imported != 0) {
    return Error(Errc::kUnsupported, std::string("libfabric's log: ") + fi_strerror(-imported));
  }
  const std::lock_guard lock(mutex);
  counts = std::move(tally);
  return {};
}

}  // namespace ho::transport
