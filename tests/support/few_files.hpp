#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>

#include "common/base/check.hpp"
#include "common/system/unique_fd.hpp"
#include "tests/support/seeds.hpp"

namespace ho::test {

/// While it lives, this process can open `more` files; files that others close meanwhile add
/// to these. Not under a sanitizer (HO_TEST_SANITIZED): that of undefined behaviour opens pipes to
/// see whether an object's memory is there, and without any reports a broken vtable.
class FewFiles {
 public:
  explicit FewFiles(int more) {
    // Files are numbered from the lowest free number on.
    const UniqueFd lowest(::dup(STDERR_FILENO));
    if (!lowest.valid() || ::getrlimit(RLIMIT_NOFILE, &usual_) != 0)
      throw std::runtime_error("no limit of files");
    if (!set(static_cast<rlim_t>(lowest.get() + more)))
      throw std::runtime_error("no limit of files");
  }
  ~FewFiles() { HO_CHECK(set(usual_.rlim_cur)); }
  FewFiles(const FewFiles&) = delete;
  FewFiles& operator=(const FewFiles&) = delete;

 private:
  [[nodiscard]] bool set(rlim_t files) const {
    const rlimit limit{files, usual_.rlim_max};
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  }

  rlimit usual_{};
};

}  // namespace ho::test
