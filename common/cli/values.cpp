#include "common/cli/values.hpp"

#include <sys/stat.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <type_traits>

#include "common/base/units.hpp"

namespace ho::cli {
namespace {

constexpr double kPercentMax = 10'000;

/// An option whose text `parse` turns into a value; what it cannot is refused with `wanted`.
template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, Value& into,
                        const std::string& help, const Parse& parse, const std::string& wanted) {
  return command.add_option_function<std::string>(
      name,
      [&into, name, parse, wanted](const std::string& text) {
        const auto value = parse(text);
        if (!value) throw CLI::ValidationError(name, "\"" + text + "\" is not " + wanted);
        into = static_cast<Value>(*value);
      },
      help);
}

/// "2%" is 2.
std::optional<double> parse_percent(std::string_view text) {
  if (text.empty() || text.back() != '%') return std::nullopt;
  text.remove_suffix(1);
  double percent = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), percent);
  const bool whole = code == std::errc() && end == text.data() + text.size();
  if (!whole || !(percent >= 0) || percent > kPercentMax) return std::nullopt;
  return percent;
}

/// A name that is equal for all paths to one file: device and inode, or for a new file those of its
/// folder and the name in it. Nothing for devices, pipes, folders and an empty path.
std::optional<std::string> identity(const std::string& path) {
  if (path.empty()) return std::nullopt;
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) return std::nullopt;
    return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
  }
  std::error_code failed;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path, failed);
  if (failed) return path;
  if (::stat(whole.parent_path().c_str(), &info) != 0) return whole.string();
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino) + "/" +
         whole.filename().string();
}

}  // namespace

std::uint64_t MemorySize::of(std::uint64_t peak_bytes) const {
  if (bytes) return *bytes;
  const auto part = static_cast<std::uint64_t>(
      std::floor(static_cast<long double>(peak_bytes) * static_cast<long double>(percent) / 100));
  return std::max<std::uint64_t>(1, part);  // where ops name no bytes, too
}

std::optional<MemorySize> parse_memory_size(std::string_view text) {
  if (!text.empty() && text.back() == '%') {
    const auto percent = parse_percent(text);
    if (!percent || *percent == 0) return std::nullopt;
    return MemorySize{std::nullopt, *percent};
  }
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes == 0) return std::nullopt;
  return MemorySize{*bytes, 0};
}

CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& into,
                        const std::string& help, const std::vector<std::string>& words) {
  return command.add_option(name, into, help)
      ->type_name("NAME")
      ->check(CLI::IsMember(words))
      ->capture_default_str();
}

namespace {

template <typename Value>
CLI::Option* add_whole(CLI::App& command, const std::string& name, Value& into,
                       const std::string& help, Bounds<std::uint64_t> bounds) {
  const auto parse = [bounds](const std::string& text) -> std::optional<std::uint64_t> {
    std::uint64_t number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = code == std::errc() && end == text.data() + text.size();
    if (!whole || number < bounds.least || number > bounds.most) return std::nullopt;
    return number;
  };
  CLI::Option* const option = add_parsed(
      command, name, into, help, parse,
      "a whole number from " + std::to_string(bounds.least) + " to " + std::to_string(bounds.most));
  if constexpr (std::is_integral_v<Value>) {
    if (into != 0) option->default_str(std::to_string(into));
  }
  return option->type_name("N");
}

}  // namespace

CLI::Option* add_count(CLI::App& command, const std::string& name, std::uint64_t& into,
                       const std::string& help, Bounds<std::uint64_t> bounds) {
  return add_whole(command, name, into, help, bounds);
}

CLI::Option* add_count(CLI::App& command, const std::string& name, std::uint32_t& into,
                       const std::string& help, Bounds<std::uint64_t> bounds) {
  return add_whole(command, name, into, help, bounds);
}

CLI::Option* add_count(CLI::App& command, const std::string& name,
                       std::optional<std::uint64_t>& into, const std::string& help,
                       Bounds<std::uint64_t> bounds) {
  return add_whole(command, name, into, help, bounds);
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& into,
                      const std::string& help, Bounds<std::uint64_t> bounds) {
  const auto parse = [bounds](const std::string& text) {
    auto bytes = parse_bytes(text);
    if (bytes && (*bytes < bounds.least || *bytes > bounds.most)) bytes.reset();
    return bytes;
  };
  CLI::Option* const option =
      add_parsed(command, name, into, help, parse,
                 "a size from " + format_bytes(bounds.least) + " to " + format_bytes(bounds.most));
  option->type_name("SIZE");
  if (into != 0) option->default_str(format_bytes(into));
  return option;
}

