#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using test::DaemonProcess;
using test::make_file;
using test::no_flash_here;
using test::with_flash;

}  // namespace

TEST_CASE(
    "daemon flash: status shows each path, its space, wear and budget, also after a restart") {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  make_file(path, 8 * kMiB);
  if (const std::string why = no_flash_here(path); !why.empty()) return test::skip(why);
  std::uint64_t written = 0;
  for (int start = 0; start < 2; ++start) {
    const std::string tag = "flash" + std::to_string(start);
    DaemonProcess daemon(
        folder, tag, {with_flash(folder, path, "write_bytes_per_day_max: 123456789"), {}, false});
    const auto client = test::connect(test::unix_address(folder));
    const auto status = client->status(test::soon());
    REQUIRE(status.ok());
    CHECK(status->flash_off.empty());
    REQUIRE(status->flash.size() == 1);
    CHECK(status->flash[0].path == path);
    CHECK(status->flash[0].capacity_bytes > 7 * kMiB);
    CHECK(status->flash[0].free_bytes == status->flash[0].capacity_bytes);
    CHECK(status->flash[0].write_bytes_per_day_max == 123456789);
    CHECK(status->flash[0].written_total_bytes > written);
    CHECK_FALSE(status->flash[0].read_only);
    written = status->flash[0].written_total_bytes;
    daemon.send(SIGTERM);
    CHECK(daemon.wait().code == 0);
  }
}

TEST_CASE("daemon flash: SIGTERM under load ends in its time, and what was acknowledged stays",
          "[time]") {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  make_file(path, 64 * kMiB);
  if (const std::string why = no_flash_here(path); !why.empty()) return test::skip(why);
  constexpr std::uint64_t kBytes = kMiB;
  constexpr std::size_t kInflight = 24;
  // The config's drain time, and what node.cpp adds for memory still being taken back.
  constexpr auto kBound = std::chrono::seconds(1 + 5);
  FlashExtent extent;
  std::size_t acknowledged = 0;
  {
    DaemonProcess daemon(folder, "loaded", {with_flash(folder, path), {}, false});
    test::StagingClient client(test::unix_address(folder));
    extent = client.allocate(16 * kBytes, FlashPolicy::kDurable);
    test::fill(client.memory().first(kBytes), 4);
    std::deque<test::StagingClient::Outcome> outcomes;
    std::uint64_t next = 0;
    const auto start = [&] {
      const std::uint64_t offset = next++ % 16 * kBytes;
      outcomes.push_back(
          client.start(client.spec(StageDirection::kOut, extent, offset, 0, kBytes)));
    };
    while (outcomes.size() < kInflight) start();
    std::chrono::steady_clock::time_point told;
    bool stopping = false;
    while (!outcomes.empty()) {
      REQUIRE(outcomes.front().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
      const bool done = outcomes.front().get().ok();
      outcomes.pop_front();
      if (done) ++acknowledged;
      if (acknowledged == 100 && !stopping) {
        told = std::chrono::steady_clock::now();
        stopping = true;
        daemon.send(SIGTERM);
      }
      if (done) start();  // until the daemon refuses
    }
    REQUIRE(stopping);
    CHECK(daemon.wait().code == 0);
    CHECK(std::chrono::steady_clock::now() - told < test::within(kBound + std::chrono::seconds(1)));
  }
  REQUIRE(acknowledged >= 100);
  DaemonProcess daemon(folder, "again", {with_flash(folder, path), {}, false});
  test::StagingClient client(test::unix_address(folder));
  REQUIRE(client.control().flash_open(client.session(), extent, test::soon()).ok());
  for (std::uint64_t i = 0; i < 16; ++i) {
    REQUIRE(client.stage(client.spec(StageDirection::kIn, extent, i * kBytes, 0, kBytes)).ok());
    CHECK(test::filled(client.memory().first(kBytes), 4));
  }
}

TEST_CASE("daemon flash: a block that rots after its ack and a SIGKILL is corrupt, never old") {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  make_file(path, 8 * kMiB);
  if (const std::string why = no_flash_here(path); !why.empty()) return test::skip(why);
  constexpr std::uint64_t kBytes = 64 * kKiB;
  FlashExtent extent;
  {
    DaemonProcess daemon(folder, "acked", {with_flash(folder, path), {}, false});
    test::StagingClient client(test::unix_address(folder));
    extent = client.allocate(kBytes, FlashPolicy::kDurable);
    for (const std::uint64_t seed : {5U, 6U}) {
      test::fill(client.memory().first(kBytes), seed);
      REQUIRE(client.stage(client.spec(StageDirection::kOut, extent, 0, 0, kBytes)));
    }
    daemon.send(SIGKILL);  // at the ack: no frame says that the last one is safe
    CHECK(daemon.wait().signal == SIGKILL);
  }
  std::vector<std::byte> bytes(kBytes);
  test::fill(bytes, 6);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::string device{std::istreambuf_iterator<char>(file), {}};
  const std::string block(reinterpret_cast<const char*>(bytes.data()) + 3 * 4096, 4096);
  const std::size_t at = device.find(block);
  REQUIRE(at != std::string::npos);
  file.clear();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(block[0] ^ 1));
  file.close();

  const DaemonProcess daemon(folder, "again", {with_flash(folder, path), {}, false});
  test::StagingClient client(test::unix_address(folder));
  REQUIRE(client.control().flash_open(client.session(), extent, test::soon()).ok());
  const auto broken = client.stage(client.spec(StageDirection::kIn, extent, 0, 0, kBytes));
  REQUIRE_FALSE(broken.ok());
  CHECK(broken.error().code() == Errc::kCorrupt);
  CHECK(broken.error().context().find("block 3") != std::string::npos);
  REQUIRE(client.stage(client.spec(StageDirection::kIn, extent, 0, 0, 3 * 4096)));
}

