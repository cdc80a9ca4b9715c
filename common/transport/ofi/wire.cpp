#include "common/transport/ofi/wire.hpp"

#include <algorithm>
#include <string_view>

#include "common/base/check.hpp"
#include "common/text/split_text.hpp"
#include "common/transport/wire_text.hpp"

namespace ho::transport {
namespace {

constexpr std::size_t kNameBytesMax = 256;
constexpr char kBetweenRails = ',';

/// 1 .. kRailsMax items, or none at all.
template <typename Item>
std::vector<Item> decode_list(const std::string& text, Result<Item> (*decode)(const std::string&)) {
  std::vector<Item> items;
  for (const std::string_view part : split_text(text, kBetweenRails)) {
    auto item = decode(std::string(part));
    if (!item || items.size() == kRailsMax) return {};
    items.push_back(std::move(*item));
  }
  return items;
}

}  // namespace

std::string encode_address(const OfiAddress& address) {
  return address.provider + "/" + hex_number(address.format) + "/" + hex_bytes(address.name) + "/" +
         hex_number(address.hello.key) + "/" + hex_number(address.hello.base);
}

Result<OfiAddress> decode_address(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not an address of the ofi driver");
  const auto fields = split_text(text, '/');
  if (fields.size() != 5 || fields[0].empty()) return bad;
  const auto format = read_hex_number(fields[1]);
  const auto name = read_hex_bytes(fields[2], kNameBytesMax);
  const auto key = read_hex_number(fields[3]);
  const auto base = read_hex_number(fields[4]);
  if (!format || *format > UINT32_MAX || !name || !key || !base) return bad;
  OfiAddress address;
  address.provider = std::string(fields[0]);
  address.format = static_cast<std::uint32_t>(*format);
  address.name = *name;
  address.hello = RemoteKey{*key, *base, kHelloBytes, Rights::kRead};
  return address;
}

std::string encode_addresses(std::span<const OfiAddress> rails) {
  HO_CHECK(!rails.empty() && rails.size() <= kRailsMax);
  std::string text;
  for (const OfiAddress& rail : rails) {
    if (!text.empty()) text += kBetweenRails;
    text += encode_address(rail);
  }
  return text;
}

Result<std::vector<OfiAddress>> decode_addresses(const std::string& text) {
  auto rails = decode_list<OfiAddress>(text, decode_address);
  if (rails.empty()) return Error(Errc::kInvalidArgument, "not an address of the ofi driver");
  for (auto rail = rails.begin(); rail != rails.end(); ++rail) {
    const auto clashes = [&](const OfiAddress& earlier) {
      return earlier.provider != rail->provider ||
             (earlier.format == rail->format && earlier.name == rail->name);
    };
    if (std::any_of(rails.begin(), rail, clashes)) {
      return Error(Errc::kInvalidArgument, "rails of two providers, or one twice");
    }
  }
  return rails;
}

std::string encode_key(const RemoteKey& key) {
  return hex_number(key.key) + "/" + range_text({key.base, key.length_bytes, key.rights});
}

Result<RemoteKey> decode_key(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not a key of the ofi driver");
  const auto fields = split_text(text, '/');
  if (fields.size() != 4) return bad;
  const auto key = read_hex_number(fields[0]);
  const auto range = read_range(fields[1], fields[2], fields[3]);
  if (!key || !range) return bad;
  return RemoteKey{*key, range->base, range->length_bytes, range->rights};
}

std::string encode_keys(std::span<const RemoteKey> keys) {
  HO_CHECK(!keys.empty() && keys.size() <= kRailsMax);
  const auto same = [&](const RemoteKey& key) { return key == keys.front(); };
  std::string text = encode_key(keys.front());
  if (std::all_of(keys.begin(), keys.end(), same)) return text;
  for (const RemoteKey& key : keys.subspan(1)) text += kBetweenRails + encode_key(key);
  return text;
}

Result<std::vector<RemoteKey>> decode_keys(const std::string& text, std::size_t rails) {
  HO_CHECK(rails > 0 && rails <= kRailsMax);
  auto keys = decode_list<RemoteKey>(text, decode_key);
  if (keys.empty()) return Error(Errc::kInvalidArgument, "not a key of the ofi driver");
  if (keys.size() == 1) keys.resize(rails, keys.front());
  if (keys.size() == rails) return keys;
  return Error(Errc::kInvalidArgument, "keys for another number of rails");
}

}  // namespace ho::transport
