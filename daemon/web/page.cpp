#include "daemon/web/page.hpp"

#include <string>

#include "common/system/random.hpp"

namespace ho::daemon {

HttpServer::Answer page() {
  constexpr std::string_view kMark = "NONCE";
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::string random = random_bytes(16);
  std::string nonce;
  for (const char each : random) {
    const auto byte = static_cast<unsigned char>(each);
    nonce += kDigits[byte >> 4U];
    nonce += kDigits[byte & 15U];
  }
  std::string text(kPageText);
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at)) {
    text.replace(at, kMark.size(), nonce);
  }
  return {"text/html; charset=utf-8", std::move(text),
          "default-src 'none'; img-src data:; connect-src 'self'; style-src 'nonce-" + nonce +
              "'; script-src 'nonce-" + nonce + "'; form-action 'none'"};
}

}  // namespace ho::daemon
