#pragma once

#include <google/protobuf/io/tokenizer.h>

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

}  // namespace ho
