#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::transport {

/// One of UCX's settings, by the name of its environment variable without "UCX_".
struct UcxSetting {
  std::string name;
  std::string value;
  /// What it is for. Of one purpose's names, which differ from version to version and from module
  /// to module, one at least must be known.
  std::string purpose = {};
  /// Whether UCX may know no name of the purpose: nothing that we promise rests on it.
  bool optional = false;
};

enum class UcxSide { kInitiator, kTarget };

/// What the settings depend on beyond what the user says.
struct UcxSurroundings {
  unsigned major = 1;  ///< UCX's version, of the library that runs
  unsigned minor = 13;
  bool software_device = false;  ///< an RDMA device without hardware behind it
};

/// Everything that we set over what the environment says, in order. Pure.
[[nodiscard]] std::vector<UcxSetting> ucx_settings(const UcxDevices& devices, UcxSide side,
                                                   const UcxSurroundings& here);

/// What UCX made of one setting.
enum class UcxAnswer { kTaken, kUnknown, kFailed };

/// Sets all by `modify`, in order. A name that this UCX does not know is passed over where another
/// of the same purpose is known, or where the purpose is optional.
/// @return kUnsupported: the first purpose that would go without, with its names, or the first
/// setting that failed. Some are set then.
[[nodiscard]] Result<void> apply_ucx_settings(
    std::span<const UcxSetting> settings,
    const std::function<UcxAnswer(const UcxSetting&)>& modify);

/// Only transports whose one-sided access is the device's, unless emulation is allowed.
/// @return kInvalidArgument for others.
[[nodiscard]] Result<void> check_ucx_transports(const UcxDevices& devices);

}  // namespace ho::transport
