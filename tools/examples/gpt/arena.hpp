#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/result.hpp"

namespace ho::gpt {

/// The memory that stands in for an accelerator's: one anonymous mapping whose last byte lies right
/// before a page that cannot be touched, so that a kernel's overrun traps. Aligned to 64 bytes,
/// faulted in when made, huge pages where the system has them. A resource.
class Arena {
 public:
  /// @param bytes  rounded up to a multiple of 64; > 0.
  /// @return kExhausted where the system does not give the memory.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> create(std::uint64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  Arena(void* mapping, std::size_t mapping_bytes, std::byte* data, std::uint64_t bytes)
      : mapping_(mapping), mapping_bytes_(mapping_bytes), data_(data), bytes_(bytes) {}

  void* mapping_;
  std::size_t mapping_bytes_;
  std::byte* data_;
  std::uint64_t bytes_;
};

}  // namespace ho::gpt
