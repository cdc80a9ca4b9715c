#include "common/transport/ucx/wire.hpp"

#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/checksum.hpp"

namespace ho::transport {
namespace {

constexpr std::size_t kBytesMax = 4096;

std::string number_text(std::uint64_t number) {
  char text[17];
  const auto end = std::to_chars(text, text + sizeof text, number, 16);
  return std::string(text, end.ptr);
}

std::optional<std::uint64_t> read_number(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, 16);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

std::uint64_t sum_of(const std::string& bytes) {
  return checksum64(std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
}

/// The bytes and their checksum.
std::string bytes_text(const std::string& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text + "/" + number_text(sum_of(bytes));
}

std::optional<std::string> read_bytes(std::string_view text, std::string_view sum) {
  if (text.empty() || text.size() % 2 != 0 || text.size() > 2 * kBytesMax) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto byte = read_number(text.substr(i, 2));
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
  }
  const auto expected = read_number(sum);
  if (!expected || *expected != sum_of(bytes)) return std::nullopt;
  return bytes;
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

std::string encode_ucx_address(const std::string& worker) { return "ucx/" + bytes_text(worker); }

Result<std::string> decode_ucx_address(const std::string& text) {
  const auto fields = split(text);
  if (fields.size() == 3 && fields[0] == "ucx") {
    if (auto worker = read_bytes(fields[1], fields[2])) return *worker;
  }
  return Error(Errc::kInvalidArgument, "not an address of the ucx driver");
}

std::string encode_ucx_key(const UcxKey& key) {
  return number_text(key.base) + "/" + number_text(key.length_bytes) + "/" +
         number_text(static_cast<std::uint64_t>(key.rights)) + "/" + bytes_text(key.packed);
}

Result<UcxKey> decode_ucx_key(const std::string& text) {
  const Error bad(Errc::kInvalidArgument, "not a key of the ucx driver");
  const auto fields = split(text);
  if (fields.size() != 5) return bad;
  const auto base = read_number(fields[0]);
  const auto length = read_number(fields[1]);
  const auto rights = read_number(fields[2]);
  const auto packed = read_bytes(fields[3], fields[4]);
  if (!base || !length || !rights || !packed || *length == 0) return bad;
  if (*base > UINT64_MAX - *length) return bad;
  if (*rights != static_cast<std::uint64_t>(Rights::kRead) &&
      *rights != static_cast<std::uint64_t>(Rights::kReadWrite)) {
    return bad;
  }
  return UcxKey{*base, *length, static_cast<Rights>(*rights), *packed};
}

}  // namespace ho::transport
