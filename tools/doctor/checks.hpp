#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/doctor/machine.hpp"

namespace ho::doctor {

enum class State : std::uint8_t {
  kOk,
  kWarning,  ///< it works, but slower or with less protection than it could
  kFailed,   ///< what the configuration asks for cannot work
};

/// "ok", "warning", "failed".
[[nodiscard]] std::string_view state_name(State state);

struct Check {
  std::string name;
  State state = State::kOk;
  std::string found;
  std::string fix;  ///< what to do; empty where it is ok
};

/// What a daemon's configuration asks of its machine. Without a configuration: nothing.
struct Needs {
  std::uint64_t ddr_bytes = 0;
  std::uint64_t segments = 0;
  bool flash = false;
  bool rdma = false;  ///< a driver over RDMA is configured
};

/// Judges a machine, one check per subject and always the same ones in the same order. Pure.
[[nodiscard]] std::vector<Check> check_machine(const Machine& machine, const Needs& needs);

}  // namespace ho::doctor
