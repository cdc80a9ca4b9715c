#pragma once

namespace ho::bench {

/// Where hyperoffload-ucx-loop finds the socket to its starter. Once it is ready it sends a double,
/// any; then for each std::int64_t of nanoseconds it runs as long and answers with a double, its
/// bytes per second. Where something fails it ends.
inline constexpr int kUcxLoopSocket = 3;
inline constexpr const char* kUcxLoopProgram = "hyperoffload-ucx-loop";

}  // namespace ho::bench
