#pragma once

#include <string>
#include <string_view>

// Parts of pages without scripts.
namespace ho::analyzer::detail {

/// Text for a page; bytes that are not printable ASCII become '?'.
[[nodiscard]] std::string escaped(std::string_view text);

/// With so many digits after the point.
[[nodiscard]] std::string number(double value, int digits);

/// The begin of a page up to its <main>. It may request nothing. @param style  after the reports'
[[nodiscard]] std::string static_page_head(std::string_view title, std::string_view style);

inline constexpr std::string_view kStaticPageTail = "</main></body></html>\n";

}  // namespace ho::analyzer::detail
