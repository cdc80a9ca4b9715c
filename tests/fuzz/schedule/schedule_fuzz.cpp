#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/schedule/validate.hpp"
#include "proto/files/convert.hpp"

namespace {

/// Reads, proves and writes a schedule. Each step may refuse it and nothing worse.
void use(std::span<const std::byte> file) {
  const auto schedule = ho::decode_schedule(file);
  if (!schedule) return;
  (void)ho::schedule::validate(*schedule);
  const std::string encoded = ho::encode_schedule(*schedule);
  const auto again = ho::decode_schedule(std::as_bytes(std::span(encoded.data(), encoded.size())));
  HO_CHECK(again.ok());
  HO_CHECK(*again == *schedule);
}

}  // namespace

/// Uses the input as a file and, since no fuzzer guesses a checksum, as the payload of an intact
/// file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHeaderBytes = 32;
  use(std::as_bytes(std::span(data, size)));
  std::string file = "HOSCHED\n";
  const auto put = [&file](std::uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) file.push_back(static_cast<char>(value >> (8 * i)));
  };
  const bool whole = size >= kHeaderBytes && std::string(data, data + 8) == file;
  const std::string payload(data + (whole ? kHeaderBytes : 0), data + size);
  put(ho::schedule::kFormatVersion, 4);
  put(0, 4);
  put(payload.size(), 8);
  ho::ChecksumStream checksum;
  checksum.update(std::as_bytes(std::span(file.data(), file.size())));
  checksum.update(std::as_bytes(std::span(payload.data(), payload.size())));
  put(checksum.digest(), 8);
  file += payload;
  use(std::as_bytes(std::span(file.data(), file.size())));
  return 0;
}
