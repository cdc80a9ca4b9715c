#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/system/unique_fd.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/temp_folder.hpp"

namespace ho::test {

inline void make_file(const std::string& path, std::uint64_t bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file.valid());
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
}

/// The reason why flash cannot be tested here; empty: it can.
inline std::string no_flash_here(const TempFolder& folder) {
  make_file(folder.path("probe"), kMiB);
  const auto device = flash::make_uring_device({{folder.path("probe")}});
  ::unlink(folder.path("probe").c_str());
  if (device || device.error().code() != Errc::kUnsupported) return "";
  return device.error().message();
}

inline Result<std::unique_ptr<flash::ExtentStore>> open_store(const std::vector<std::string>& paths,
                                                              std::uint64_t salt) {
  auto device = flash::make_uring_device({paths});
  if (!device) return device.error();
  flash::ExtentStore::Options options;
  options.salt = salt;
  options.time = std::chrono::sys_days(std::chrono::days(1));
  options.new_set[0] = std::byte{1};
  flash::Findings findings;
  return flash::ExtentStore::open(std::move(*device), options, findings);
}

inline flash::StoreCompletion wait_for_one(flash::ExtentStore& store) {
  flash::StoreCompletion done;
  for (int i = 0; i < 1000; ++i) {
    if (store.poll(std::span(&done, 1)) == 1) return done;
    store.wait(std::chrono::milliseconds(10));
  }
  FAIL("a flash operation never ended");
  return done;
}

}  // namespace ho::test
