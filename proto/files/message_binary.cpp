#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include "common/base/check.hpp"
#include "proto/files/message.hpp"

// Separate from message.cpp: the messages of the client library have no descriptors, so it links
// this file without protobuf's text and JSON.
namespace ho::wire {

namespace {

namespace pb = google::protobuf;
using WireFormat = pb::internal::WireFormatLite;

/// Walks the top level of a message and counts its nested messages.
Result<void> count_elements(std::string_view bytes, std::uint32_t elements_max) {
  pb::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                              static_cast<int>(bytes.size()));
  std::uint64_t count = 0;
  for (std::uint32_t tag = in.ReadTag(); tag != 0; tag = in.ReadTag()) {
    if (!WireFormat::SkipField(&in, tag)) return bad_input("not a protobuf message, or truncated");
    if (WireFormat::GetTagWireType(tag) != WireFormat::WIRETYPE_LENGTH_DELIMITED) continue;
    if (++count > elements_max) {
      return Error(Errc::kOutOfRange,
                   "more than " + std::to_string(elements_max) + " elements at the top level");
    }
  }
  if (!in.ConsumedEntireMessage()) return bad_input("not a protobuf message, or truncated");
  return {};
}

}  // namespace

Result<void> parse_binary(std::string_view bytes, std::uint32_t elements_max,
                          pb::MessageLite& message) {
  if (bytes.size() > kInputBytesMax) {
    return Error(Errc::kOutOfRange, std::to_string(bytes.size()) + " bytes; inputs of more than " +
                                        std::to_string(kInputBytesMax) + " are not read");
  }
  if (auto counted = count_elements(bytes, elements_max); !counted) return counted.error();
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return bad_input("not a protobuf message, or truncated");
  }
  return {};
}

std::string serialize_binary(const pb::MessageLite& message) {
  std::string out;
  HO_CHECK(message.SerializeToString(&out));
  return out;
}

}  // namespace ho::wire
