#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/examples/gpt/configuration.hpp"

namespace ho::gpt {

struct CompareOptions {
  std::string out_dir;  ///< made where it is not there
  std::uint32_t blocks = 5;
  std::uint32_t block_steps = 2;
};

/// Runs resident, planned at 60 % and 40 %, on-demand-lru at 60 %, and planned at 40 % with DDR for
/// half of what that offloads and flash for the rest (left out, and said so, where the pool has no
/// flash) in this process, each with an arena (and pool connection) of its own, in blocks of steps
/// whose order rotates; so whatever slows the machine for a while meets all alike. A
/// configuration's overhead is the median over blocks of its time over the resident one's in the
/// same block. Writes summary.json, report.html and trace.json.
/// @param say  takes a line of progress
[[nodiscard]] Result<Comparison> compare(const CompareOptions& options, Workbench& bench,
                                         const std::function<void(const std::string&)>& say);

}  // namespace ho::gpt
