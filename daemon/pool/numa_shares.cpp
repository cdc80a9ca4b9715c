#include "daemon/pool/numa_shares.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {
namespace {

std::uint64_t sum_of(std::span<const NumaMemory> nodes) {
  std::uint64_t bytes = 0;
  for (const NumaMemory& memory : nodes) bytes += memory.bytes;
  return bytes;
}

Result<std::vector<NumaMemory>> choose_nodes(const NumaRequest& request,
                                             std::span<const NumaMemory> machine) {
  std::vector<NumaMemory> chosen;
  for (const NumaNode node : request.nodes) {
    const auto at = std::find_if(machine.begin(), machine.end(),
                                 [&](const NumaMemory& memory) { return memory.node == node; });
    if (at == machine.end()) {
      return Error(Errc::kInvalidArgument,
                   "node " + std::to_string(node.value()) +
                       " has no memory for this process; nodes with memory: " +
                       (machine.empty() ? "none" : list_numa_nodes(machine)));
    }
    chosen.push_back(*at);
  }
  if (!chosen.empty()) {
    if (sum_of(chosen) >= request.capacity_bytes) return chosen;
    return Error(Errc::kExhausted, "ddr_bytes promises " + format_bytes(request.capacity_bytes) +
                                       ", but nodes " + list_numa_nodes(chosen) + " have " +
                                       format_bytes(sum_of(chosen)) + " of " + request.of);
  }
  // Memory without processors belongs to a device, or is slower. Uses it only if the configuration
  // names it, or the other nodes do not suffice.
  std::copy_if(machine.begin(), machine.end(), std::back_inserter(chosen),
               [](const NumaMemory& memory) { return memory.has_cpus; });
  if (sum_of(chosen) < request.capacity_bytes) chosen.assign(machine.begin(), machine.end());
  return chosen;
}

}  // namespace

Result<std::vector<NumaShare>> divide_over_numa(const NumaRequest& request,
                                                std::span<const NumaMemory> machine) {
  HO_CHECK(request.segment_bytes > 0 && request.capacity_bytes % request.segment_bytes == 0);
  const auto chosen = choose_nodes(request, machine);
  if (!chosen) return chosen.error();
  std::vector<NumaShare> shares;
  if (machine.size() < 2) return shares;
  // Uses cumulative sums, so that rounding loses no segment. In MiB, which cannot overflow: a pool
  // has at most 2^29 segments, and the memory is below 2^34 MiB.
  const std::uint64_t segments = request.capacity_bytes / request.segment_bytes;
  const std::uint64_t all_mib = std::max<std::uint64_t>(sum_of(*chosen) / kMiB, 1);
  std::uint64_t given = 0;
  std::uint64_t sum_bytes = 0;
  for (const NumaMemory& memory : *chosen) {
    sum_bytes += memory.bytes;
    const bool last = &memory == &chosen->back();
    const std::uint64_t upto =
        last ? segments : (segments * (sum_bytes / kMiB) + all_mib / 2) / all_mib;
    if (upto > given) shares.push_back({memory.node, (upto - given) * request.segment_bytes, 0});
    given = std::max(given, upto);
  }
  return shares;
}

NumaShare* choose_share(std::span<NumaShare> shares, std::optional<NumaNode> near) {
  NumaShare* best = nullptr;
  for (NumaShare& share : shares) {
    const std::uint64_t room_bytes = share.capacity_bytes - share.granted_bytes;
    if (share.node == near && room_bytes > 0) return &share;
    const bool more = best == nullptr || room_bytes > best->capacity_bytes - best->granted_bytes;
    if (more) best = &share;
  }
  return best;
}

}  // namespace ho::daemon
