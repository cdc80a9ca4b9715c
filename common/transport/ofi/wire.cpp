#include "common/transport/ofi/wire.hpp"

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace ho::transport {
namespace {

constexpr std::size_t kNameBytesMax = 256;

std::string to_hex(std::uint64_t number) {
  char text[17];
  const auto end = std::to_chars(text, text + sizeof text, number, 16);
  return std::string(text, end.ptr);
}

std::optional<std::uint64_t> from_hex(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, 16);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t slash = text.find('/');
    fields.push_back(text.substr(0, slash));
    if (slash == std::string_view::npos) return fields;
    text.remove_prefix(slash + 1);
  }
}

}  // namespace

std::string encode_address(const OfiAddress& address) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name;
  for (const char c : address.name) {
    const auto byte = static_cast<unsigned char>(c);
    name += kDigits[byte >> 4U];
    name += kDigits[byte & 15U];
  }
  return address.provider + "/" + to_hex(address.format) + "/" + name + "/" +
         to_hex(address.hello.key) + "/" + to_hex(address.hello.base);
}

Result<OfiAddress> decode_address(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not an address of the ofi driver");
  const auto fields = split(text);
  if (fields.size() != 5 || fields[0].empty()) return bad;
  const auto format = from_hex(fields[1]);
  const auto key = from_hex(fields[3]);
  const auto base = from_hex(fields[4]);
  const bool name_fits = fields[2].size() % 2 == 0 && fields[2].size() <= 2 * kNameBytesMax;
  if (!format || *format > UINT32_MAX || !key || !base || !name_fits) return bad;
  OfiAddress address;
  address.provider = std::string(fields[0]);
  address.format = static_cast<std::uint32_t>(*format);
  for (std::size_t i = 0; i < fields[2].size(); i += 2) {
    const auto byte = from_hex(fields[2].substr(i, 2));
    if (!byte) return bad;
    address.name += static_cast<char>(*byte);
  }
  if (address.name.empty()) return bad;
  address.hello = RemoteKey{*key, *base, kHelloBytes, Rights::kRead};
  return address;
}

std::string encode_key(const RemoteKey& key) {
  return to_hex(key.key) + "/" + to_hex(key.base) + "/" + to_hex(key.length_bytes) + "/" +
         to_hex(static_cast<std::uint64_t>(key.rights));
}

Result<RemoteKey> decode_key(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not a key of the ofi driver");
  const auto fields = split(text);
  if (fields.size() != 4) return bad;
  const auto key = from_hex(fields[0]);
  const auto base = from_hex(fields[1]);
  const auto length = from_hex(fields[2]);
  const auto rights = from_hex(fields[3]);
  if (!key || !base || !length || !rights || *length == 0) return bad;
  if (*base > UINT64_MAX - *length) return bad;
  if (*rights != static_cast<std::uint64_t>(Rights::kRead) &&
      *rights != static_cast<std::uint64_t>(Rights::kReadWrite)) {
    return bad;
  }
  return RemoteKey{*key, *base, *length, static_cast<Rights>(*rights)};
}

}  // namespace ho::transport
