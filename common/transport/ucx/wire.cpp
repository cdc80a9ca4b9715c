#include "common/transport/ucx/wire.hpp"

#include <optional>
#include <span>
#include <string_view>

#include "common/base/checksum.hpp"
#include "common/transport/wire_text.hpp"

namespace ho::transport {
namespace {

constexpr std::size_t kBytesMax = 4096;

std::uint64_t sum_of(const std::string& bytes) {
  return checksum64(std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
}

/// The bytes and their checksum.
std::string summed_text(const std::string& bytes) {
  return hex_bytes(bytes) + "/" + hex_number(sum_of(bytes));
}

std::optional<std::string> read_summed(std::string_view text, std::string_view sum) {
  const auto bytes = read_hex_bytes(text, kBytesMax);
  const auto expected = read_hex_number(sum);
  if (!bytes || !expected || *expected != sum_of(*bytes)) return std::nullopt;
  return bytes;
}

}  // namespace

std::string encode_ucx_address(const std::string& worker) { return "ucx/" + summed_text(worker); }

Result<std::string> decode_ucx_address(const std::string& text) {
  const auto fields = split_fields(text);
  if (fields.size() == 3 && fields[0] == "ucx") {
    if (auto worker = read_summed(fields[1], fields[2])) return *worker;
  }
  return Error(Errc::kInvalidArgument, "not an address of the ucx driver");
}

std::string encode_ucx_key(const UcxKey& key) {
  return range_text({key.base, key.length_bytes, key.rights}) + "/" + summed_text(key.packed);
}

Result<UcxKey> decode_ucx_key(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not a key of the ucx driver");
  const auto fields = split_fields(text);
  if (fields.size() != 5) return bad;
  const auto range = read_range(fields[0], fields[1], fields[2]);
  const auto packed = read_summed(fields[3], fields[4]);
  if (!range || !packed) return bad;
  return UcxKey{range->base, range->length_bytes, range->rights, *packed};
}

}  // namespace ho::transport
