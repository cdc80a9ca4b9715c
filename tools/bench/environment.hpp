#pragma once

#include <string>

namespace ho::bench {

/// The class of this machine for result files: processor model, number of cores, memory. No host
/// name.
[[nodiscard]] std::string machine_class();

/// The commit that this program was configured from; "unknown" outside a git checkout.
[[nodiscard]] std::string build_commit();

}  // namespace ho::bench
