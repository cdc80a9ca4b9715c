#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ho::importers {

/// Reads the fields of one protobuf message from bytes that are not trusted, in place: nested
/// messages are read by a cursor of their own, by whoever knows what they are. Why not generated
/// code: of these formats of others we need a few fields each, and the parsed form of a hostile
/// file would be up to 75 times its size.
///
///   for (WireCursor in(bytes); in.next();) if (in.field() == 2) name = in.bytes();
///   if (in.broken()) ...
class WireCursor {
 public:
  explicit WireCursor(std::string_view message) : rest_(message) {}

  /// Moves to the next field. @return false at the end, or where the bytes are no message: broken()
  [[nodiscard]] bool next();
  [[nodiscard]] bool broken() const { return broken_; }

  [[nodiscard]] std::uint32_t field() const { return field_; }
  [[nodiscard]] bool is_bytes() const { return is_bytes_; }
  /// A length-delimited field's content; empty for another.
  [[nodiscard]] std::string_view bytes() const { return bytes_; }
  /// A varint's or fixed field's bits; 0 for another.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Whether the field is a fixed 32- or 64-bit one (float or double).
  [[nodiscard]] bool is_fixed() const { return fixed_bytes_ != 0; }
  /// A float or double field's value.
  [[nodiscard]] double real() const;

  /// Takes a varint from the front of `bytes`. @return nothing where there is none.
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

/// Calls `each(number)` for the elements of a repeated integer field, packed or not.
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
