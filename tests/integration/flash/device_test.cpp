#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <sstream>
#include <thread>

#include "common/base/prng.hpp"
#include "tests/integration/flash/flash_file.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using namespace ho::flash;

#define SKIP_WITHOUT_FLASH(folder) \
  if (const std::string why = test::no_flash_here(folder); !why.empty()) return test::skip(why)

std::string refusal(const std::string& path) {
  const auto store = test::open_store({path}, 1);
  return store ? "" : store.error().message();
}

}  // namespace

TEST_CASE("flash device: each kind of unusable path has its own message") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  CHECK(refusal(path) == "not-found: flash path " + path +
                             ": does not exist; make it with: (umask 077; fallocate -l SIZE " +
                             path + ")");
  test::make_file(path, 100 * kKiB);
  CHECK(refusal(path) ==
        "invalid-argument: " + path + ": too small: 100 KiB, at least 1.00 MiB are needed");
  CHECK(refusal(folder.path("")) == "invalid-argument: flash path " + folder.path("") +
                                        ": is neither a file nor a block device");
  CHECK(refusal("/dev/null").find("neither a file nor a block device") != std::string::npos);
  if (::geteuid() != 0) {
    test::make_file(path, 2 * kMiB);
    REQUIRE(::chmod(path.c_str(), 0400) == 0);
    CHECK(refusal(path) ==
          "permission-denied: flash path " + path + ": not writable for this user");
  }
}

TEST_CASE("flash device: a path in memory is refused") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = "/dev/shm/ho-flash-test-" + std::to_string(::getpid());
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid() || ::ftruncate(file.get(), 2 * kMiB) != 0) return test::skip("no /dev/shm");
  const std::string message = refusal(path);
  ::unlink(path.c_str());
  const bool no_direct =
      message.find("does not support direct I/O (O_DIRECT)") != std::string::npos;
  const bool in_memory = message.find("is in memory (tmpfs), not on a device") != std::string::npos;
  CHECK((no_direct || in_memory));
}

TEST_CASE("flash device: a path that another process has open is in use, and free afterwards") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  test::make_file(path, 2 * kMiB);
  {
    const auto first = test::open_store({path}, 1);
    REQUIRE(first.ok());
    CHECK(refusal(path) == "conflict: flash path " + path + ": in use by another daemon (locked)");
  }
  CHECK(refusal(path).empty());
}

TEST_CASE("flash device: a file that other users can read or write is refused") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  test::make_file(path, 2 * kMiB);
  for (const mode_t mode : {0644U, 0640U, 0620U, 0602U}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    std::ostringstream octal;
    octal << "0" << std::oct << mode;
    CHECK(refusal(path) == "permission-denied: flash path " + path +
                               ": other users can read or write it (mode " + octal.str() +
                               "); chmod 600 it");
  }
  REQUIRE(::chmod(path.c_str(), 0700) == 0);
  CHECK(refusal(path).empty());
}

TEST_CASE("flash device: a process that can only read a file cannot keep it from being used") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  test::make_file(path, 2 * kMiB);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::flock(reader.get(), LOCK_EX) == 0);
  CHECK(refusal(path).empty());
  struct flock all {};
  all.l_type = F_RDLCK;
  // Waits: the system ends the last device's ring, and with it the lock, a little later.
  REQUIRE(::fcntl(reader.get(), F_OFD_SETLKW, &all) == 0);
  CHECK(refusal(path).empty());
}

TEST_CASE("flash device: a path with foreign bytes is refused and not changed") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  test::make_file(path, 2 * kMiB);
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const std::string text = "precious";
  REQUIRE(::pwrite(file.get(), text.data(), text.size(), 0) == 8);
  const std::string message = refusal(path);
  CHECK(message.find("corrupt: " + path + ": not a flash path of HyperOffload") == 0);
  CHECK(message.find("blkdiscard --zeroout") != std::string::npos);
  std::string back(8, ' ');
  REQUIRE(::pread(file.get(), back.data(), back.size(), 0) == 8);
  CHECK(back == text);
}

TEST_CASE("flash device: a sparse file is allocated to its full length") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  test::make_file(path, 4 * kMiB);
  REQUIRE(test::open_store({path}, 1).ok());
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK(info.st_blocks * 512 >= 4 * 1024 * 1024);
}

