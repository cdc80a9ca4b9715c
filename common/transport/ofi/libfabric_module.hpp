#pragma once

#include <rdma/fabric.h>

#include <cstdint>

namespace ho::transport {

inline constexpr const char* kOfiModuleFile = "hyperoffload-ofi.so";
inline constexpr const char* kOfiModuleSymbol = "ho_ofi_module";
/// The header that both sides are compiled with: what the functions' types mean.
inline constexpr std::uint32_t kOfiModuleAbi = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);

/// The functions that libfabric's headers declare and do not define, from our module, which is
/// linked with libfabric. So a process loads libfabric only when it uses the `ofi` driver: one of
/// its libraries (libinfinipath, Debian 12) measures the processor's clock for 0.1 to 0.2 s when it
/// is loaded, and catches signals.
struct OfiModule {
  std::uint32_t abi = kOfiModuleAbi;
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_open) open = nullptr;
  decltype(&::fi_getparams) getparams = nullptr;
  decltype(&::fi_freeparams) freeparams = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
};

}  // namespace ho::transport
