#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"

namespace ho::cli {

/// A memory size as the command line takes it: bytes ("4096", "28GiB") or a share of a peak
/// ("60%").
struct MemorySize {
  std::optional<std::uint64_t> bytes;
  double percent = 0;  ///< where `bytes` is absent; above 0

  [[nodiscard]] std::uint64_t of(std::uint64_t peak_bytes) const;
};

/// @return nothing where the text is neither, is zero, or is above 10,000 %.
[[nodiscard]] std::optional<MemorySize> parse_memory_size(std::string_view text);

/// Bounds of a number, both allowed.
template <typename Number>
struct Bounds {
  Number least;
  Number most;
};

// Options whose values have units or bounds. A value that cannot be read or is out of bounds is a
// usage error. `into` outlives the parser; its initial value is the default, which the help shows
// unless it is 0 or empty.

/// One of some words.
CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& into,
                        const std::string& help, const std::vector<std::string>& words);
/// A whole number.
CLI::Option* add_count(CLI::App& command, const std::string& name, std::uint64_t& into,
                       const std::string& help, Bounds<std::uint64_t> bounds);
CLI::Option* add_count(CLI::App& command, const std::string& name, std::uint32_t& into,
                       const std::string& help, Bounds<std::uint64_t> bounds);
CLI::Option* add_count(CLI::App& command, const std::string& name,
                       std::optional<std::uint64_t>& into, const std::string& help,
                       Bounds<std::uint64_t> bounds);
/// A size in bytes: "4096", "64KiB".
CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& into,
                      const std::string& help, Bounds<std::uint64_t> bounds);
/// Bytes per second: "400MB/s" (10^6), "400MiB/s" (2^20), "4e8".
CLI::Option* add_rate(CLI::App& command, const std::string& name, double& into,
                      const std::string& help, Bounds<double> bounds);
/// Floating-point operations per second: "312TFLOP/s", "312e12".
CLI::Option* add_flops(CLI::App& command, const std::string& name, double& into,
                       const std::string& help, Bounds<double> bounds);
/// A time: "2", "2s", "500ms".
CLI::Option* add_time(CLI::App& command, const std::string& name, Duration& into,
                      const std::string& help, Bounds<Duration> bounds);
/// A memory size or a share.
CLI::Option* add_memory(CLI::App& command, const std::string& name, std::optional<MemorySize>& into,
                        const std::string& help);

/// A share: "2%" sets 0.02.
CLI::Option* add_share(CLI::App& command, const std::string& name, std::optional<double>& into,
                       const std::string& help);

/// A part of a whole: "0.5" and "50%" set 0.5. Whether it is in range is not checked.
CLI::Option* add_part(CLI::App& command, const std::string& name, double& into,
                      const std::string& help);

/// --timeout: how long a command waits for a pool.
CLI::Option* add_timeout(CLI::App& command, Duration& into);
/// --seconds: how long a command measures or searches; a time with or without a unit.
CLI::Option* add_seconds(CLI::App& command, Duration& into, const std::string& help);

/// The files that a command reads and writes, for check_files(). Empty names do not count.
struct Files {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};
/// Refuses to overwrite an input and to write two results to one file, also where links lead to it.
/// Devices and pipes, such as /dev/null, may be named twice.
[[nodiscard]] Result<void> check_files(const Files& files);

}  // namespace ho::cli
