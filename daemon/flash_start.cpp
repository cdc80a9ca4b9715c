#include "daemon/flash_start.hpp"

#include <utility>

#include "common/base/log.hpp"
#include "common/base/random.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"

namespace ho::daemon {

Result<std::unique_ptr<flash::FlashLoop>> start_flash(const DaemonConfig& config,
                                                      std::string& off) {
  if (config.flash.empty()) return std::unique_ptr<flash::FlashLoop>();
  if (auto usable = flash::check_uring(); !usable) {
    off = usable.error().context();
    log(LogLevel::kWarning, "running without flash", {{"why", off}});
    return std::unique_ptr<flash::FlashLoop>();
  }
  flash::UringOptions device;
  flash::FlashLoop::Options options;
  for (const FlashPathSettings& path : config.flash) {
    device.paths.push_back(path.path);
    options.write_bytes_per_day_max.push_back(path.write_bytes_per_day_max);
  }
  device.depth_ops = flash::ExtentStore::depth_ops(device.paths.size());
  options.make_device = [device] { return flash::make_uring_device(device); };
  options.salt = random_u64();
  fill_random(options.new_set);
  auto loop = flash::FlashLoop::start(std::move(options));
  if (!loop) return loop.error();
  for (const std::string& finding : (*loop)->findings()) {
    log(LogLevel::kInfo, "flash", {{"found", finding}});
  }
  const auto status = (*loop)->status();
  if (!status.notice.empty()) log(LogLevel::kInfo, "flash", {{"note", status.notice}});
  for (const flash::PathStatus& path : status.paths) {
    log(LogLevel::kInfo, "flash path",
        {{"path", path.name},
         {"capacity", format_bytes(path.capacity_bytes)},
         {"free", format_bytes(path.free_bytes)},
         {"written", format_bytes(path.wear.total_bytes)}});
    if (path.unused_bytes == 0) continue;
    log(LogLevel::kWarning, "a flash path has grown since it was formatted; its end is not used",
        {{"path", path.name}, {"unused", format_bytes(path.unused_bytes)}});
  }
  return loop;
}

}  // namespace ho::daemon
