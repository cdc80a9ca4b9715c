#include "tools/analyzer/packing/csv.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "common/base/check.hpp"

namespace ho::packing {
namespace {

constexpr std::array<std::string_view, 4> kColumns = {"id", "lower", "upper", "size"};
enum Column : std::size_t { kId, kLower, kUpper, kSize };

Error at_line(std::size_t line, const std::string& what) {
  return {Errc::kInvalidArgument, "line " + std::to_string(line) + ": " + what};
}

/// Text from the file, shortened for a message.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 40;
  return '"' + std::string(text.substr(0, kShown)) + (text.size() > kShown ? "...\"" : "\"");
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Removes the next line from `rest`.
std::string_view next_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return trimmed(line);
}

constexpr std::size_t kColumnsMax = 64;
using Fields = std::array<std::string_view, kColumnsMax>;

/// @return the number of fields in the line; keeps the first kColumnsMax.
std::size_t split(std::string_view line, Fields& fields) {
  std::size_t count = 0;
  while (true) {
    const std::size_t comma = line.find(',');
    if (count < fields.size()) fields[count] = trimmed(line.substr(0, comma));
    ++count;
    if (comma == std::string_view::npos) return count;
    line.remove_prefix(comma + 1);
  }
}

/// The index of each column in a row. Other columns are ignored.
struct Header {
  std::array<std::size_t, 4> place{};
  std::size_t count = 0;  ///< all columns
};

Result<Header> read_header(std::string_view line, Fields& names) {
  Header header;
  header.count = split(line, names);
  bool right = header.count <= kColumnsMax;
  const auto end = names.begin() + std::min(header.count, kColumnsMax);
  for (std::size_t c = 0; right && c < kColumns.size(); ++c) {
    right = std::count(names.begin(), end, kColumns[c]) == 1;
    header.place[c] =
        static_cast<std::size_t>(std::find(names.begin(), end, kColumns[c]) - names.begin());
  }
  if (right) return header;
  return at_line(1, "expected the columns id,lower,upper,size, not " + in_quotes(line));
}

Result<std::int64_t> read_number(std::string_view text, std::size_t line, std::string_view name) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = end == text.data() + text.size() && !text.empty();
  const std::string field = std::string(name) + ": " + in_quotes(text);
  if (!whole || code == std::errc::invalid_argument) {
    return at_line(line, field + " is not a whole number");
  }
  if (code == std::errc() && number < 0) return at_line(line, field + " is negative");
  if (code != std::errc() || number > kNumberMax) {
    return at_line(line, field + " is beyond 2^60");
  }
  return number;
}

Result<Buffer> read_row(std::string_view text, const Header& header, Fields& fields,
                        std::size_t line) {
  const std::size_t count = split(text, fields);
  if (count != header.count) {
    return at_line(line, "expected " + std::to_string(header.count) + " fields, found " +
                             std::to_string(count));
  }
  Buffer buffer;
  const std::string_view id = fields[header.place[kId]];
  if (id.empty()) return at_line(line, "id: is empty");
  if (id.size() > kIdBytesMax) return at_line(line, "id: " + in_quotes(id) + " is too long");
  if (id.find('"') != std::string_view::npos) return at_line(line, "id: has a quote");
  buffer.id = std::string(id);
  std::int64_t* const numbers[] = {nullptr, &buffer.lower, &buffer.upper, &buffer.size};
  for (std::size_t c = kLower; c <= kSize; ++c) {
    const auto number = read_number(fields[header.place[c]], line, kColumns[c]);
    if (!number) return number.error();
    *numbers[c] = *number;
  }
  if (buffer.lower >= buffer.upper) {
    return at_line(line, "upper: " + std::to_string(buffer.upper) +
                             " is not above lower: " + std::to_string(buffer.lower));
  }
  if (buffer.size == 0) return at_line(line, "size: must be at least 1");
  return buffer;
}

}  // namespace

Result<std::vector<Buffer>> read_buffers(std::string_view csv) {
  if (csv.size() > kCsvBytesMax) {
    return Error(Errc::kOutOfRange, "more than " + std::to_string(kCsvBytesMax) + " bytes");
  }
  if (csv.starts_with("\xef\xbb\xbf")) csv.remove_prefix(3);  // a byte order mark
  Fields fields;
  const auto header = read_header(next_line(csv), fields);
  if (!header) return header.error();
  std::vector<Buffer> buffers;
  std::unordered_set<std::string> ids;
  std::int64_t sum = 0;
  std::optional<std::size_t> empty_line;
  for (std::size_t line = 2; !csv.empty(); ++line) {
    const std::string_view text = next_line(csv);
    if (text.empty()) {
      if (!empty_line) empty_line = line;
      continue;
    }
    if (empty_line) return at_line(*empty_line, "is empty");
    if (buffers.size() == kBuffersMax) {
      return Error(Errc::kOutOfRange, "more than " + std::to_string(kBuffersMax) + " buffers");
    }
    auto buffer = read_row(text, *header, fields, line);
    if (!buffer) return buffer.error();
    if (!ids.insert(buffer->id).second) {
      return at_line(line, "id: " + in_quotes(buffer->id) + " occurs twice");
    }
    if (buffer->size > kNumberMax - sum)
      return at_line(line, "size: the sum of all sizes is above 2^60");
    sum += buffer->size;
    buffers.push_back(*std::move(buffer));
  }
  return buffers;
}

std::string write_offsets(const std::vector<Buffer>& buffers,
                          const std::vector<std::int64_t>& offsets) {
  HO_CHECK(buffers.size() == offsets.size());
  std::string out = "id,lower,upper,size,offset\n";
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    out += buffer.id;
    for (const std::int64_t number : {buffer.lower, buffer.upper, buffer.size, offsets[i]}) {
      out += ',';
      out += std::to_string(number);
    }
    out += '\n';
  }
  return out;
}

}  // namespace ho::packing
