#include "proto/files/message.hpp"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver_util.h>

#include <memory>

#include "common/base/check.hpp"

namespace ho::wire {

namespace {

namespace pb = google::protobuf;

Result<void> parse_json(std::string_view bytes, pb::Message& message) {
  const std::string prefix = "type.googleapis.com";
  const std::unique_ptr<pb::util::TypeResolver> resolver(
      pb::util::NewTypeResolverForDescriptorPool(prefix, pb::DescriptorPool::generated_pool()));
  std::string binary;
  const auto status = pb::util::JsonToBinaryString(
      resolver.get(), prefix + "/" + message.GetDescriptor()->full_name(),
      pb::StringPiece(bytes.data(), bytes.size()), &binary);
  if (!status.ok()) return bad_input(std::string(status.message()));
  return parse_binary(binary, kElementsMax, message);
}

/// Keeps the first error; later ones follow from it.
class FirstError final : public pb::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& text) override {
    if (!text_.empty()) return;
    text_ =
        "line " + std::to_string(line + 1) + ", column " + std::to_string(column + 1) + ": " + text;
  }
  void AddWarning(int /*line*/, int /*column*/, const std::string& /*text*/) override {}
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Result<void> parse_text(std::string_view bytes, pb::Message& message) {
  constexpr int kDepthMax = 32;
  pb::io::ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()));
  FirstError errors;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(kDepthMax);
  if (!parser.Parse(&in, &message)) {
    return bad_input(errors.text().empty() ? "not protobuf text" : errors.text());
  }
  return {};
}

}  // namespace

Result<void> parse(std::string_view bytes, GraphEncoding encoding, pb::Message& message) {
  const std::uint64_t limit = encoding == GraphEncoding::kText ? kTextBytesMax : kInputBytesMax;
  if (bytes.size() > limit) {
    return Error(Errc::kOutOfRange, std::to_string(bytes.size()) + " bytes; inputs of more than " +
                                        std::to_string(limit) + " are not read");
  }
  switch (encoding) {
    case GraphEncoding::kJson: return parse_json(bytes, message);
    case GraphEncoding::kText: return parse_text(bytes, message);
    case GraphEncoding::kBinary: return parse_binary(bytes, kElementsMax, message);
  }
  return bad_input("unknown encoding");
}

std::string serialize(const pb::Message& message, GraphEncoding encoding) {
  std::string out;
  bool done = false;
  switch (encoding) {
    case GraphEncoding::kJson: {
      pb::util::JsonPrintOptions options;
      // Readers in other languages can then read every field without a default.
      options.always_print_primitive_fields = true;
      done = pb::util::MessageToJsonString(message, &out, options).ok();
      out += '\n';
      break;
    }
    case GraphEncoding::kText: done = pb::TextFormat::PrintToString(message, &out); break;
    case GraphEncoding::kBinary: return serialize_binary(message);
  }
  HO_CHECK(done);
  return out;
}

Result<GraphEncoding> encoding_of(const std::string& path) {
  const auto ends_with = [&path](std::string_view suffix) {
    return path.size() > suffix.size() && std::string_view(path).ends_with(suffix);
  };
  if (ends_with(".json")) return GraphEncoding::kJson;
  if (ends_with(".textproto")) return GraphEncoding::kText;
  if (ends_with(".pb")) return GraphEncoding::kBinary;
  return bad_input(path + ": the suffix must be .json, .textproto or .pb");
}

}  // namespace ho::wire
