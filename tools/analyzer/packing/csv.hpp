#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace ho::packing {

/// One row: bytes needed during the half-open time [lower, upper), in any unit of time.
struct Buffer {
  std::string id;
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  std::int64_t size = 0;
};

inline constexpr std::size_t kBuffersMax = 4'000'000;
inline constexpr std::size_t kCsvBytesMax = std::size_t{1} << 28;
inline constexpr std::size_t kIdBytesMax = 256;
inline constexpr std::int64_t kNumberMax = std::int64_t{1}
                                           << 60;  ///< limit for times, and for the sum of sizes

/// Reads a header with the columns id, lower, upper and size in any order, then one buffer per
/// line. Other columns are ignored, up to 64 in all, so what write_offsets() wrote can be read.
/// Lines end in LF or CRLF. Ignores empty lines at the end and blanks around fields. No quotes.
/// @return kInvalidArgument naming line and field: wrong columns, an invalid or negative number or
/// one above kNumberMax, lower >= upper, size 0, an id that is empty, too long or repeated, sizes
/// that sum to more than kNumberMax. kOutOfRange: too many bytes or buffers.
[[nodiscard]] Result<std::vector<Buffer>> read_buffers(std::string_view csv);

/// Writes the same rows in the same order with a column `offset`. `offsets` is parallel to
/// `buffers`.
[[nodiscard]] std::string write_offsets(const std::vector<Buffer>& buffers,
                                        const std::vector<std::int64_t>& offsets);

}  // namespace ho::packing
