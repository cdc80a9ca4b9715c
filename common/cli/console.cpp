#include "common/cli/console.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "common/cli/layout.hpp"

namespace ho::cli {

void Console::print(std::string_view text) {
  end_progress();
  const bool ended = !text.empty() && text.back() == '\n';
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                       (ended || std::fputc('\n', stdout) != EOF);
  if (!written && write_error_ == 0) write_error_ = errno;
}

void Console::note(std::string_view text) {
  end_progress();
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

void Console::progress(std::string_view text) {
  if (::isatty(STDERR_FILENO) == 0) return;
  constexpr const char* kEraseToEnd = "\x1b[K";
  std::fprintf(stderr, "\r%.*s%s", static_cast<int>(text.size()), text.data(), kEraseToEnd);
  std::fflush(stderr);
  in_progress_ = true;
}

void Console::end_progress() {
  if (!in_progress_) return;
  std::fputc('\n', stderr);
  in_progress_ = false;
}

int Console::complain(const Error& error, Exit exit) {
  const bool named = exit == kExitNo || exit == kExitPoolFailed;
  write_complaint(named ? error.message() : error.context());
  return exit;
}

int Console::answer_no(std::string_view why) {
  write_complaint(why);
  return kExitNo;
}

void Console::write_complaint(std::string_view text) {
  end_progress();
  // Where both streams go to one place, the result printed so far comes first.
  (void)std::fflush(stdout);
  while (!text.empty()) {  // some errors are several, one a line
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string line = printable(text.substr(0, end));
    std::fprintf(stderr, "%s: %s\n", command_.c_str(), line.c_str());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

Result<void> Console::flush() {
  end_progress();
  if (std::fflush(stdout) != 0 && write_error_ == 0) write_error_ = errno;
  if (write_error_ != 0) return errno_error(write_error_, "the result cannot be written to stdout");
  return {};
}

}  // namespace ho::cli
