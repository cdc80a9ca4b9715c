#include "tests/conformance/transport/rail_sockets.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <memory>

namespace ho::test {

std::vector<int> sockets_to(const char* address) {
  std::vector<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  REQUIRE(folder != nullptr);
  while (const dirent* const entry = ::readdir(folder.get())) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    const int fd = std::atoi(entry->d_name);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.sin_family != AF_INET) continue;
    if (peer.sin_addr.s_addr == ::inet_addr(address)) found.push_back(fd);
  }
  return found;
}

bool break_rail(const char* address) {
  bool broken = false;
  for (const int fd : sockets_to(address)) {
    const bool shut = ::shutdown(fd, SHUT_RDWR) == 0;
    REQUIRE((shut || went_away(errno)));
    broken = broken || shut;
  }
  return broken;
}

bool went_away(int error) { return error == EBADF || error == ENOTSOCK || error == ENOTCONN; }

}  // namespace ho::test
