#pragma once

namespace ho::bench {

/// The descriptor on which hyperoffload-ucx-loop finds the socket to its starter. When it is ready
/// it sends any double. Then for each std::int64_t of nanoseconds it runs for that time and answers
/// with a double, its bytes per second. It ends if anything fails.
inline constexpr int kUcxLoopSocket = 3;
inline constexpr const char* kUcxLoopProgram = "hyperoffload-ucx-loop";

}  // namespace ho::bench
