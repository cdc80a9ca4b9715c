#pragma once

#include <cstdint>
#include <functional>
#include <hyperoffload/hyperoffload.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/cli/program.hpp"
#include "common/cli/values.hpp"
#include "common/model/hardware.hpp"
#include "tools/examples/gpt/generation_arguments.hpp"

namespace ho::gpt {

/// Options of both commands about the pool and the device.
struct PoolArguments : PoolAddress {
  std::optional<cli::MemorySize> device_memory = cli::MemorySize{std::nullopt, 60};
  double link_bytes_per_s = 0;
  std::string tls;
  Duration wait{};                  ///< for memory that other jobs hold
  std::vector<std::string> copies;  ///< homes on different nodes, as analyzer::parse_copies reads
  Duration repair_after{};          ///< of values with two homes; 0: the library's default
};

/// `into` outlives the parser.
void add_pool(CLI::App& app, PoolArguments& into);
/// Throws hyperoffload::Error, as all of the library does.
[[nodiscard]] hyperoffload::Pool connect(const PoolArguments& arguments);

/// Bytes of the job with everything on the device, and of all its storages side by side.
struct JobBytes {
  std::uint64_t peak = 0;
  std::uint64_t all = 0;
};
/// Measures the links of the pool as this job sees them. @return them, with the device memory that
/// the job may use.
[[nodiscard]] Result<Hardware> measure_links(hyperoffload::Pool& pool,
                                             const PoolArguments& arguments, const JobBytes& job);

/// Whether a signal has asked the program to end.
[[nodiscard]] bool stop_requested();
/// Does a command's work. If the pool has no memory for it, repeats it from the beginning until the
/// wait is over; nothing is held meanwhile. Says why it failed. @return the exit code.
[[nodiscard]] int ended(cli::Console& console, const PoolArguments& pool,
                        const std::function<Result<void>()>& work);

void add_train(cli::Program& program);
void add_generate(cli::Program& program);

}  // namespace ho::gpt
