#include "daemon/journal.hpp"

#include <sys/stat.h>
#include <sys/uio.h>
#define SD_JOURNAL_SUPPRESS_LOCATION  // it would be this file, for each line
#include <systemd/sd-journal.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "common/base/log.hpp"
#include "common/base/log_fields.hpp"

namespace ho::daemon {

namespace {

/// As syslog(3) numbers them.
char priority_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return '7';
    case LogLevel::kInfo: return '6';
    case LogLevel::kWarning: return '4';
    case LogLevel::kError: return '3';
  }
  return '6';
}

/// "lease_ms" -> "HO_LEASE_MS". The journal refuses other characters.
std::string field_name(std::string_view key) {
  std::string name = "HO_";
  for (const char c : key) {
    const bool lower = c >= 'a' && c <= 'z';
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z');
    name += lower ? static_cast<char>(c - 'a' + 'A') : (plain ? c : '_');
  }
  return name;
}

bool send(const std::string& node_name, const LogLine& line) {
  std::vector<std::string> texts{"MESSAGE=" + line.text,
                                 std::string("PRIORITY=") + priority_of(line.level),
                                 "SYSLOG_IDENTIFIER=hyperoffloadd", "HO_NODE=" + node_name,
                                 "HO_EVENT=" + std::string(line.message)};
  for (const LogField& field : line.fields) {
    if (field.key == "node") continue;  // it is this one
    texts.push_back(field_name(field.key) + "=" + field.value);
  }
  std::vector<iovec> parts(texts.size());
  std::transform(texts.begin(), texts.end(), parts.begin(), [](std::string& text) {
    return iovec{text.data(), text.size()};
  });
  return ::sd_journal_sendv(parts.data(), static_cast<int>(parts.size())) == 0;
}

}  // namespace

bool stderr_is_journal(const char* stream) {
  struct stat own {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &own) != 0) return false;
  // Without it lines would be lost: libsystemd does not report that.
  if (::access("/run/systemd/journal/socket", F_OK) != 0) return false;
  return std::to_string(own.st_dev) + ":" + std::to_string(own.st_ino) == stream;
}

void log_to_journal(const std::string& node_name) {
  set_log_sink([node_name](const LogLine& line) { return send(node_name, line); });
}

}  // namespace ho::daemon
