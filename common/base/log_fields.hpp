#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log.hpp"

namespace ho {

/// log(), for fields whose number is not known beforehand.
void log_fields(LogLevel level, std::string_view message, const std::vector<LogField>& fields);

/// `key=value key="value with spaces"`; control characters are escaped.
[[nodiscard]] std::string fields_text(const std::vector<LogField>& fields);

/// A line that is about to be written.
struct LogLine {
  LogLevel level;
  std::string_view message;             ///< one of few fixed texts
  const std::vector<LogField>& fields;  ///< as they came: not escaped
  const std::string& text;              ///< the message and its fields, escaped
};

/// Takes a line in place of stderr; any thread, one line at a time. It must not log.
/// @return false: it goes to stderr after all.
using LogSink = std::function<bool(const LogLine&)>;

/// Any thread. The sink before is not used any more when this returns. Empty: stderr.
void set_log_sink(LogSink sink);

}  // namespace ho
