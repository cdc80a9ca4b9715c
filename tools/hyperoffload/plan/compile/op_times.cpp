#include "tools/hyperoffload/plan/compile/op_times.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "common/model/check_graph.hpp"
#include "proto/files/convert.hpp"

namespace ho::cli {

Result<std::size_t> apply_op_times(Graph& graph, const std::vector<std::string>& files) {
  std::unordered_map<std::uint32_t, std::size_t> place;
  for (std::size_t o = 0; o < graph.ops.size(); ++o) place.emplace(graph.ops[o].id, o);
  std::vector<std::optional<std::uint64_t>> shortest(graph.ops.size());
  for (const std::string& file : files) {
    const auto times = read_op_times_file(file);
    if (!times) return times.error();
    for (const OpTime& time : *times) {
      const auto found = place.find(time.id);
      if (found == place.end()) {
        return Error(Errc::kInvalidArgument, file + ": op " + std::to_string(time.id) +
                                                 " is not in graph " + graph.name +
                                                 ": these are the times of another graph");
      }
      const Op& op = graph.ops[found->second];
      if (!time.name.empty() && !op.name.empty() && time.name != op.name) {
        return Error(Errc::kInvalidArgument, file + ": " + describe_op(time.id, time.name) +
                                                 " is " + describe_op(op.id, op.name) +
                                                 " in graph " + graph.name +
                                                 ": these are the times of another graph");
      }
      auto& best = shortest[found->second];
      best = std::min(best.value_or(time.duration_ns), time.duration_ns);
    }
  }
  std::size_t measured = 0;
  for (std::size_t o = 0; o < shortest.size(); ++o) {
    if (!shortest[o]) continue;
    graph.ops[o].duration_ns = *shortest[o];
    ++measured;
  }
  return measured;
}

}  // namespace ho::cli
