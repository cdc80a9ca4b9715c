// Jobs with KV blocks, for the tests of blocks.
#pragma once

#include <hyperoffload/blocks.h>
#include <poll.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <hyperoffload/blocks.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "tests/integration/client/two_nodes.hpp"

namespace ho::test {

constexpr std::uint64_t kBlockBytes = 64 * kKiB;  // 32 a segment

inline PoolSpec blocks_spec() {
  PoolSpec out;
  out.blocks_bytes = 8 * kMiB;
  return out;
}

inline std::string block_key(std::uint64_t number) {
  std::string out(16, '\0');
  std::memcpy(out.data(), &number, sizeof(number));
  return out;
}

/// A job with open blocks and memory for `kSlots` of them.
class BlocksJob {
 public:
  static constexpr std::size_t kSlots = 64;

  explicit BlocksJob(const std::string& address, const char* transport = "auto",
                     const char* tenant = "chat", const char* layout = "")
      : pool_(connect_pool(address, transport)), memory_(kSlots * kBlockBytes) {
    REQUIRE(ho_register(pool_.get(), memory_.data(), memory_.size()) == HO_OK);
    ho_blocks_options options{};
    options.tenant = tenant;
    options.model = "llama";
    options.layout = layout;
    options.block_bytes = &kBlockBytes;
    options.block_bytes_count = 1;
    options.deadline_ms = 1500;
    blocks_.emplace(pool_.get(), options);
  }

  [[nodiscard]] std::byte* slot(std::size_t at) { return memory_.data() + at * kBlockBytes; }
  [[nodiscard]] hyperoffload::Blocks& blocks() { return *blocks_; }
  [[nodiscard]] ho_pool* pool() { return pool_.get(); }
  void fill(std::size_t at, std::uint64_t number) {
    Prng random(number + 1);
    for (std::size_t i = 0; i < kBlockBytes; i += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(slot(at) + i, &word, 8);
    }
  }
  [[nodiscard]] bool holds(std::size_t at, std::uint64_t number) {
    std::vector<std::byte> found(slot(at), slot(at) + kBlockBytes);
    fill(at, number);
    return std::memcmp(found.data(), slot(at), kBlockBytes) == 0;
  }
  /// Runs one request over keys first .. first + count - 1, in slots 0 .. count - 1, and waits.
  std::vector<ho_status> run(ho_blocks_op op, std::uint64_t first, std::size_t count) {
    std::vector<std::string> keys;
    std::vector<ho_block> items;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(block_key(first + i));
    for (std::size_t i = 0; i < count; ++i) {
      items.push_back({keys[i].data(), keys[i].size(), slot(i % kSlots), kBlockBytes, 0});
    }
    const std::uint64_t ticket = blocks_->submit(op, items);
    std::vector<ho_status> out(count, HO_CANCELED);
    for (std::size_t left = count; left > 0;) {
      pollfd ready{blocks_->event_fd(), POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 20'000) == 1);
      for (const ho_block_done& done : blocks_->drain()) {
        REQUIRE(done.ticket == ticket);
        REQUIRE(out.at(done.index) == HO_CANCELED);
        out[done.index] = done.status;
        left -= 1;
      }
    }
    return out;
  }
  std::vector<ho_status> put(std::uint64_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) fill(i, first + i);
    return run(HO_BLOCKS_PUT, first, count);
  }
  /// Gets blocks and checks the bytes of those that it found. @return how many it found.
  std::size_t get(std::uint64_t first, std::size_t count) {
    std::memset(memory_.data(), 0, memory_.size());
    const auto found = run(HO_BLOCKS_GET, first, count);
    std::size_t hits = 0;
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE((found[i] == HO_OK || found[i] == HO_NOT_FOUND));
      if (found[i] != HO_OK) continue;
      hits += 1;
      REQUIRE(holds(i, first + i));
    }
    return hits;
  }

 private:
  PoolHandle pool_;
  std::vector<std::byte> memory_;
  std::optional<hyperoffload::Blocks> blocks_;
};

inline std::size_t count_of(const std::vector<ho_status>& all, ho_status status) {
  return static_cast<std::size_t>(std::count(all.begin(), all.end(), status));
}

}  // namespace ho::test
