#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ho::cli {

/// Up to `count` of `names` that look most like `wanted` (edit distance, or containing it), best
/// first, each once. Looks at the first 100,000 names.
[[nodiscard]] std::vector<std::string> closest_names(std::string_view wanted,
                                                     const std::vector<std::string_view>& names,
                                                     std::size_t count);

/// `; did you mean "--a", "--b"?` of the three closest names, each behind `prefix`, or nothing
/// where none is close.
[[nodiscard]] std::string did_you_mean(std::string_view wanted,
                                       const std::vector<std::string_view>& names,
                                       const std::string& prefix = "");

}  // namespace ho::cli
