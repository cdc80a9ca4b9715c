#include <programs.pb.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "common/base/units.hpp"
#include "common/text/utf8.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "proto/files/message.hpp"
#include "proto/files/programs.hpp"

namespace ho {

namespace {

constexpr std::uint32_t kVersionsMax = 1024;
constexpr std::uint32_t kWeightMax = 1000;
constexpr std::uint32_t kEveryMax = 1'000'000;
constexpr std::size_t kObjectNameBytesMax = 255;  // as the library has it

/// An absent text is 0.
Result<std::uint64_t> read_rate(const std::string& text, const char* field) {
  if (text.empty()) return std::uint64_t{0};
  const auto rate = parse_rate(text, "B/s");
  if (!rate || *rate < 1 || *rate > 1e15) {
    return bad_input(std::string(field) + " \"" + text + "\" is not a rate such as \"2GB/s\"");
  }
  return static_cast<std::uint64_t>(*rate);
}

Result<std::uint64_t> read_time(const std::string& text, const char* field) {
  constexpr std::uint64_t kDayNs = 86'400'000'000'000;
  if (text.empty()) return std::uint64_t{0};
  const auto time_ns = parse_duration_ns(text);
  if (!time_ns || *time_ns == 0 || *time_ns > kDayNs) {
    return bad_input(std::string(field) + " \"" + text +
                     "\" is not a time such as \"500ms\", of one day at most");
  }
  return *time_ns;
}

std::string beside(const std::string& file, const std::string& path) {
  return path.empty() ? path : (std::filesystem::path(file).parent_path() / path).string();
}

Result<ProgramSpec> program_of(const hyperoffload::v1::ProgramSpec& in, const std::string& file) {
  ProgramSpec out;
  if (in.name().empty()) return bad_input("name is missing");
  const bool plain = std::all_of(in.name().begin(), in.name().end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
  if (!plain || in.name().size() > 100) {  // it names files
    return bad_input("a name has letters, digits, - and _, at most 100");
  }
  if (in.mesh().empty()) return bad_input("mesh is missing");
  out.name = in.name();
  out.mesh = in.mesh();
  out.graph = beside(file, in.graph());
  out.device_memory = in.device_memory();
  const bool of_steps =
      in.weight() != 0 || !in.minimum_rate().empty() || !in.device_memory().empty();
  if (in.graph().empty() && of_steps) {
    return bad_input(
        "device_memory, weight and minimum_rate are those of steps, and it has no graph");
  }
  if (in.weight() > kWeightMax) return bad_input("weight is above 1000");
  out.weight = in.weight() == 0 ? 1 : in.weight();
  const auto rate = read_rate(in.minimum_rate(), "minimum_rate");
  if (!rate) return rate.error();
  out.minimum_bytes_per_s = *rate;
  const auto period_ns = read_time(in.period(), "period");
  if (!period_ns) return period_ns.error();
  out.period_ns = *period_ns;
  return out;
}

Result<ObjectSpec> object_of(const hyperoffload::v1::ObjectSpec& in, const std::string& file,
                             const std::vector<ProgramSpec>& programs) {
  ObjectSpec out;
  if (in.name().empty()) return bad_input("name is missing");
  if (utf8_prefix(in.name(), kObjectNameBytesMax) != in.name()) {
    return bad_input("a name is up to 255 bytes of UTF-8");
  }
  const auto find = [&](const std::string& name, const char* field) -> Result<std::size_t> {
    const auto at = std::find_if(programs.begin(), programs.end(),
                                 [&](const ProgramSpec& one) { return one.name == name; });
    if (at != programs.end()) return static_cast<std::size_t>(at - programs.begin());
    return bad_input(std::string(field) + ": there is no program \"" + name + "\"");
  };
  const auto from = find(in.from(), "from");
  if (!from) return from.error();
  const auto to = find(in.to(), "to");
  if (!to) return to.error();
  if (*from == *to) return bad_input("from and to are the same program");
  if (in.tensors().empty()) return bad_input("tensors is missing");
  if (in.versions() > kVersionsMax) return bad_input("versions is above 1024");
  if (in.every() > kEveryMax) return bad_input("every is above 1000000");
  const ProgramSpec& publisher = programs[*from];
  if (publisher.graph.empty() && publisher.period_ns == 0) {
    return bad_input("program " + publisher.name +
                     " has neither a graph nor a period, so it is not known when it publishes");
  }
  out.name = in.name();
  out.from = *from;
  out.to = *to;
  out.tensors = beside(file, in.tensors());
  out.from_layout = in.from_layout();
  out.to_layouts = {in.to_layout().begin(), in.to_layout().end()};
  std::erase(out.to_layouts, "");  // as if there were none
  out.to_tensors = {in.to_tensors().begin(), in.to_tensors().end()};
  out.every = in.every() == 0 ? 1 : in.every();
  if (in.versions() != 0) out.versions = in.versions();
  const auto age_ns = read_time(in.largest_staleness(), "largest_staleness");
  if (!age_ns) return age_ns.error();
  out.largest_staleness_ns = *age_ns;
  const auto rate = read_rate(in.minimum_rate(), "minimum_rate");
  if (!rate) return rate.error();
  out.minimum_bytes_per_s = *rate;
  return out;
}

}  // namespace

Result<ProgramsFile> read_programs_file(const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  const auto bytes = read_whole_file(path, wire::kInputBytesMax);
  if (!bytes) return bytes.error();
  hyperoffload::v1::ProgramList message;
  if (auto parsed = wire::parse(*bytes, *encoding, message); !parsed) {
    return parsed.error().at(path);
  }
  ProgramsFile out;
  if (message.programs().empty()) return bad_input("it lists no programs").at(path);
  for (const auto& each : message.programs()) {
    const std::string what =
        "program " + std::to_string(out.programs.size()) + " (\"" + each.name() + "\")";
    auto program = program_of(each, path);
    if (!program) return program.error().at(what).at(path);
    for (const ProgramSpec& one : out.programs) {
      if (one.name == program->name) return bad_input("the name occurs twice").at(what).at(path);
    }
    out.programs.push_back(*std::move(program));
  }
  for (const auto& each : message.objects()) {
    const std::string what =
        "object " + std::to_string(out.objects.size()) + " (\"" + each.name() + "\")";
    auto object = object_of(each, path, out.programs);
    if (!object) return object.error().at(what).at(path);
    for (const ObjectSpec& one : out.objects) {
      if (one.name == object->name && one.to == object->to) {
        return bad_input("the program reads it twice").at(what).at(path);
      }
      if (one.name != object->name) continue;
      if (one.from != object->from || one.tensors != object->tensors ||
          one.every != object->every || one.from_layout != object->from_layout ||
          one.versions != object->versions) {
        return bad_input(
                   "from, tensors, from_layout, every and versions must be those of its first "
                   "reader")
            .at(what)
            .at(path);
      }
    }
    out.objects.push_back(*std::move(object));
  }
  return out;
}

}  // namespace ho
