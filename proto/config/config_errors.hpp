#pragma once

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

namespace ho {

/// Collects the errors of a configuration file, of its parser and of later checks, each with its
/// line and the name of its field.
class ConfigErrors final : public google::protobuf::io::ErrorCollector {
 public:
  /// Both must outlive this object.
  ConfigErrors(const std::string& file, const std::string& text);

  /// From the parser.
  void AddError(int line, int column, const std::string& message) override;
  /// `line` counts from 0; -1 if the field is not in the file.
  void add(int line, const std::string& field, const std::string& message);
  [[nodiscard]] bool any() const { return !text_.empty(); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  [[nodiscard]] std::string field_on(int line, int column) const;

  const std::string& file_;
  const std::vector<std::string> lines_;
  std::string text_;
};

/// Reports errors of the fields of a parsed configuration, at their lines. `index` counts where a
/// block is repeated.
class FieldErrors {
 public:
  /// Both must outlive this object.
  FieldErrors(const google::protobuf::TextFormat::ParseInfoTree& lines, ConfigErrors& out)
      : lines_(lines), out_(out) {}

  void add(const std::string& field, const std::string& message, int index = 0) {
    out_.add(line(field, index), field, message);
  }
  /// The same, for a field in a block.
  void add_in(const std::string& block, const std::string& field, const std::string& message,
              int index = 0) {
    out_.add(line(block, index, field), block, field + ": " + message);
  }
  /// From 0: of `inner`, or of the block where that is not in the file; -1: neither is.
  [[nodiscard]] int line(const std::string& block, int index = 0,
                         const std::string& inner = {}) const;

 private:
  const google::protobuf::TextFormat::ParseInfoTree& lines_;
  ConfigErrors& out_;
};

}  // namespace ho
