#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ho {

/// Returns `text` as a JSON string literal with quotes. The result can also stand inside a <script>
/// element: '<', '>' and '&' are escaped, as are control characters and U+2028/2029. Bytes that are
/// not UTF-8 become U+FFFD.
[[nodiscard]] std::string json_quote(std::string_view text);

/// Writes one JSON value, piece by piece, on one line. Inserts commas.
///
///   JsonWriter out;
///   out.begin_object().field("name", name).key("list").begin_array().value(1).end().end();
///   std::move(out).text();
///
/// A value. end() closes the innermost open object or array. The caller is responsible for a
/// correct order of calls.
class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& begin_array();
  JsonWriter& end();
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(double number);  ///< shortest exact form; null if not finite
  JsonWriter& value(std::same_as<bool> auto flag) { return raw(flag ? "true" : "false"); }
  JsonWriter& value(std::unsigned_integral auto number) requires(
      !std::same_as<decltype(number), bool>) {
    return raw(std::to_string(number));
  }
  JsonWriter& value(std::signed_integral auto number) { return raw(std::to_string(number)); }

  template <typename T>
  JsonWriter& field(std::string_view name, const T& each) {
    return key(name).value(each);
  }

  [[nodiscard]] const std::string& text() const& { return text_; }
  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  JsonWriter& raw(std::string_view token);
  void separate();

  std::string text_;
  std::string closers_;      ///< what each end() writes, innermost last
  bool need_comma_ = false;  ///< the current level already has a value
};

}  // namespace ho
