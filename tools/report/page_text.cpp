#include "tools/report/page_text.hpp"

#include <array>
#include <cstdio>

#include "tools/report/report_page.hpp"

namespace ho::analyzer::detail {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += byte < 0x20 || byte > 0x7e ? '?' : c;
    }
  }
  return out;
}

std::string number(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string static_page_head(std::string_view title, std::string_view style) {
  std::string out =
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; img-src data:\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" "
      "content=\"light dark\"><link rel=\"icon\" href=\"data:,\"><title>";
  out += escaped(title);
  out += "</title><style>";
  out += report_style();
  out += style;
  out += "</style></head><body><main>";
  return out;
}

}  // namespace ho::analyzer::detail