TEST_CASE("daemon flash: a path that is missing or in use keeps the daemon from starting") {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  {
    DaemonProcess daemon(folder, "missing", {with_flash(folder, path), {}, false});
    const test::Exit end = daemon.wait();
    CHECK(end.code > 0);
    CHECK((end.err.find(path + ": does not exist; make it with") != std::string::npos ||
           end.err.find("io_uring") != std::string::npos));
  }
  make_file(path, 8 * kMiB);
  if (const std::string why = no_flash_here(path); !why.empty()) return test::skip(why);
  const auto held = flash::make_uring_device({{path}});
  REQUIRE(held.ok());
  DaemonProcess daemon(folder, "locked", {with_flash(folder, path), {}, false});
  const test::Exit end = daemon.wait();
  CHECK(end.code > 0);
  CHECK(end.err.find(path + ": in use by another daemon (locked)") != std::string::npos);
}

TEST_CASE(
    "daemon flash: --check-config finds paths that are missing, open to others, foreign or in "
    "use") {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  const auto check = [&] {
    DaemonProcess daemon(folder, "check", {with_flash(folder, path), {}, true});
    return daemon.wait();
  };
  const auto says = [](const test::Exit& end, const std::string& words) {
    INFO(end.err);
    CHECK(end.code == 2);
    CHECK(end.err.find("check.textproto:") != std::string::npos);
    CHECK(end.err.find(words) != std::string::npos);
  };
  make_file(path, 8 * kMiB);
  if (const std::string why = no_flash_here(path); !why.empty()) return test::skip(why);
  CHECK(check().code == 0);
  CHECK(check().code == 0);  // it formats nothing
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  says(check(), "other users can read or write it (mode 0644)");
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file << "somebody's data";
  }
  says(check(), path);
  std::filesystem::remove(path);
  says(check(), path + ": does not exist");
  make_file(path, 8 * kMiB);
  const auto held = flash::make_uring_device({{path}});
  REQUIRE(held.ok());
  says(check(), path + ": in use by another daemon (locked)");
}

TEST_CASE("daemon flash: a relative path and one given twice are named with their lines") {
  const test::TempFolder folder;
  const std::string config = test::small_config(
      folder, "flash { path: \"here\" }\nflash { path: \"/x\" }\nflash { path: \"/x\" }\n");
  DaemonProcess daemon(folder, "wrong", {config, {}, true});
  const test::Exit end = daemon.wait();
  CHECK(end.code > 0);
  CHECK(end.err.find("flash: path: \"here\" is not an absolute path") != std::string::npos);
  CHECK(end.err.find("flash: path: \"/x\" is given twice") != std::string::npos);
}
