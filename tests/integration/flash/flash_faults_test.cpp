// Flash that fails, under a real daemon: kernels' own errors, from loop devices and small file
// systems in a mount namespace that ends with this program.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "common/system/unique_fd.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "tests/integration/flash/real_devices.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using test::DaemonProcess;
using test::filled;
using test::LoopDevice;
using test::StagingClient;

constexpr auto kIn = StageDirection::kIn;
constexpr auto kOut = StageDirection::kOut;

#define SKIP_UNLESS(why)                           \
  if (const std::string no = (why); !no.empty()) { \
    ::ho::test::skip(no);                          \
    return;                                        \
  }

/// A folder with flash on it, or why there is none here.
struct Place {
  Place() : why_not(test::own_mounts()) {
    if (!why_not.empty()) return;
    test::make_file(folder.file("probe"), 2 * kMiB);
    why_not = test::no_flash_here(folder.file("probe"));
  }
  /// A small file system of that kind on a device of its own. @return where; "": not here.
  std::string file_system(const char* type, std::uint64_t bytes, unsigned long flags = 0) {
    const std::string image = folder.file(std::string(type) + ".image");
    test::make_file(image, bytes);
    const std::string make = std::string("mkfs.") + type + " -q -F " + image + " >/dev/null 2>&1";
    if (std::system(make.c_str()) != 0) return "";
    devices.emplace_back(image);
    const std::string where = folder.file(type);
    REQUIRE(::mkdir(where.c_str(), 0700) == 0);
    test::mount_at(devices.back().path(), where, type, flags);
    mounts.push_back(where);
    return where;
  }
  ~Place() {
    for (const std::string& where : mounts) ::umount2(where.c_str(), MNT_DETACH);
  }

  test::TempFolder folder;
  std::string why_not;
  std::deque<LoopDevice> devices;
  std::vector<std::string> mounts;
};

/// What a daemon says that does not start with this flash path.
std::string refusal(const test::TempFolder& folder, const std::string& path) {
  static int count = 0;
  DaemonProcess daemon(folder, "refused" + std::to_string(count++),
                       {test::with_flash(folder, path), {}, false});
  const test::Exit end = daemon.wait();
  CHECK(end.code > 0);
  return end.err;
}

bool says(const std::string& text, const std::string& what) {
  INFO(text);
  CHECK(text.find(what) != std::string::npos);
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "flash faults: each path that cannot be used keeps the daemon from starting, and says why") {
  Place place;
  SKIP_UNLESS(place.why_not);
  const test::TempFolder& folder = place.folder;
  const std::string path = folder.file("flash");
  says(refusal(folder, path), path + ": does not exist; make it with");
  test::make_file(path, 4096);
  says(refusal(folder, path), path + ": too small");
  REQUIRE(::unlink(path.c_str()) == 0);
  REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  says(refusal(folder, path), path + ": is neither a file nor a block device");

  test::mount_at("none", path, "tmpfs", 0, "size=16m");
  place.mounts.push_back(path);
  test::make_file(path + "/flash", 8 * kMiB);
  says(refusal(folder, path + "/flash"), "is in memory (tmpfs)");
  test::mount_at("none", path, "", MS_REMOUNT | MS_RDONLY);
  says(refusal(folder, path + "/flash"), "not writable for this user");
}

TEST_CASE("flash faults: a raw block device serves, is locked while in use, and keeps its bytes") {
  Place place;
  SKIP_UNLESS(place.why_not);
  const std::string image = place.folder.file("image");
  test::make_file(image, 16 * kMiB);
  const LoopDevice device(image);
  FlashExtent extent;
  for (int start = 0; start < 2; ++start) {
    DaemonProcess daemon(place.folder, "raw" + std::to_string(start),
                         {test::with_flash(place.folder, device.path()), {}, false});
    StagingClient client(test::unix_address(place.folder));
    if (start == 0) {
      extent = client.allocate(kMiB, FlashPolicy::kDurable);
      test::fill(client.memory().first(kMiB), 21);
      REQUIRE(client.stage(client.spec(kOut, extent, 0, 0, kMiB)));
      const auto second = flash::make_uring_device({{device.path()}});
      REQUIRE_FALSE(second.ok());
      CHECK(second.error().code() == Errc::kConflict);
    } else {
      REQUIRE(client.control().flash_open(client.session(), extent, test::soon()).ok());
      REQUIRE(client.stage(client.spec(kIn, extent, 0, 0, kMiB)));
      CHECK(filled(client.memory().first(kMiB), 21));
    }
    daemon.send(SIGTERM);
    CHECK(daemon.wait().code == 0);
  }
}

TEST_CASE("flash faults: a raw block device is waited for until its last user has let go") {
  Place place;
  SKIP_UNLESS(place.why_not);
  const std::string image = place.folder.file("image");
  test::make_file(image, 16 * kMiB);
  const LoopDevice device(image);
  UniqueFd last(::open(device.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC));
  REQUIRE(last.valid());
  std::thread user([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    last = UniqueFd();
  });
  const auto opened = flash::make_uring_device({{device.path()}});
  user.join();
  if (!opened) FAIL(opened.error().message());
}

