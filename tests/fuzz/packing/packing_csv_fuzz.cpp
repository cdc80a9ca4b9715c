#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.hpp"
#include "tools/analyzer/packing/csv.hpp"
#include "tools/analyzer/packing/solve.hpp"
#include "tools/analyzer/packing/validate.hpp"

/// Parses any bytes as a file of buffers: an error, or buffers that are then packed correctly.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ho::packing;
  const auto buffers = read_buffers({reinterpret_cast<const char*>(data), size});
  if (!buffers) return 0;
  std::vector<Lifetime> lifetimes;
  for (const Buffer& each : *buffers) lifetimes.push_back({each.lower, each.upper, each.size});
  Budget budget(2'000'000);
  const Solution solution = solve(lifetimes, 0, {}, budget);
  HO_CHECK(!find_violation(*buffers, solution.offsets, solution.height_bytes));
  const auto rows = write_offsets(*buffers, solution.offsets);
  HO_CHECK(rows.starts_with("id,lower,upper,size,offset\n"));
  return 0;
}
