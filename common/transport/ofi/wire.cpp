#include "common/transport/ofi/wire.hpp"

#include "common/transport/wire_text.hpp"

namespace ho::transport {
namespace {

constexpr std::size_t kNameBytesMax = 256;

}  // namespace

std::string encode_address(const OfiAddress& address) {
  return address.provider + "/" + hex_number(address.format) + "/" + hex_bytes(address.name) + "/" +
         hex_number(address.hello.key) + "/" + hex_number(address.hello.base);
}

Result<OfiAddress> decode_address(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not an address of the ofi driver");
  const auto fields = split_fields(text);
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

std::string encode_key(const RemoteKey& key) {
  return hex_number(key.key) + "/" + range_text({key.base, key.length_bytes, key.rights});
}

Result<RemoteKey> decode_key(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not a key of the ofi driver");
  const auto fields = split_fields(text);
  if (fields.size() != 4) return bad;
  const auto key = read_hex_number(fields[0]);
  const auto range = read_range(fields[1], fields[2], fields[3]);
  if (!key || !range) return bad;
  return RemoteKey{*key, range->base, range->length_bytes, range->rights};
}

}  // namespace ho::transport