namespace {

CLI::Option* add_per_second(CLI::App& command, const std::string& name, double& into,
                            const std::string& help, Bounds<double> bounds, const char* unit) {
  const auto parse = [bounds, unit](const std::string& text) {
    auto rate = parse_rate(text, unit);
    if (rate && (*rate < bounds.least || *rate > bounds.most)) rate.reset();
    return rate;
  };
  const bool open = bounds.most == std::numeric_limits<double>::max();
  const std::string wanted = "a rate " + std::string(open ? "of at least " : "from ") +
                             format_rate(bounds.least, unit) +
                             (open ? "" : " to " + format_rate(bounds.most, unit));
  CLI::Option* const option = add_parsed(command, name, into, help, parse, wanted);
  option->type_name("RATE");
  if (into != 0) option->default_str(format_rate(into, unit));
  return option;
}

}  // namespace

CLI::Option* add_rate(CLI::App& command, const std::string& name, double& into,
                      const std::string& help, Bounds<double> bounds) {
  return add_per_second(command, name, into, help, bounds, "B/s");
}

CLI::Option* add_flops(CLI::App& command, const std::string& name, double& into,
                       const std::string& help, Bounds<double> bounds) {
  return add_per_second(command, name, into, help, bounds, "FLOP/s");
}

CLI::Option* add_time(CLI::App& command, const std::string& name, Duration& into,
                      const std::string& help, Bounds<Duration> bounds) {
  const auto words = [](Duration time) {
    return format_duration_ns(static_cast<std::uint64_t>(time.count()));
  };
  const auto parse = [bounds](const std::string& text) -> std::optional<Duration> {
    const auto ns = parse_duration_ns(text);
    if (!ns) return std::nullopt;
    const Duration time(static_cast<std::int64_t>(*ns));
    if (time < bounds.least || time > bounds.most) return std::nullopt;
    return time;
  };
  CLI::Option* const option =
      add_parsed(command, name, into, help, parse,
                 "a time from " + words(bounds.least) + " to " + words(bounds.most));
  option->type_name("TIME");
  if (into != Duration::zero()) option->default_str(words(into));
  return option;
}

CLI::Option* add_memory(CLI::App& command, const std::string& name, std::optional<MemorySize>& into,
                        const std::string& help) {
  return add_parsed(command, name, into, help, parse_memory_size, "a size (28GiB) or a share (60%)")
      ->type_name("SIZE|N%");
}

CLI::Option* add_share(CLI::App& command, const std::string& name, std::optional<double>& into,
                       const std::string& help) {
  const auto parse = [](std::string_view text) -> std::optional<double> {
    const auto percent = parse_percent(text);
    if (!percent) return std::nullopt;
    return *percent / 100;
  };
  return add_parsed(command, name, into, help, parse, "a share from 0% to 10000%, such as 2%")
      ->type_name("N%");
}

CLI::Option* add_part(CLI::App& command, const std::string& name, double& into,
                      const std::string& help) {
  const auto parse = [](std::string_view text) -> std::optional<double> {
    const bool percent = !text.empty() && text.back() == '%';
    if (percent) text.remove_suffix(1);
    double number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return percent ? number / 100 : number;
  };
  return add_parsed(command, name, into, help, parse, "a share, such as 0.5 or 50%")
      ->type_name("SHARE");
}

CLI::Option* add_timeout(CLI::App& command, Duration& into) {
  return add_time(command, "--timeout", into, "how long to wait for the pool",
                  {std::chrono::milliseconds(10), std::chrono::hours(1)});
}

CLI::Option* add_seconds(CLI::App& command, Duration& into, const std::string& help) {
  return add_time(command, "--seconds", into, help,
                  {std::chrono::milliseconds(100), std::chrono::hours(24)});
}

Result<void> check_files(const Files& files) {
  std::set<std::string> inputs;
  std::map<std::string, std::string> outputs;  // by identity
  for (const std::string& input : files.inputs) {
    if (const auto known = identity(input)) inputs.insert(*known);
  }
  for (const std::string& output : files.outputs) {
    const auto known = identity(output);
    if (!known) continue;
    if (inputs.count(*known) > 0) {
      return bad_input(output + " is also read: write the result to another file");
    }
    const auto [at, fresh] = outputs.emplace(*known, output);
    if (!fresh) return bad_input(output + " and " + at->second + " are one file: name another");
  }
  return {};
}

}  // namespace ho::cli
