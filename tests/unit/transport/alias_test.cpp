#include "common/transport/ofi/alias.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/units.hpp"
#include "common/system/unique_fd.hpp"
#include "tests/support/core_dump.hpp"

namespace ho::transport {

namespace {

constexpr std::size_t kBytes = 2 * kMiB;

/// A segment as the daemon makes them, and an alias of it.
struct Aliased {
  Aliased() : fd(::memfd_create("alias-test", MFD_CLOEXEC)) {
    REQUIRE(::ftruncate(fd.get(), kBytes) == 0);
    void* const base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    REQUIRE(base != MAP_FAILED);
    memory = {static_cast<std::byte*>(base), kBytes};
    std::memset(base, 0x5a, kBytes);
    auto opened = space.open({memory, Rights::kReadWrite, fd.get()});
    REQUIRE(opened.ok());
    alias = *opened;
  }
  ~Aliased() { ::munmap(memory.data(), memory.size()); }
  Aliased(const Aliased&) = delete;
  Aliased& operator=(const Aliased&) = delete;

  AliasSpace space;
  UniqueFd fd;
  std::span<std::byte> memory;
  std::span<std::byte> alias;
};

/// Retires in a child whose `resource` is limited to `most`. @return the child's status: 0 where
/// the alias was cut off and can still be written.
int retire_limited(Aliased& at, __rlimit_resource resource, rlim_t most) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit{most, most};
    if (::setrlimit(resource, &limit) != 0) ::_exit(2);
    if (!at.space.retire(at.alias)) ::_exit(4);
    at.alias[0] = std::byte{1};
    ::_exit(at.memory[0] == std::byte{0x5a} && at.alias[1] == std::byte{0} ? 0 : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("alias: it shows the segment until it is retired, and then nothing of it") {
  Aliased at;
  CHECK(at.alias[kBytes - 1] == std::byte{0x5a});
  REQUIRE(at.space.retire(at.alias).ok());
  CHECK(at.alias[0] == std::byte{0});
  at.alias[0] = std::byte{1};
  CHECK(at.memory[0] == std::byte{0x5a});
}

TEST_CASE("alias: a core dump leaves it out") {
  const Aliased at;
  CHECK(test::left_out_of_core_dumps(at.alias.data()));
}

TEST_CASE("alias: a read-only segment's can be made although it is sealed against writing") {
  const UniqueFd fd(::memfd_create("alias-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(fd.get(), kBytes) == 0);
  void* const base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(base != MAP_FAILED);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
  AliasSpace space;
  const auto opened =
      space.open({{static_cast<std::byte*>(base), kBytes}, Rights::kRead, fd.get()});
  REQUIRE(opened.ok());
  *static_cast<char*>(base) = 7;
  CHECK((*opened)[0] == std::byte{7});
  REQUIRE(space.retire(*opened).ok());
  ::munmap(base, kBytes);
}

TEST_CASE("alias: retiring needs no descriptor to spare") {
  Aliased at;
  CHECK(retire_limited(at, RLIMIT_NOFILE, 0) == 0);
}

#if !defined(__SANITIZE_THREAD__)  // which needs private memory itself
TEST_CASE("alias: retiring needs no private memory to spare") {
  Aliased at;
  // A stand-in for a system that does not overcommit.
  CHECK(retire_limited(at, RLIMIT_DATA, 0) == 0);
}
#endif

}  // namespace ho::transport
