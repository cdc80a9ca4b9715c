#include "proto/config/config_errors.hpp"

#include <config.pb.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <sstream>

#include "common/base/check.hpp"

namespace ho {
namespace {

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The last name in the text, outside of strings and comments.
std::string last_name(const std::string& head) {
  std::string found;
  std::string word;
  char quote = 0;
  for (const char c : head + " ") {
    if (c == '#' && quote == 0) break;
    if (quote != 0 || c == '"' || c == '\'') {
      quote = quote == 0 ? c : (c == quote ? '\0' : quote);
    } else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      word += c;
      continue;
    }
    if (!word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) == 0) {
      found = word;
    }
    word.clear();
  }
  return found;
}

}  // namespace

ConfigErrors::ConfigErrors(const std::string& file, const std::string& text)
    : file_(file), lines_(split_lines(text)) {}

void ConfigErrors::AddError(int line, int column, const std::string& message) {
  add(line, field_on(line, column), message);
}

void ConfigErrors::add(int line, const std::string& field, const std::string& message) {
  if (!text_.empty()) text_ += '\n';
  text_ += file_;
  if (line >= 0) text_ += ":" + std::to_string(line + 1);
  text_ += ": ";
  if (!field.empty()) text_ += field + ": ";
  text_ += message;
}

/// The last name before the column; on an earlier line if this line has none.
std::string ConfigErrors::field_on(int line, int column) const {
  for (; line >= 0; --line, column = INT_MAX) {
    if (static_cast<std::size_t>(line) >= lines_.size()) return {};
    const std::string& text = lines_[static_cast<std::size_t>(line)];
    const std::string name =
        last_name(text.substr(0, static_cast<std::size_t>(std::max(column, 0))));
    if (!name.empty()) return name;
  }
  return {};
}

int FieldErrors::line(const std::string& block, int index, const std::string& inner) const {
  const auto* const outer = hyperoffload::v1::DaemonConfig::descriptor()->FindFieldByName(block);
  if (outer == nullptr) return -1;
  const int at = outer->is_repeated() ? index : -1;
  const auto* const inside = inner.empty() ? nullptr : lines_.GetTreeForNested(outer, at);
  if (inside != nullptr) {
    const auto* const field = outer->message_type()->FindFieldByName(inner);
    HO_CHECK(field != nullptr);
    const int line = inside->GetLocation(field, field->is_repeated() ? 0 : -1).line;
    if (line >= 0) return line;
  }
  return lines_.GetLocation(outer, at).line;
}

}  // namespace ho
