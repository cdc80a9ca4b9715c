#pragma once

#include <cstddef>
#include <memory>

#include "common/base/result.hpp"

namespace ho::gpt {

/// The memory that stands for an accelerator's: one mapping whose last byte lies right before a
/// page that cannot be touched, so that a kernel's overrun traps. Aligned to 64 bytes, faulted in,
/// in huge pages if the system has them. A resource.
class Arena {
 public:
  /// @param wanted_bytes  > 0; rounded up to a multiple of 64.
  /// @return kExhausted if the machine does not have the memory.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> create(std::uint64_t wanted_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::byte* data() const { return mapping_ + (body_bytes_ - bytes_); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  Arena(std::byte* mapping, std::uint64_t body_bytes, std::uint64_t bytes)
      : mapping_(mapping), body_bytes_(body_bytes), bytes_(bytes) {}

  std::byte* const mapping_;
  const std::uint64_t body_bytes_;  ///< without the last page
  const std::uint64_t bytes_;
};

}  // namespace ho::gpt