TEST_CASE("flash faults: a file system that fills up gives a clear error, and reads go on") {
  Place place;
  SKIP_UNLESS(place.why_not);
  // ext2 cannot allocate ahead, so space runs out in the middle of a job.
  const std::string where = place.file_system("ext2", 8 * kMiB);
  if (where.empty()) return test::skip("no mkfs.ext2");
  const std::string path = where + "/flash";
  test::make_file(path, 32 * kMiB);
  const DaemonProcess daemon(place.folder, "full",
                             {test::with_flash(place.folder, path), {}, false});
  StagingClient client(test::unix_address(place.folder));
  const FlashExtent extent = client.allocate(16 * kMiB, FlashPolicy::kScratch);
  test::fill(client.memory().first(kMiB), 31);
  Result<void> refused;
  std::uint64_t written = 0;
  while (written < 16 && refused.ok()) {
    refused = client.stage(client.spec(kOut, extent, written * kMiB, 0, kMiB));
    if (refused.ok()) ++written;
  }
  REQUIRE_FALSE(refused.ok());
  REQUIRE(written > 0);
  INFO(refused.error().message());
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context().find(path) != std::string::npos);
  std::memset(client.memory().data(), 0, kMiB);
  REQUIRE(client.stage(client.spec(kIn, extent, 0, 0, kMiB)));
  CHECK(filled(client.memory().first(kMiB), 31));
  CHECK(client.control().status(test::soon()).ok());
}

TEST_CASE("flash faults: a device that fails writes gives I/O errors and is read only, not dead") {
  Place place;
  SKIP_UNLESS(place.why_not);
  // A device of 24 MiB over a file system of 12 MiB: what does not fit fails as a bad sector does.
  const std::string memory = place.folder.file("memory");
  REQUIRE(::mkdir(memory.c_str(), 0700) == 0);
  test::mount_at("none", memory, "tmpfs", 0, "size=12m");
  place.mounts.push_back(memory);
  test::make_file(memory + "/image", 24 * kMiB);
  const LoopDevice device(memory + "/image");
  FlashExtent first;
  {
    DaemonProcess daemon(place.folder, "failing",
                         {test::with_flash(place.folder, device.path()), {}, false});
    StagingClient client(test::unix_address(place.folder));
    first = client.allocate(kMiB, FlashPolicy::kDurable);
    test::fill(client.memory().first(kMiB), 41);
    REQUIRE(client.stage(client.spec(kOut, first, 0, 0, kMiB)));
    const FlashExtent more = client.allocate(18 * kMiB, FlashPolicy::kDurable);
    Result<void> failed;
    for (std::uint64_t i = 0; i < 18 && failed.ok(); ++i) {
      failed = client.stage(client.spec(kOut, more, i * kMiB, 0, kMiB));
    }
    REQUIRE_FALSE(failed.ok());
    INFO(failed.error().message());
    CHECK((failed.error().code() == Errc::kIo || failed.error().code() == Errc::kExhausted));
    CHECK(failed.error().context().find(device.path()) != std::string::npos);
    std::memset(client.memory().data(), 0, kMiB);
    REQUIRE(client.stage(client.spec(kIn, first, 0, 0, kMiB)));
    CHECK(filled(client.memory().first(kMiB), 41));
    daemon.send(SIGKILL);
    CHECK(daemon.wait().signal == SIGKILL);
  }
  // Room again, and a new start: what was acknowledged is there.
  test::mount_at("none", memory, "", MS_REMOUNT, "size=64m");
  const DaemonProcess daemon(place.folder, "mended",
                             {test::with_flash(place.folder, device.path()), {}, false});
  StagingClient client(test::unix_address(place.folder));
  REQUIRE(client.control().flash_open(client.session(), first, test::soon()).ok());
  REQUIRE(client.stage(client.spec(kIn, first, 0, 0, kMiB)));
  CHECK(filled(client.memory().first(kMiB), 41));
}

TEST_CASE("flash faults: a job that cuts its segment short under load harms its own stages only") {
  test::TempFolder folder;
  const std::string path = folder.file("flash");
  test::make_file(path, 16 * kMiB);
  SKIP_UNLESS(test::no_flash_here(path));
  const DaemonProcess daemon(folder, "cut", {test::with_flash(folder, path), {}, false});
  StagingClient bystander(test::unix_address(folder));
  const FlashExtent kept = bystander.allocate(kMiB, FlashPolicy::kScratch);
  test::fill(bystander.memory().first(kMiB), 51);
  REQUIRE(bystander.stage(bystander.spec(kOut, kept, 0, 0, kMiB)));
  for (int round = 0; round < 5; ++round) {
    StagingClient client(test::unix_address(folder));
    const FlashExtent extent = client.allocate(2 * kMiB, FlashPolicy::kScratch);
    REQUIRE(client.stage(client.spec(kOut, extent, 0, 0, 2 * kMiB)));
    std::vector<StagingClient::Outcome> outcomes;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::uint64_t offset = i % 2 == 0 ? 0 : 64;  // straight, and by a buffer
      outcomes.push_back(
          client.start(client.spec(i % 4 < 2 ? kOut : kIn, extent, offset, offset, kMiB)));
      if (i == 10) REQUIRE(::ftruncate(client.descriptor(), 0) == 0);
    }
    int failed = 0;
    for (auto& outcome : outcomes) {
      REQUIRE(outcome.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
      failed += outcome.get().ok() ? 0 : 1;
    }
    CHECK(failed > 0);
    REQUIRE(client.control().close_session(client.session(), test::soon()));
  }
  std::memset(bystander.memory().data(), 0, kMiB);
  REQUIRE(bystander.stage(bystander.spec(kIn, kept, 0, 0, kMiB)));
  CHECK(filled(bystander.memory().first(kMiB), 51));
}
