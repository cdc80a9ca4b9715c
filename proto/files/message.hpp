#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.hpp"
#include "proto/files/convert.hpp"

namespace google::protobuf {
class Message;
class MessageLite;
}  // namespace google::protobuf

namespace ho::wire {

/// Limit for the elements of all top-level lists (storages, ops, ...) together. A parsed empty
/// message takes about 150 bytes for 2 bytes of input, so lists are counted before parsing.
inline constexpr std::uint32_t kElementsMax = 4U << 20U;
/// The same for a schedule, which has about four elements per op of its graph.
inline constexpr std::uint32_t kScheduleElementsMax = 4 * kElementsMax;
/// Limit for inputs in text form, whose elements cannot be counted before parsing.
inline constexpr std::uint64_t kTextBytesMax = std::uint64_t{64} << 20U;
/// Limit for other inputs: sizes in protobuf have 31 bits.
inline constexpr std::uint64_t kInputBytesMax = std::uint64_t{1} << 30U;

/// Parses `message` from untrusted bytes.
/// @return kInvalidArgument with the parser's reason; kOutOfRange if a limit above is exceeded.
[[nodiscard]] Result<void> parse(std::string_view bytes, GraphEncoding encoding,
                                 google::protobuf::Message& message);

/// Encodes a message; equal messages give equal bytes.
[[nodiscard]] std::string serialize(const google::protobuf::Message& message,
                                    GraphEncoding encoding);

/// The binary encoding only, for messages with or without descriptors.
[[nodiscard]] Result<void> parse_binary(std::string_view bytes, std::uint32_t elements_max,
                                        google::protobuf::MessageLite& message);
[[nodiscard]] std::string serialize_binary(const google::protobuf::MessageLite& message);

/// The encoding for the suffix of a file (.json .textproto .pb).
[[nodiscard]] Result<GraphEncoding> encoding_of(const std::string& path);

}  // namespace ho::wire
