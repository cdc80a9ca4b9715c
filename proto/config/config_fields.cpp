#include "proto/config/config_fields.hpp"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <set>

#include "common/text/utf8.hpp"

namespace ho {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::vector<const FieldDescriptor*> present(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

/// Calls visit(index) for each value of the field. The index of a single value is -1.
template <typename Visit>
void for_each_value(const Message& message, const FieldDescriptor& field, Visit visit) {
  if (!field.is_repeated()) return visit(-1);
  const int count = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < count; ++i) visit(i);
}

bool has_utf8_only(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  bool all = true;
  for_each_value(message, field, [&](int i) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      all = all && is_utf8(i < 0 ? reflection.GetString(message, &field)
                                 : reflection.GetRepeatedString(message, &field, i));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      all = all && fields_without_utf8(i < 0 ? reflection.GetMessage(message, &field)
                                             : reflection.GetRepeatedMessage(message, &field, i))
                       .empty();
    }
  });
  return all;
}

}  // namespace

std::map<std::string, ConfigField> fields_of(const Message& message) {
  std::map<std::string, ConfigField> out;
  for (const FieldDescriptor* const field : present(message)) {
    std::string& to = out[field->name()].value;
    for_each_value(message, *field, [&](int i) {
      std::string value;
      google::protobuf::TextFormat::PrintFieldValueToString(message, field, i, &value);
      to += value + "\n";
    });
  }
  return out;
}

std::vector<std::string> fields_without_utf8(const Message& message) {
  std::vector<std::string> out;
  for (const FieldDescriptor* const field : present(message)) {
    if (!has_utf8_only(message, *field)) out.push_back(field->name());
  }
  return out;
}

Error DaemonConfig::at_field(const std::string& name, const Error& error) const {
  const auto found = fields.find(name);
  return error.at(found == fields.end() ? file : file + ":" + std::to_string(found->second.line));
}

std::vector<std::string> changed_fields(const DaemonConfig& before, const DaemonConfig& after) {
  std::set<std::string> names;
  for (const auto& [name, field] : before.fields) names.insert(name);
  for (const auto& [name, field] : after.fields) names.insert(name);
  std::vector<std::string> out;
  for (const std::string& name : names) {
    const auto one = before.fields.find(name);
    const auto other = after.fields.find(name);
    const bool same = one != before.fields.end() && other != after.fields.end() &&
                      one->second.value == other->second.value;
    if (!same) out.push_back(name);
  }
  return out;
}

}  // namespace ho
