#include "common/transport/tcp/wire.hpp"

#include <algorithm>
#include <string_view>

#include "common/base/check.hpp"
#include "common/text/split_text.hpp"
#include "common/transport/wire_text.hpp"

namespace ho::transport::tcp {

std::string encode_key(const SegmentKey& key) {
  return "tcp/" + hex_number(key.segment) + "/" + hex_number(key.generation) + "/" +
         hex_number(key.length_bytes) + "/" + hex_number(static_cast<std::uint64_t>(key.rights));
}

Result<SegmentKey> decode_key(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not a key of the tcp driver");
  const auto fields = split_text(text, '/');
  if (fields.size() != 5 || fields[0] != "tcp") return bad;
  const auto segment = read_hex_number(fields[1]);
  const auto generation = read_hex_number(fields[2]);
  const auto range = read_range("0", fields[3], fields[4]);
  if (!segment || *segment > UINT32_MAX || !generation || *generation > UINT32_MAX || !range) {
    return bad;
  }
  return SegmentKey{static_cast<std::uint32_t>(*segment), static_cast<std::uint32_t>(*generation),
                    range->length_bytes, range->rights};
}

std::string encode_rails(std::span<const net::SocketAddress> rails, const std::string& name) {
  HO_CHECK(!rails.empty() && rails.size() <= kRailsMax);
  std::string text;
  for (const net::SocketAddress& rail : rails) {
    text += (text.empty() ? "" : ",") + net::to_text(rail) + (name.empty() ? "" : "/" + name);
  }
  return text;
}

Result<RailAddress> decode_rail(const std::string& text) {
  const std::size_t slash = text.find('/');
  auto where = net::parse_socket_address(text.substr(0, slash));
  if (!where) return where.error();
  RailAddress out{*where, slash == std::string::npos ? "" : text.substr(slash + 1)};
  if (slash != std::string::npos && out.name.empty()) {
    return Error(Errc::kInvalidArgument, "\"" + text + "\": TLS without the target's name");
  }
  return out;
}

Result<std::vector<std::string>> decode_rails(const std::string& text) {
  std::vector<std::string> rails;
  for (const std::string_view part : split_text(text, ',')) {
    std::string rail(part);
    if (auto parsed = decode_rail(rail); !parsed) return parsed.error();
    if (rails.size() == kRailsMax || std::count(rails.begin(), rails.end(), rail) > 0) {
      return Error(Errc::kInvalidArgument, "too many rails, or one twice");
    }
    rails.push_back(std::move(rail));
  }
  return rails;
}

}  // namespace ho::transport::tcp
