#pragma once

#include <atomic>

namespace ho::cli {

/// From here on SIGINT and SIGTERM ask the command to end in order, which gives back at once what
/// it holds in a pool. The command looks at stop_flag() between its operations. It may also wait
/// for something that never comes: an answer of the pool, or a reader of its output. So the second
/// signal, or five seconds after the first, ends the process with kExitInterrupted. Before this
/// call a signal ends it at once (Program::run).
void catch_stop_signals();

/// Whether such a signal has come.
[[nodiscard]] const std::atomic<bool>& stop_flag();

}  // namespace ho::cli
