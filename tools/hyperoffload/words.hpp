#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.hpp"

namespace ho::cli {

/// Tells people what went wrong: "hyperoffload COMMAND: context" on stderr. @return kExitBadInput.
int complain(std::string_view command, const Error& error);

/// `text` (UTF-8) made safe for a terminal: controls, marks that change the direction of what
/// follows, and bytes that are no UTF-8 become '?'.
[[nodiscard]] std::string printable(std::string_view text);

/// A memory size as the command line takes it: bytes ("4096", "28GiB") or a share of a peak
/// ("60%").
struct MemorySize {
  std::optional<std::uint64_t> bytes;
  double percent = 0;  ///< where `bytes` is absent; above 0

  [[nodiscard]] std::uint64_t of(std::uint64_t peak_bytes) const;
};

/// @return nothing where the text is neither, is zero, or is above 10,000 %.
[[nodiscard]] std::optional<MemorySize> parse_memory_size(std::string_view text);

/// Up to `count` of `names` that look most like `wanted` (edit distance, or containing it), best
/// first, each once. Looks at the first 100,000 names.
[[nodiscard]] std::vector<std::string> closest_names(std::string_view wanted,
                                                     const std::vector<std::string_view>& names,
                                                     std::size_t count);

}  // namespace ho::cli
