#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ho::importers {

/// Reads the fields of one protobuf message in place, from untrusted bytes. The caller reads a
/// nested message with another cursor. Why not generated code: we need only a few fields of these
/// formats, and the parsed form of a hostile file could have 75 times its size.
///
///   for (WireCursor in(bytes); in.next();) if (in.field() == 2) name = in.bytes();
///   if (in.broken()) ...
class WireCursor {
 public:
  explicit WireCursor(std::string_view message) : rest_(message) {}

  /// Moves to the next field. @return false at the end, or if the bytes are not a message: broken()
  [[nodiscard]] bool next();
  [[nodiscard]] bool broken() const { return broken_; }

  [[nodiscard]] std::uint32_t field() const { return field_; }
  [[nodiscard]] bool is_bytes() const { return is_bytes_; }
  /// The content of a length-delimited field; empty for other fields.
  [[nodiscard]] std::string_view bytes() const { return bytes_; }
  /// The bits of a varint or fixed field; 0 for other fields.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Whether the field is a fixed 32- or 64-bit one (float or double).
  [[nodiscard]] bool is_fixed() const { return fixed_bytes_ != 0; }
  /// The value of a float or double field.
  [[nodiscard]] double real() const;

  /// Removes a varint from the front of `bytes`. @return nullopt if there is none.
  [[nodiscard]] static std::optional<std::uint64_t> take_varint(std::string_view& bytes);

 private:
  [[nodiscard]] bool fail();
  [[nodiscard]] bool take_fixed(std::uint32_t size_bytes);

  std::string_view rest_;
  std::string_view bytes_;
  std::uint64_t number_ = 0;
  std::uint32_t field_ = 0;
  std::uint32_t fixed_bytes_ = 0;
  bool is_bytes_ = false;
  bool broken_ = false;
};

/// Calls `each(number)` for each element of a repeated integer field, packed or not.
template <typename Each>
[[nodiscard]] bool each_number(const WireCursor& in, const Each& each) {
  if (!in.is_bytes()) {
    each(in.number());
    return true;
  }
  std::string_view rest = in.bytes();
  while (!rest.empty()) {
    const auto number = WireCursor::take_varint(rest);
    if (!number) return false;
    each(*number);
  }
  return true;
}

}  // namespace ho::importers
