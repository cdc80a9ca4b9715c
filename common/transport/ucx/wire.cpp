#include "common/transport/ucx/wire.hpp"

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/text/split_text.hpp"
#include "common/transport/striping/rail.hpp"
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

std::optional<std::string> read_worker(std::string_view text) {
  const auto fields = split_text(text, '/');
  if (fields.size() != 3 || fields[0] != "ucx") return std::nullopt;
  return read_summed(fields[1], fields[2]);
}

}  // namespace

std::string encode_ucx_address(std::span<const std::string> workers) {
  HO_CHECK(!workers.empty() && workers.size() <= kRailsMax);
  std::string text;
  for (const std::string& worker : workers) {
    if (!text.empty()) text += ',';
    text += "ucx/" + summed_text(worker);
  }
  return text;
}

Result<std::vector<std::string>> decode_ucx_address(const std::string& text) {
  std::vector<std::string> workers;
  for (const std::string_view part : split_text(text, ',')) {
    auto worker = read_worker(part);
    if (!worker || workers.size() == kRailsMax) {
      return Error(Errc::kInvalidArgument, "not an address of the ucx driver");
    }
    workers.push_back(std::move(*worker));
  }
  return workers;
}

std::string encode_ucx_key(const UcxKey& key) {
  HO_CHECK(!key.packed.empty() && key.packed.size() <= kRailsMax);
  std::string text = range_text({key.base, key.length_bytes, key.rights});
  for (const std::string& packed : key.packed) text += "/" + summed_text(packed);
  return text;
}

Result<UcxKey> decode_ucx_key(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not a key of the ucx driver");
  const auto fields = split_text(text, '/');
  if (fields.size() < 5 || fields.size() > 3 + 2 * kRailsMax || fields.size() % 2 == 0) return bad;
  const auto range = read_range(fields[0], fields[1], fields[2]);
  if (!range) return bad;
  UcxKey key{range->base, range->length_bytes, range->rights, {}};
  for (std::size_t i = 3; i < fields.size(); i += 2) {
    auto packed = read_summed(fields[i], fields[i + 1]);
    if (!packed) return bad;
    key.packed.push_back(std::move(*packed));
  }
  return key;
}

}  // namespace ho::transport
