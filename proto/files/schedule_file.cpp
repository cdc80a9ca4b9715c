#include <google/protobuf/arena.h>
#include <schedule.pb.h>

#include <array>
#include <cstring>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/schedule/check_structure.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "proto/files/message.hpp"
#include "proto/files/schedule_message.hpp"

namespace ho {

namespace {

// A .hos file, integers little-endian:
//   0  8  magic "HOSCHED\n"; the newline shows a text-mode copy
//   8  4  format version
//  12  4  zero
//  16  8  payload length in bytes: exactly what follows the header
//  24  8  XXH3-64 of bytes 0 .. 23 and the payload
//  32     payload: a Schedule message
// The header's layout is the same in every version, so the checksum is judged before the version:
// a damaged version field reads as damage, not as a file from the future.
constexpr std::string_view kMagic = "HOSCHED\n";
constexpr std::size_t kCheckedHeaderBytes = 24;
constexpr std::size_t kHeaderBytes = 32;

void put_number(std::string& out, std::uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint64_t get_number(std::string_view bytes, std::size_t at, unsigned count) {
  HO_CHECK(at + count <= bytes.size());
  std::uint64_t value = 0;
  for (unsigned i = 0; i < count; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

std::uint64_t checksum(std::string_view header, std::string_view payload) {
  ChecksumStream stream;
  stream.update(std::as_bytes(std::span(header.data(), kCheckedHeaderBytes)));
  stream.update(std::as_bytes(std::span(payload.data(), payload.size())));
  return stream.digest();
}

Error corrupt(const std::string& reason) { return Error(Errc::kCorrupt, reason); }

/// Returns the payload of an intact file of this version.
Result<std::string_view> open_file(std::string_view file) {
  if (file.size() < kHeaderBytes) return corrupt("truncated: shorter than the header");
  if (!file.starts_with(kMagic)) return corrupt("not a schedule file");
  const std::uint64_t length = get_number(file, 16, 8);
  const std::string_view payload = file.substr(kHeaderBytes);
  if (length != payload.size()) {
    return corrupt("the header says " + std::to_string(length) + " payload bytes; the file has " +
                   std::to_string(payload.size()));
  }
  if (checksum(file, payload) != get_number(file, 24, 8)) return corrupt("checksum mismatch");
  if (get_number(file, 12, 4) != 0) return corrupt("reserved header bytes are not zero");
  const std::uint64_t version = get_number(file, 8, 4);
  if (version != schedule::kFormatVersion) {
    return Error(Errc::kUnsupported, "format version " + std::to_string(version) +
                                         "; this program reads version " +
                                         std::to_string(schedule::kFormatVersion));
  }
  return payload;
}

}  // namespace

std::string encode_schedule(const schedule::Schedule& schedule) {
  google::protobuf::Arena arena;  // millions of small messages, freed together
  auto& message = *google::protobuf::Arena::CreateMessage<hyperoffload::v1::Schedule>(&arena);
  wire::to_wire(schedule, message);
  const std::string payload = wire::serialize_binary(message);
  std::string out(kMagic);
  put_number(out, schedule.format_version, 4);
  put_number(out, 0, 4);
  put_number(out, payload.size(), 8);
  HO_CHECK(out.size() == kCheckedHeaderBytes);
  put_number(out, checksum(out, payload), 8);
  HO_CHECK(out.size() == kHeaderBytes);
  return out + payload;
}

Result<schedule::Schedule> decode_schedule(std::span<const std::byte> bytes) {
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto payload = open_file(file);
  if (!payload) return payload.error();
  google::protobuf::Arena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<hyperoffload::v1::Schedule>(&arena);
  auto parsed = wire::parse_binary(*payload, wire::kScheduleElementsMax, message);
  if (!parsed) {
    return corrupt(parsed.error().context());
  }
  auto schedule = wire::from_wire(message);
  if (!schedule) return schedule.error();
  if (auto checked = schedule::check_structure(*schedule); !checked) return checked.error();
  return schedule;
}

Result<schedule::Schedule> read_schedule_file(const std::string& path) {
  const auto bytes = read_whole_file(path, wire::kInputBytesMax);
  if (!bytes) return bytes.error();
  auto schedule = decode_schedule(std::as_bytes(std::span(bytes->data(), bytes->size())));
  if (!schedule) return schedule.error().at(path);
  return schedule;
}

Result<void> write_schedule_file(const schedule::Schedule& schedule, const std::string& path) {
  return write_whole_file(path, encode_schedule(schedule));
}

}  // namespace ho
