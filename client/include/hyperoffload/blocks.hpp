// HyperOffload client library for C++17: an owner of KV blocks over the C ABI. blocks.h is the
// reference. SPDX-License-Identifier: Apache-2.0
#ifndef HYPEROFFLOAD_BLOCKS_HPP_
#define HYPEROFFLOAD_BLOCKS_HPP_

#include <hyperoffload/blocks.h>
#include <hyperoffload/hyperoffload.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hyperoffload {

/// A tenant's blocks. It must not outlive its Pool.
class Blocks {
 public:
  /// `options.struct_bytes` need not be set.
  Blocks(ho_pool* pool, ho_blocks_options options) {
    options.struct_bytes = sizeof(options);
    check(ho_blocks_open(pool, &options, &handle_));
  }
  Blocks(Blocks&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Blocks& operator=(Blocks&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Blocks() { ho_blocks_close(handle_); }

  ho_blocks* get() const noexcept { return handle_; }
  int event_fd() const noexcept { return ho_blocks_event_fd(handle_); }
  std::uint64_t submit(ho_blocks_op op, const std::vector<ho_block>& items) {
    std::uint64_t ticket = 0;
    check(ho_blocks_submit(handle_, op, items.data(), items.size(), &ticket));
    return ticket;
  }
  /// The outcomes that are ready, at most `most`.
  std::vector<ho_block_done> drain(std::size_t most = 256) {
    std::vector<ho_block_done> done(most);
    done.resize(ho_blocks_drain(handle_, done.data(), done.size()));
    return done;
  }
  /// How many leading items are stored, and the pin that keeps them.
  struct Match {
    std::size_t found = 0;
    std::uint64_t pin = 0;
  };
  Match match(const std::vector<ho_block>& chain) {
    Match out;
    check(ho_blocks_match(handle_, chain.data(), chain.size(), &out.found, &out.pin));
    return out;
  }
  void unpin(std::uint64_t pin) { check(ho_blocks_unpin(handle_, pin)); }

 private:
  ho_blocks* handle_ = nullptr;
};

}  // namespace hyperoffload

#endif
