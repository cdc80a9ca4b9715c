#pragma once

#include <map>
#include <string>
#include <vector>

#include "proto/config/config.hpp"

namespace google::protobuf {
class Message;
}

namespace ho {

/// The fields that a message has, by name. Lines are left 0.
[[nodiscard]] std::map<std::string, ConfigField> fields_of(
    const google::protobuf::Message& message);

/// The names of the fields that have a string, at any depth, that is not UTF-8. Such a string
/// cannot be sent to a client.
[[nodiscard]] std::vector<std::string> fields_without_utf8(
    const google::protobuf::Message& message);

}  // namespace ho
