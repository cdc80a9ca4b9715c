#pragma once

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "common/base/check.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::test {

/// Captures what the process writes to stderr (log lines) from construction to destruction. At most
/// one at a time.
class StderrCapture {
 public:
  StderrCapture() : before_(::dup(STDERR_FILENO)) {
    std::string name = "/tmp/ho-stderr-XXXXXX";
    file_ = UniqueFd(::mkstemp(name.data()));
    HO_CHECK(before_.valid() && file_.valid());
    ::unlink(name.c_str());
    HO_CHECK(::dup2(file_.get(), STDERR_FILENO) >= 0);
  }
  ~StderrCapture() { ::dup2(before_.get(), STDERR_FILENO); }
  StderrCapture(const StderrCapture&) = delete;
  StderrCapture& operator=(const StderrCapture&) = delete;

  /// The text captured so far.
  [[nodiscard]] std::string text() const {
    std::string all;
    std::array<char, 4096> piece{};
    for (;;) {
      const ssize_t got =
          ::pread(file_.get(), piece.data(), piece.size(), static_cast<off_t>(all.size()));
      if (got <= 0) return all;
      all.append(piece.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  UniqueFd before_;
  UniqueFd file_;
};

}  // namespace ho::test
