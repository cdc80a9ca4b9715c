#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/log.hpp"

namespace ho {

/// log(), for fields whose number is not known beforehand.
void log_fields(LogLevel level, std::string_view message, const std::vector<LogField>& fields);

/// `key=value key="value with spaces"`; control characters are escaped.
[[nodiscard]] std::string fields_text(const std::vector<LogField>& fields);

}  // namespace ho
