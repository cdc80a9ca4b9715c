#pragma once

#include <string>

namespace ho::bench {

/// The machine's class for result files: processor model, number of cores, memory. No host name.
[[nodiscard]] std::string machine_class();

/// The commit this program was configured from, "unknown" outside of a git checkout.
[[nodiscard]] std::string build_commit();

}  // namespace ho::bench
