#include "tools/importers/bytes/wire_cursor.hpp"

#include <cstring>

namespace ho::importers {

std::optional<std::uint64_t> WireCursor::take_varint(std::string_view& bytes) {
  constexpr std::size_t kVarintBytesMax = 10;
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes.size() && i < kVarintBytesMax; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    number |= static_cast<std::uint64_t>(byte & 0x7fU) << (7 * i);
    if (byte < 0x80) {
      bytes.remove_prefix(i + 1);
      return number;
    }
  }
  return std::nullopt;
}

bool WireCursor::fail() {
  broken_ = true;
  return false;
}

bool WireCursor::take_fixed(std::uint32_t size_bytes) {
  if (rest_.size() < size_bytes) return fail();
  for (std::uint32_t i = 0; i < size_bytes; ++i) {
    number_ |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
  }
  rest_.remove_prefix(size_bytes);
  fixed_bytes_ = size_bytes;
  return true;
}

bool WireCursor::next() {
  if (broken_ || rest_.empty()) return false;
  bytes_ = {};
  number_ = 0;
  fixed_bytes_ = 0;
  is_bytes_ = false;
  const auto tag = take_varint(rest_);
  if (!tag || *tag >> 3U == 0 || *tag >> 3U > UINT32_MAX >> 3U) return fail();
  field_ = static_cast<std::uint32_t>(*tag >> 3U);
  switch (*tag & 7U) {
    case 0: {
      const auto number = take_varint(rest_);
      if (!number) return fail();
      number_ = *number;
      return true;
    }
    case 1: return take_fixed(8);
    case 2: {
      const auto length = take_varint(rest_);
      if (!length || *length > rest_.size()) return fail();
      bytes_ = rest_.substr(0, *length);
      rest_.remove_prefix(*length);
      is_bytes_ = true;
      return true;
    }
    case 5: return take_fixed(4);
    default: return fail();  // groups; these formats do not use them
  }
}

double WireCursor::real() const {
  if (fixed_bytes_ == 4) {
    const auto bits = static_cast<std::uint32_t>(number_);
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  double value = 0;
  if (fixed_bytes_ == 8) std::memcpy(&value, &number_, sizeof value);
  return value;
}

}  // namespace ho::importers
