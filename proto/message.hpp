#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.hpp"
#include "proto/convert.hpp"

namespace google::protobuf {
class Message;
class MessageLite;
}  // namespace google::protobuf

namespace ho::wire {

/// Most elements of all top-level lists (storages, ops, ...) together. An empty message of 2 bytes
/// costs about 150 bytes once parsed, so lists are counted before anything is built.
inline constexpr std::uint32_t kElementsMax = 4U << 20U;
/// The same for a schedule: each op of a graph is about four elements there.
inline constexpr std::uint32_t kScheduleElementsMax = 4 * kElementsMax;
/// Most bytes of an input in text form, which cannot be counted beforehand.
inline constexpr std::uint64_t kTextBytesMax = std::uint64_t{64} << 20U;
/// Most bytes of any other input: protobuf's sizes are 31 bits.
inline constexpr std::uint64_t kInputBytesMax = std::uint64_t{1} << 30U;

/// Fills `message` from bytes that are not trusted.
/// @return kInvalidArgument with the parser's reason; kOutOfRange beyond a limit above.
[[nodiscard]] Result<void> parse(std::string_view bytes, GraphEncoding encoding,
                                 google::protobuf::Message& message);

/// The bytes of a message; equal messages give equal bytes.
[[nodiscard]] std::string serialize(const google::protobuf::Message& message,
                                    GraphEncoding encoding);

/// The binary encoding alone, for messages with or without descriptors.
[[nodiscard]] Result<void> parse_binary(std::string_view bytes, std::uint32_t elements_max,
                                        google::protobuf::MessageLite& message);
[[nodiscard]] std::string serialize_binary(const google::protobuf::MessageLite& message);

/// The encoding a file's suffix names (.json .textproto .pb).
[[nodiscard]] Result<GraphEncoding> encoding_of(const std::string& path);

}  // namespace ho::wire
