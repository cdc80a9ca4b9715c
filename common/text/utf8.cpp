#include "common/text/utf8.hpp"

#include "common/base/check.hpp"

namespace ho {

std::size_t utf8_length(std::string_view text) {
  HO_CHECK(!text.empty());
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = at(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                                           : 4;
  if (length == 0 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0U) != 0x80) return 0;
  }
  // The second byte reveals overlong forms, surrogates and code points beyond U+10FFFF.
  if (lead == 0xe0 && at(1) < 0xa0) return 0;
  if (lead == 0xed && at(1) > 0x9f) return 0;
  if (lead == 0xf0 && at(1) < 0x90) return 0;
  if (lead == 0xf4 && at(1) > 0x8f) return 0;
  return length;
}

std::string_view utf8_prefix(std::string_view text, std::size_t bytes_max) {
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t length = utf8_length(text.substr(end));
    if (length == 0 || end + length > bytes_max) break;
    end += length;
  }
  return text.substr(0, end);
}

}  // namespace ho
