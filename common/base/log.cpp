#include "common/base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/log_fields.hpp"

namespace ho {

namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  // A logger of its own: a library must not change the default logger of its host.
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("hyperoffload",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
    return made;
  }();
  return *instance;
}

/// Held while the sink runs: once set_log_sink() returns, the one before is not used any more.
std::mutex& sink_mutex() {
  static std::mutex instance;
  return instance;
}

/// Empty: lines go to stderr.
LogSink& sink() {
  // Never destroyed: threads may log while the process ends.
  static LogSink& instance = *new LogSink;
  return instance;
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

/// Values may come from peers. Escapes them so that none can start a new line or send control codes
/// to a terminal.
void append_escaped(std::string& line, std::string_view value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : value) {
    if (c == '\n') {
      line += "\\n";
    } else if (is_control(c)) {
      const auto byte = static_cast<unsigned char>(c);
      line += "\\x";
      line += kDigits[byte >> 4U];
      line += kDigits[byte & 15U];
    } else {
      if (c == '"' || c == '\\') line += '\\';
      line += c;
    }
  }
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return std::nullopt;
}

void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!logger().should_log(to_spdlog(level))) return;
  log_fields(level, message, std::vector<LogField>(fields));
}

void log_fields(LogLevel level, std::string_view message, const std::vector<LogField>& fields) {
  const auto spd_level = to_spdlog(level);
  if (!logger().should_log(spd_level)) return;
  std::string line(message);
  if (!fields.empty()) line += " " + fields_text(fields);
  {
    const std::lock_guard guard(sink_mutex());
    if (sink() && sink()({level, message, fields, line})) return;
  }
  logger().log(spd_level, "{}", line);
}

std::string fields_text(const std::vector<LogField>& fields) {
  std::string line;
  for (const LogField& field : fields) {
    if (!line.empty()) line += ' ';
    line += field.key;
    line += '=';
    const bool plain =
        !field.value.empty() && std::none_of(field.value.begin(), field.value.end(), [](char c) {
          return is_control(c) || c == ' ' || c == '"' || c == '=';
        });
    if (plain) {
      line += field.value;
      continue;
    }
    line += '"';
    append_escaped(line, field.value);
    line += '"';
  }
  return line;
}

void set_log_sink(LogSink new_sink) {
  const std::lock_guard guard(sink_mutex());
  sink() = std::move(new_sink);
}

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

}  // namespace ho
