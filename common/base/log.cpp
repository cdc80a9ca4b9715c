#include "common/base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

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
  // Our own logger, not spdlog's default one: a library must not change its host's logging.
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("hyperoffload",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  const auto spd_level = to_spdlog(level);
  if (!logger().should_log(spd_level)) return;
  std::string line(message);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    const bool plain =
        !field.value.empty() && field.value.find_first_of(" \"\n\t=") == std::string::npos;
    if (plain) {
      line += field.value;
      continue;
    }
    line += '"';
    for (const char c : field.value) {
      if (c == '"' || c == '\\') line += '\\';
      if (c == '\n') {
        line += "\\n";
      } else {
        line += c;
      }
    }
    line += '"';
  }
  logger().log(spd_level, "{}", line);
}

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

}  // namespace ho
