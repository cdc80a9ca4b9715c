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
  /// What it is for. Names differ by version and module; UCX must know at least one of each
  /// purpose.
  std::string purpose = {};
  /// Whether UCX may know none of the purpose's names: the driver's promises do not depend on it.
  bool optional = false;
};

enum class UcxSide { kInitiator, kTarget };

/// Facts that the settings depend on beyond the user's options.
struct UcxSurroundings {
  unsigned major = 1;  ///< UCX's version, of the library that runs
  unsigned minor = 13;
  bool software_device = false;  ///< an RDMA device without hardware behind it
};

/// All settings that we set over the environment, in order. Pure.
[[nodiscard]] std::vector<UcxSetting> ucx_settings(const UcxDevices& devices, UcxSide side,
                                                   const UcxSurroundings& here);

/// How UCX answered one setting.
enum class UcxAnswer { kTaken, kUnknown, kFailed };

/// Sets all by `modify`, in order. A name that this UCX does not know is passed over where another
/// of the same purpose is known, or where the purpose is optional.
/// @return kUnsupported: the first purpose without a known name, with its names, or the first
/// setting that failed. Some are set then.
[[nodiscard]] Result<void> apply_ucx_settings(
    std::span<const UcxSetting> settings,
    const std::function<UcxAnswer(const UcxSetting&)>& modify);

/// Accepts only transports whose device executes one-sided access, unless emulation is allowed.
/// @return kInvalidArgument for others.
[[nodiscard]] Result<void> check_ucx_transports(const UcxDevices& devices);

}  // namespace ho::transport
