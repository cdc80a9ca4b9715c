#include "daemon/flash_start.hpp"

#include <optional>
#include <utility>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "common/system/random.hpp"
#include "daemon/tier/flash/device/cipher/cipher_device.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"

namespace ho::daemon {

Result<std::unique_ptr<flash::Device>> make_flash_device(
    const std::vector<FlashPathSettings>& paths, flash::DeviceMode mode) {
  std::vector<std::optional<flash::PathKey>> keys;
  flash::UringOptions options;
  options.mode = mode;
  options.depth_ops = flash::ExtentStore::depth_ops(paths.size());
  bool encrypted = false;
  for (const FlashPathSettings& path : paths) {
    options.paths.push_back(path.path);
    keys.emplace_back();
    if (path.key_file.empty()) continue;
    auto key = flash::PathKey::read(path.key_file);
    if (!key) return key.error().at(path.path);
    keys.back() = *key;
    encrypted = true;
  }
  auto device = flash::make_uring_device(options);
  if (!device || !encrypted) return device;
  return flash::make_cipher_device(std::move(*device), std::move(keys));
}

Result<std::unique_ptr<flash::FlashLoop>> start_flash(const DaemonConfig& config, std::string left,
                                                      std::string& off) {
  if (config.flash.empty()) return std::unique_ptr<flash::FlashLoop>();
  if (auto usable = flash::check_uring(); !usable) {
    off = usable.error().context();
    log(LogLevel::kWarning, "running without flash", {{"why", off}});
    return std::unique_ptr<flash::FlashLoop>();
  }
  flash::FlashLoop::Options options;
  for (const FlashPathSettings& path : config.flash) {
    options.write_bytes_per_day_max.push_back(path.write_bytes_per_day_max);
  }
  options.make_device = [paths = config.flash] {
    return make_flash_device(paths, flash::DeviceMode::kReadWrite);
  };
  options.salt = random_u64();
  fill_random(options.new_set);
  options.left = std::move(left);
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
         {"encrypted", path.encrypted ? "yes" : "no"},
         {"written", format_bytes(path.wear.total_bytes)}});
    if (path.unused_bytes == 0) continue;
    log(LogLevel::kWarning, "a flash path has grown since it was formatted; its end is not used",
        {{"path", path.name}, {"unused", format_bytes(path.unused_bytes)}});
  }
  return loop;
}

}  // namespace ho::daemon
