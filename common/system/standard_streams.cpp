#include "common/system/standard_streams.hpp"

#include <fcntl.h>

#include <cerrno>

#include "common/base/check.hpp"

namespace ho {

void open_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number: those below are open.
    const int opened = ::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
    HO_CHECK(opened == stream);
  }
}

}  // namespace ho
