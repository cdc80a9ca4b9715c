#include "tools/importers/bytes/wire_writer.hpp"

namespace ho::importers {

void WireWriter::append_varint(std::uint64_t value, std::string& out) {
  while (value >= 0x80) {
    out += static_cast<char>((value & 0x7fU) | 0x80U);
    value >>= 7U;
  }
  out += static_cast<char>(value);
}

WireWriter& WireWriter::number(std::uint32_t field, std::uint64_t value) {
  append_varint(std::uint64_t{field} << 3U, text_);
  append_varint(value, text_);
  return *this;
}

WireWriter& WireWriter::bytes(std::uint32_t field, std::string_view value) {
  append_varint(std::uint64_t{field} << 3U | 2U, text_);
  append_varint(value.size(), text_);
  text_ += value;
  return *this;
}

}  // namespace ho::importers
