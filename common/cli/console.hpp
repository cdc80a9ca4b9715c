#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/error.hpp"
#include "common/base/result.hpp"
#include "common/cli/exit.hpp"

namespace ho::cli {

/// How a command shows its result.
enum class Format : std::uint8_t {
  kTable,  ///< for people, within 80 columns
  kWide,   ///< for people, everything, as wide as it gets
  kJson,   ///< for programs, one object
};

/// What one command talks through: its result goes to stdout, words for people go to stderr.
/// One thread. Lifecycle: as long as the command runs; flush() comes last.
class Console {
 public:
  /// @param command  as it was called: "hyperoffload bench flash"
  Console(std::string command, Format format) : command_(std::move(command)), format_(format) {}

  [[nodiscard]] Format format() const { return format_; }
  [[nodiscard]] bool json() const { return format_ == Format::kJson; }

  /// A part of the result; ends with a newline, which is added where it is missing.
  void print(std::string_view text);
  /// A line for people.
  void note(std::string_view text);
  /// How far a long command has come: replaces the last such line. Only where stderr is a terminal.
  void progress(std::string_view text);

  /// Says what went wrong, each line of it: the one way in which commands do. The error's code is
  /// named where neither the input nor the budget is to blame. @return `exit`.
  int complain(const Error& error, Exit exit);
  int refuse(const Error& error) { return complain(error, kExitBadInput); }
  /// The question was answered, and the answer is no. @return kExitNo.
  int answer_no(std::string_view why);

  /// @return why what was printed could not be written, as with a full disk.
  [[nodiscard]] Result<void> flush();

 private:
  void end_progress();
  void write_complaint(std::string_view text);

  const std::string command_;
  const Format format_;
  bool in_progress_ = false;
  int write_error_ = 0;  ///< errno of the first print that failed
};

}  // namespace ho::cli
