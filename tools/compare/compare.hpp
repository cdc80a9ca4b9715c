#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/compare/comparison.hpp"
#include "tools/compare/configuration.hpp"

namespace ho::gpt {

struct CompareOptions {
  std::string out_dir;  ///< made where it is not there
  std::uint32_t blocks = 5;
  std::uint32_t block_steps = 2;
  std::uint64_t limit_bytes_per_s = 0;  ///< limited link, each way; 0: an accelerator's share
};

/// Runs the job in every way, each with an arena and a pool connection of its own:
///
///   at full speed: resident; planned at 60 % and at 40 %; on demand at 60 %; planned at 40 % with
///   DDR for half of what that offloads and flash for the rest (left out, and said so, where the
///   pool has no flash)
///   on a limited link: planned at 60 % and at 40 %, on demand at 60 %, beside resident again
///
/// Steps go in blocks whose order rotates, so whatever slows the machine for a while meets all
/// alike. A run's overhead is the median over blocks of its time over the resident one's in the
/// same block. Writes summary.json, and report.html and trace.json of planned at 60 %.
/// @param say  takes a line of progress
[[nodiscard]] Result<Comparison> compare(const CompareOptions& options, Workbench& bench,
                                         const std::function<void(const std::string&)>& say);

}  // namespace ho::gpt
