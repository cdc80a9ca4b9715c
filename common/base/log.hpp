#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace ho {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// The levels' names in configuration: "debug, info, warning, error".
inline constexpr std::string_view kLogLevelNames = "debug, info, warning, error";
/// @return nothing: not one of kLogLevelNames.
[[nodiscard]] std::optional<LogLevel> parse_log_level(std::string_view name);

/// One key and its value in a structured line.
struct LogField {
  std::string_view key;
  std::string value;
};

/// Writes one line to stderr, or to the sink that set_log_sink() was given:
/// `level message key=value key="value with spaces"`. Any thread. Not for the data path: it
/// formats, and writes under spdlog's lock.
void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

/// Drops lines below `level`. Any thread.
void set_log_level(LogLevel level);

}  // namespace ho
