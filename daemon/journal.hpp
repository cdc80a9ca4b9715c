#pragma once

#include <string>

namespace ho::daemon {

/// Whether stderr is a stream of systemd's journal, and its socket is there. @param stream
/// JOURNAL_STREAM of the environment: device and inode of what systemd connected; nullptr: not set.
[[nodiscard]] bool stderr_is_journal(const char* stream);

/// Sends log lines to the journal from now on, in place of stderr. Their text is the same; beside
/// it are HO_NODE, the message without fields as HO_EVENT, and each field by its key in capitals
/// behind `HO_`. A line that the journal does not take goes to stderr. Before other threads run.
void log_to_journal(const std::string& node_name);

}  // namespace ho::daemon