TEST_CASE("flash device: a file whose holes have no room is refused, and gets none of it") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  struct statvfs room {};
  REQUIRE(::statvfs(folder.path("").c_str(), &room) == 0);
  const std::string path = folder.path("flash");
  test::make_file(path, std::uint64_t{room.f_bfree} * room.f_frsize + 1024 * 1024 * kMiB);
  const auto store = test::open_store({path}, 1);
  REQUIRE_FALSE(store.ok());
  CHECK(store.error().context().find("cannot allocate its full length") != std::string::npos);
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK(info.st_blocks == 0);
}

TEST_CASE("flash device: extents over several files survive a restart, whatever their alignment") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  std::vector<std::string> paths;
  for (const char* name : {"a", "b", "c"}) {
    paths.push_back(folder.path(name));
    test::make_file(paths.back(), 16 * kMiB);
  }
  const std::uint64_t length = 5 * kMiB + 12345;
  std::vector<std::byte> data(length + 1);
  Prng random(4);
  for (std::byte& each : data) each = static_cast<std::byte>(random.next());
  ExtentId extent;
  {
    auto store = test::open_store(paths, 1);
    REQUIRE(store.ok());
    const auto made = (*store)->create({length, Policy::kDurable, 0, 77, "uid 1000", "trainer"});
    REQUIRE(made.ok());
    extent = *made;
    // Misaligned in memory and on the path; then overwritten in two halves.
    REQUIRE((*store)->submit(test::write_op(OpId(1), extent, 0, std::span(data).subspan(1))).ok());
    CHECK(test::wait_for_one(**store).done.code == Errc::kOk);
    for (std::size_t i = 3 * kMiB + 77; i < data.size(); ++i) data[i] ^= std::byte{0x5a};
    const auto tail = std::span(data).subspan(3 * kMiB + 77);
    REQUIRE((*store)->submit(test::write_op(OpId(2), extent, 3 * kMiB + 76, tail)).ok());
    const auto done = test::wait_for_one(**store);
    CHECK(done.done.code == Errc::kOk);
    CHECK(done.done.moved_bytes == tail.size());
    REQUIRE((*store)->close().ok());
  }
  auto store = test::open_store(paths, 2);
  REQUIRE(store.ok());
  REQUIRE((*store)->find(extent).has_value());
  CHECK((*store)->find(extent)->about.owner == "uid 1000");
  CHECK((*store)->find(extent)->about.label == "trainer");
  CHECK((*store)->opens(extent, 77));
  CHECK_FALSE((*store)->opens(extent, 78));
  std::vector<std::byte> back(length);
  REQUIRE((*store)->submit(test::read_op(OpId(3), extent, 0, back)).ok());
  CHECK(test::wait_for_one(**store).done.code == Errc::kOk);
  CHECK(std::memcmp(back.data(), data.data() + 1, length) == 0);
  REQUIRE(
      (*store)->submit(test::read_op(OpId(4), extent, 4097, std::span(back).first(2 * kMiB))).ok());
  CHECK(test::wait_for_one(**store).done.code == Errc::kOk);
  CHECK(std::memcmp(back.data(), data.data() + 1 + 4097, 2 * kMiB) == 0);
}

TEST_CASE("flash device: reads of a truncated file fail with an I/O error") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  test::make_file(path, 4 * kMiB);
  auto store = test::open_store({path}, 1);
  REQUIRE(store.ok());
  const auto extent = (*store)->create({64 * kKiB, Policy::kScratch});
  REQUIRE(extent.ok());
  std::vector<std::byte> data(64 * kKiB, std::byte{3});
  REQUIRE((*store)->submit(test::write_op(OpId(1), *extent, 0, data)).ok());
  REQUIRE(test::wait_for_one(**store).done.code == Errc::kOk);
  REQUIRE(::truncate(path.c_str(), 64 * kKiB) == 0);
  REQUIRE((*store)->submit(test::read_op(OpId(2), *extent, 0, data)).ok());
  CHECK(test::wait_for_one(**store).done.code == Errc::kIo);
}

TEST_CASE("flash device: a wait ends when another thread wakes it") {
  const test::TempFolder folder;
  SKIP_WITHOUT_FLASH(folder);
  const std::string path = folder.path("flash");
  test::make_file(path, 2 * kMiB);
  auto device = make_uring_device({{path}});
  REQUIRE(device.ok());
  for (int i = 0; i < 20; ++i) {
    std::thread waker([&] { (*device)->wake(); });
    (*device)->wait(std::chrono::seconds(20));
    waker.join();
    CHECK((*device)->poll({}) == 0);
  }
}
