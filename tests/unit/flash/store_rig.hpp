#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/support/sim_flash.hpp"

namespace ho::test {

using flash::ExtentId;
using flash::ExtentStore;
using flash::Findings;
using flash::Policy;
using flash::StoreCompletion;

/// The beginning of a day, counted from 1970.
inline std::chrono::sys_seconds day_of(std::uint32_t day) {
  return std::chrono::sys_days(std::chrono::days(day));
}

/// A store over simulated disks, one operation at a time.
struct StoreRig {
  explicit StoreRig(std::uint64_t bytes = 2 * kMiB) {
    disks.push_back(std::make_shared<SimDisk>(bytes));
  }
  Result<void> open(std::uint64_t budget = 0, std::uint32_t day = 10) {
    store.reset();
    ExtentStore::Options options;
    options.ops_max = 8;
    options.bounce_buffers = 2;
    options.time = day_of(day);
    options.salt = ++salt;
    options.write_bytes_per_day_max = {budget};
    options.extents_max = extents_max;
    options.new_set[0] = set;
    options.left = left;
    findings.clear();
    std::unique_ptr<flash::Device> used = std::move(device);
    if (used == nullptr) {
      auto made = std::make_unique<SimFlash>(disks, salt, faults);
      sim = made.get();
      used = std::move(made);
    }
    auto opened = ExtentStore::open(std::move(used), options, findings);
    if (!opened) return opened.error();
    store = std::move(*opened);
    return {};
  }
  ExtentId create(std::uint64_t bytes, Policy policy = Policy::kDurable) {
    const auto made = store->create({bytes, policy, 1});
    REQUIRE(made.ok());
    return *made;
  }
  StoreCompletion wait() {
    StoreCompletion done;
    for (int i = 0; i < 100000; ++i) {
      if (store->poll(std::span(&done, 1)) == 1) return done;
    }
    FAIL("no completion");
    return done;
  }
  StoreCompletion write(ExtentId extent, std::uint64_t offset, std::span<const std::byte> bytes) {
    REQUIRE(store->submit(write_op(OpId(1), extent, offset, bytes)).ok());
    return wait();
  }
  /// Opens the store, writes a whole extent of 64 KiB with each value in turn, and cuts the power.
  ExtentId write_and_cut(std::initializer_list<unsigned> values) {
    REQUIRE(open().ok());
    const ExtentId extent = create(64 * kKiB);
    for (const unsigned value : values) {
      const std::vector<std::byte> bytes(64 * kKiB, static_cast<std::byte>(value));
      REQUIRE(write(extent, 0, bytes).done.code == Errc::kOk);
    }
    sim->cut();
    return extent;
  }
  StoreCompletion read(ExtentId extent, std::uint64_t offset, std::span<std::byte> into) {
    REQUIRE(store->submit(read_op(OpId(2), extent, offset, into)).ok());
    return wait();
  }

  std::vector<std::shared_ptr<SimDisk>> disks;
  std::unique_ptr<flash::Device> device;  ///< for the next open(), instead of a simulated one
  SimFlash* sim = nullptr;
  std::unique_ptr<ExtentStore> store;
  Findings findings;  ///< findings of the last open()
  std::uint64_t salt = 0;
  std::size_t extents_max = 1000;
  SimFlashFaults faults;
  std::byte set{};   ///< for formatting
  std::string left;  ///< by the last store
};

inline std::vector<std::byte> bytes_of(std::size_t count, unsigned value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

}  // namespace ho::test
