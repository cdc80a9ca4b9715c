#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "common/base/units.hpp"
#include "daemon/tier/flash/uring_device.hpp"
#include "tests/integration/daemon/staging_client.hpp"

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
  if (const std::string why = no_flash_here(path); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
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
  if (const std::string why = no_flash_here(path); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const auto held = flash::make_uring_device({{path}});
  REQUIRE(held.ok());
  DaemonProcess daemon(folder, "locked", {with_flash(folder, path), {}, false});
  const test::Exit end = daemon.wait();
  CHECK(end.code > 0);
  CHECK(end.err.find(path + ": in use by another daemon (locked)") != std::string::npos);
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
