#pragma once

namespace ho::cli {

/// Exit codes, the same for every command. Scripts rely on these numbers.
enum Exit : int {
  kExitDone = 0,
  kExitNo = 1,          ///< the answer is no: illegal, damaged, unhealthy, not possible here
  kExitBadInput = 2,    ///< wrong arguments, unreadable input, output that cannot be written
  kExitInfeasible = 3,  ///< the budget cannot be met
  kExitPoolFailed = 4,  ///< the pool failed or cannot be reached
  kExitRestart = 75,    ///< a daemon asks systemd to start it again
  kExitInterrupted = 130,
};

}  // namespace ho::cli
