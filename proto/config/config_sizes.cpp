#include "proto/config/config_sizes.hpp"

#include <config.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "common/base/units.hpp"
#include "proto/config/config_errors.hpp"

namespace ho {

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::ArrayInputStream;
using google::protobuf::io::Tokenizer;

/// The names of fields that count bytes, in the message and those in it.
void collect_sizes(const Descriptor& message, std::set<std::string>& names) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      collect_sizes(*field.message_type(), names);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64 &&
               field.name().find("bytes") != std::string::npos) {
      names.insert(field.name());
    }
  }
}

/// Says nothing: the parser reports mistakes of the text.
class Silent final : public google::protobuf::io::ErrorCollector {
  void AddError(int /*line*/, int /*column*/, const std::string& /*message*/) override {}
};

struct Quoted {
  std::string field;
  std::string text;
  int line = 0;
  std::size_t begin = 0;  ///< in the file
  std::size_t end = 0;
};

std::vector<std::size_t> line_begins(const std::string& text) {
  std::vector<std::size_t> out{0};
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') out.push_back(i + 1);
  }
  return out;
}

/// The strings that follow "NAME:" where NAME counts bytes.
std::vector<Quoted> find_quoted(const std::string& text) {
  std::set<std::string> names;
  collect_sizes(*hyperoffload::v1::DaemonConfig::descriptor(), names);
  const std::vector<std::size_t> lines = line_begins(text);
  ArrayInputStream in(text.data(), static_cast<int>(text.size()));
  Silent silent;
  Tokenizer tokens(&in, &silent);
  tokens.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  std::vector<Quoted> out;
  std::string name;
  bool colon = false;
  std::size_t searched = 0;  // the tokenizer counts a tab as several columns
  while (tokens.Next()) {
    const Tokenizer::Token& token = tokens.current();
    const std::size_t begin =
        text.find(token.text, std::max(searched, lines[static_cast<std::size_t>(token.line)]));
    if (begin == std::string::npos) break;  // no text that the parser will take
    searched = begin + token.text.size();
    if (token.type == Tokenizer::TYPE_STRING && colon && names.count(name) == 1) {
      out.push_back({name, "", token.line, begin, searched});
      Tokenizer::ParseString(token.text, &out.back().text);
    }
    colon = token.text == ":" && !name.empty();
    if (token.type == Tokenizer::TYPE_IDENTIFIER) {
      name = token.text;
    } else if (!colon) {
      name.clear();
    }
  }
  return out;
}

}  // namespace

std::string resolve_sizes(const std::string& text, ConfigErrors& errors) {
  std::string out = text;
  const std::vector<Quoted> all = find_quoted(text);
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    const std::optional<std::uint64_t> bytes = parse_bytes(one->text);
    if (bytes) out.replace(one->begin, one->end - one->begin, std::to_string(*bytes));
  }
  for (const Quoted& one : all) {
    if (parse_bytes(one.text)) continue;
    errors.add(one.line, one.field,
               "\"" + one.text +
                   "\" is not a size; write a number of bytes, or one with a unit "
                   "such as \"256MiB\" or \"1.5GiB\"");
  }
  return out;
}

}  // namespace ho
