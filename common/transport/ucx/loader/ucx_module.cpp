#include "common/transport/ucx/loader/ucx_module.hpp"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <mutex>

#include "common/base/log.hpp"
#include "common/transport/ucx/loader/own_files.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"

namespace ho::transport {
namespace {

constexpr int kSignals = 64;

/// Restores the handler of every signal. When libucs is loaded it catches SEGV, BUS, ILL, FPE and
/// HUP with handlers that print and end the process. They would replace the job's own, and ours for
/// memory that went away.
class KeptSignals {
 public:
  KeptSignals() {
    for (int number = 1; number <= kSignals; ++number) {
      Kept& kept = kept_[static_cast<std::size_t>(number - 1)];
      kept.known = ::sigaction(number, nullptr, &kept.action) == 0;
    }
  }
  ~KeptSignals() {
    for (int number = 1; number <= kSignals; ++number) {
      const Kept& kept = kept_[static_cast<std::size_t>(number - 1)];
      struct sigaction now {};
      if (!kept.known || ::sigaction(number, nullptr, &now) != 0) continue;
      if (now.sa_handler != kept.action.sa_handler || now.sa_flags != kept.action.sa_flags) {
        ::sigaction(number, &kept.action, nullptr);
      }
    }
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  struct Kept {
    bool known = false;
    struct sigaction action {};
  };
  std::array<Kept, kSignals> kept_{};
};

void say(const char* line) { log(LogLevel::kDebug, "ucx", {{"says", line}}); }

Error unusable(const std::string& file, const std::string& why) {
  return Error(Errc::kUnsupported, "the driver's module " + file + ": " + why);
}

/// Stays open until the process ends: UCX does not survive being unloaded.
Result<void*> open_module(const std::string& file) {
  // Two threads that opened it at once would each save the other's handlers and restore those.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const KeptSignals signals;
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return unusable(file, why == nullptr ? "cannot be opened" : why);
  }
  return handle;
}

}  // namespace

Result<const UcxModule*> load_ucx_module(const std::string& file) {
  std::string path = file;
  if (path.empty()) {
    const auto found = find_own_file(kUcxModuleFile);
    if (!found) return Error(Errc::kUnsupported, found.error().context());
    path = found->string();
  }
  if (path.front() != '/') return unusable(path, "not an absolute path");
  const auto handle = open_module(path);
  if (!handle) return handle.error();
  const auto* const module = static_cast<const UcxModule*>(::dlsym(*handle, kUcxModuleSymbol));
  if (module == nullptr) return unusable(path, "not a module of hyperoffload's");
  if (module->abi != kUcxModuleAbi) {
    return unusable(path, "speaks version " + std::to_string(module->abi) + ", needed is " +
                              std::to_string(kUcxModuleAbi));
  }
  if (std::string(module->build) != kUcxModuleBuild || module->sizes != kUcxModuleSizes) {
    return unusable(path, "is of another build (" + std::string(module->build) +
                              ", this program: " + kUcxModuleBuild + ")");
  }
  module->set_log(say);
  return module;
}

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options,
                                                      const Clock& clock) {
  if (const auto there = check_rdma_device(); !there && !options.devices.allow_emulation) {
    return there.error();
  }
  const auto module = load_ucx_module(options.devices.module);
  if (!module) return module.error();
  return (*module)->make_transport(options, clock);
}

Result<std::unique_ptr<Target>> make_ucx_target(const UcxDevices& devices) {
  if (const auto there = check_rdma_device(); !there && !devices.allow_emulation) {
    return there.error();
  }
  const auto module = load_ucx_module(devices.module);
  if (!module) return module.error();
  return (*module)->make_target(devices);
}

}  // namespace ho::transport
