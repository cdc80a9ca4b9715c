#include "common/system/memory_guard.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/units.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::test {
namespace {

/// How a child process ended.
struct End {
  int signal = 0;  ///< 0: it exited
  int status = 0;
  bool operator==(const End&) const = default;
};

/// Runs `body` in a child.
template <typename Body>
End end_of(const Body& body) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  if (WIFSIGNALED(status)) return End{WTERMSIG(status), 0};
  return End{0, WEXITSTATUS(status)};
}

/// A mapped file in memory that can be truncated.
struct Shared {
  explicit Shared(std::size_t length_bytes)
      : fd(::memfd_create("memory_guard", MFD_CLOEXEC)), length(length_bytes) {
    if (::ftruncate(fd.get(), static_cast<off_t>(length)) != 0) return;
    void* mapped = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (mapped != MAP_FAILED) base = static_cast<std::byte*>(mapped);
  }
  ~Shared() {
    if (base != nullptr) ::munmap(base, length);
  }
  [[nodiscard]] bool cut(std::size_t kept) const {
    return ::ftruncate(fd.get(), static_cast<off_t>(kept)) == 0;
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {base, length}; }

  UniqueFd fd;
  std::byte* base = nullptr;
  std::size_t length;
};

/// Reads a page beyond the end of the truncated file, outside guarded().
void touch_cut() {
  const Shared shared(4096);
  if (shared.base == nullptr || !shared.cut(0)) ::_exit(3);
  const volatile std::byte* page = shared.base;
  (void)*page;
}

/// Installs the guard on top of `earlier`; the process must not have it yet.
void install_on(void (*earlier)(int)) {
  ::signal(SIGBUS, earlier);
  if (!install_memory_guard()) ::_exit(4);
  struct sigaction now {};
  if (::sigaction(SIGBUS, nullptr, &now) != 0 || now.sa_handler == earlier) ::_exit(5);
}

// First in this file: later cases install the guard in this process, and children inherit it.
TEST_CASE("memory guard: a fault elsewhere ends the process, or reaches the earlier handler") {
  const End killed = end_of([] {
    install_on(SIG_DFL);
    touch_cut();
  });
  REQUIRE(killed == End{SIGBUS, 0});
  const End handled = end_of([] {
    install_on([](int) { ::_exit(42); });
    touch_cut();
  });
  REQUIRE(handled == End{0, 42});
}

TEST_CASE("memory guard: a SIGBUS without a fault acts as if there were no guard") {
  const auto send = [] { ::raise(SIGBUS); };
  const auto send_inside = [] {
    const Shared shared(4096);
    (void)guarded(shared.bytes(), [] { ::raise(SIGBUS); });
  };
  const End killed = end_of([&] {
    install_on(SIG_DFL);
    send();
  });
  REQUIRE(killed == End{SIGBUS, 0});
  const End killed_inside = end_of([&] {
    install_on(SIG_DFL);
    send_inside();
  });
  REQUIRE(killed_inside == End{SIGBUS, 0});
  const End ignored = end_of([&] {
    install_on(SIG_IGN);
    send();
    send_inside();
  });
  REQUIRE(ignored == End{0, 0});
  const End ignored_fault = end_of([] {
    install_on(SIG_IGN);
    touch_cut();
  });
  REQUIRE(ignored_fault ==
          End{SIGBUS, 0});  // a fault cannot be ignored; the system behaves the same
}

TEST_CASE("memory guard: copies from and to truncated memory return, repeatedly") {
  REQUIRE(install_memory_guard().ok());
  std::vector<std::byte> memory(kMiB);
  for (std::size_t round = 0; round < 50; ++round) {
    const Shared shared(kMiB);
    REQUIRE(shared.base != nullptr);
    const std::size_t kept = round * 16 * kKiB;
    REQUIRE(shared.cut(kept));
    const auto bytes = shared.bytes();
    REQUIRE_FALSE(guarded(bytes, [&] { std::memcpy(memory.data(), bytes.data(), kMiB); }));
    REQUIRE_FALSE(guarded(bytes, [&] { std::memcpy(bytes.data(), memory.data(), kMiB); }));
    REQUIRE(guarded(bytes, [&] { std::memcpy(memory.data(), bytes.data(), kept); }));
    sigset_t blocked;
    REQUIRE(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0);
    REQUIRE(::sigismember(&blocked, SIGBUS) == 0);
  }
}

TEST_CASE("memory guard: faults are handled on the stack that a thread has for signals") {
  REQUIRE(install_memory_guard().ok());
  struct sigaction action {};
  REQUIRE(::sigaction(SIGBUS, nullptr, &action) == 0);
  CHECK((action.sa_flags & SA_ONSTACK) != 0);
  const End end = end_of([] {
    std::vector<char> memory(64 * kKiB);
    stack_t stack{};
    stack.ss_sp = memory.data();
    stack.ss_size = memory.size();
    const Shared shared(4096);
    if (::sigaltstack(&stack, nullptr) != 0 || shared.base == nullptr || !shared.cut(0)) ::_exit(1);
    for (int i = 0; i < 3; ++i) {
      std::byte into{};
      if (guarded(shared.bytes(), [&] { std::memcpy(&into, shared.base, 1); })) ::_exit(2);
    }
  });
  CHECK(end == End{});
}

}  // namespace
}  // namespace ho::test
