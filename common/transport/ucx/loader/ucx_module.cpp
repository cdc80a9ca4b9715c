#include "common/transport/ucx/loader/ucx_module.hpp"

#include <dlfcn.h>

#include "common/base/log.hpp"
#include "common/transport/loader/open_module.hpp"
#include "common/transport/loader/own_files.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"

namespace ho::transport {
namespace {

void say(const char* line) { log(LogLevel::kDebug, "ucx", {{"says", line}}); }

}  // namespace

Result<const UcxModule*> load_ucx_module(const std::string& file) {
  std::string path = file;
  if (path.empty()) {
    const auto found = find_own_file(kUcxModuleFile);
    if (!found) return Error(Errc::kUnsupported, found.error().context());
    path = found->string();
  }
  if (path.front() != '/') return unusable_module(path, "not an absolute path");
  const auto handle = open_module(path);
  if (!handle) return handle.error();
  const auto* const module = static_cast<const UcxModule*>(::dlsym(*handle, kUcxModuleSymbol));
  if (module == nullptr) return unusable_module(path, "not a module of hyperoffload's");
  if (module->abi != kUcxModuleAbi) {
    return unusable_module(path, "speaks version " + std::to_string(module->abi) + ", needed is " +
                                     std::to_string(kUcxModuleAbi));
  }
  if (std::string(module->build) != kUcxModuleBuild || module->sizes != kUcxModuleSizes) {
    return unusable_module(path, "is of another build (" + std::string(module->build) +
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
