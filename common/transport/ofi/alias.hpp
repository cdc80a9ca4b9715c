#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "common/base/result.hpp"
#include "common/transport/target.hpp"

namespace ho::transport {

/// Second mappings of exposed memory, which the target serves instead of the daemon's own.
///
/// Why: closing a libfabric registration stops new accesses, but a transfer caught half-way goes on
/// into the addresses it was given. So retire() remaps the alias to fresh memory: such a transfer
/// reads zeros and writes to nowhere, and the pages of the segment are out of reach. No protection
/// is used, because libfabric also copies with plain stores, which would end the daemon.
/// A retired range stays reserved until newer ones have used up the limits below, so it is never
/// handed to a later segment while a stuck transfer may still know it. Owner thread: the target's.
class AliasSpace {
 public:
  AliasSpace() = default;
  AliasSpace(const AliasSpace&) = delete;
  AliasSpace& operator=(const AliasSpace&) = delete;
  ~AliasSpace();

  /// @return the alias, not faulted in; kInvalidArgument (not page-aligned); kExhausted: the
  /// process has no mapping left (vm.max_map_count); kUnsupported: the descriptor cannot be mapped.
  [[nodiscard]] Result<std::span<std::byte>> open(const ExposeRequest& request);
  /// Cuts the alias off from the memory behind it. @return kIo: that cannot be done, and the memory
  /// behind it may still be reached.
  [[nodiscard]] Result<void> retire(std::span<std::byte> alias);

  /// Address space kept by retired aliases; 4 TiB of the 128 TiB a process has.
  static constexpr std::uint64_t kReservedBytesMax = std::uint64_t{1} << 42U;
  /// How many there may be: a process has 65530 mappings by default.
  static constexpr std::size_t kReservedCountMax = 1024;

 private:
  std::deque<std::span<std::byte>> retired_;
  std::uint64_t retired_bytes_ = 0;
};

}  // namespace ho::transport
