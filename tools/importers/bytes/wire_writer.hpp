#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ho::importers {

/// Writes the fields of one protobuf message; the counterpart of WireCursor.
class WireWriter {
 public:
  WireWriter& number(std::uint32_t field, std::uint64_t value);
  WireWriter& bytes(std::uint32_t field, std::string_view value);
  WireWriter& message(std::uint32_t field, const WireWriter& value) {
    return bytes(field, value.text_);
  }

  [[nodiscard]] const std::string& text() const { return text_; }

  /// Appends a varint to `out`.
  static void append_varint(std::uint64_t value, std::string& out);

 private:
  std::string text_;
};

}  // namespace ho::importers
