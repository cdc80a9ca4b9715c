#include "daemon/memory_start.hpp"

#include <string>
#include <utility>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "common/system/numa.hpp"

namespace ho::daemon {

Result<PagePlan> check_memory(const DaemonConfig& config, const HeldPages& held) {
  auto supply = read_page_supply();
  if (!supply) return supply.error();
  supply->huge_pages.bytes += held.bytes;
  auto pages = plan_pages(config.ddr_bytes, *supply);
  if (!pages) return pages;
  // libfabric reads a segment by a second mapping.
  const std::uint64_t each = config.ofi.empty() ? 1 : 2;
  if (auto ok = check_mappings(config.ddr_bytes / config.segment_bytes, each); !ok) {
    return ok.error();
  }
  return pages;
}

Result<void> check_reserve(const DaemonConfig& config) {
  if (!config.ddr_reserve) return {};
  const auto pages = check_memory(config, {});
  if (!pages) return pages.error();
  // They are free, or another kind of pages would have been chosen.
  if (pages->kind == PageKind::kHugetlb2M) return {};
  const auto free = read_free_memory();
  if (!free) return free.error().at("ddr_reserve");
  const auto room = check_free_memory(config.ddr_bytes, *free);
  return room ? room : room.error().at("ddr_reserve");
}

Result<std::vector<NumaShare>> check_numa(const DaemonConfig& config, const PagePlan& pages,
                                          const HeldPages& held) {
  if (config.numa.off) return std::vector<NumaShare>();
  NumaRequest request;
  request.capacity_bytes = config.ddr_bytes;
  request.segment_bytes = config.segment_bytes;
  request.nodes = config.numa.nodes;
  std::vector<NumaMemory> machine = read_numa_memory();
  if (pages.kind == PageKind::kHugetlb2M) {
    request.of = "free huge pages";
    for (NumaMemory& memory : machine) {
      const auto mine = held.by_node.find(memory.node);
      memory.bytes = memory.free_huge_bytes + (mine == held.by_node.end() ? 0 : mine->second);
    }
  }
  auto shares = divide_over_numa(request, machine);
  if (!shares) return shares.error().at("numa");
  return shares;
}

Result<std::vector<NumaShare>> usable_shares(const DaemonConfig& config, const PagePlan& pages,
                                             const HeldPages& held) {
  auto shares = check_numa(config, pages, held);
  if (!shares || shares->empty()) return shares;
  if (const auto usable = check_numa_node(shares->front().node); !usable) {
    log(LogLevel::kWarning, "memory is not placed by NUMA node",
        {{"why", usable.error().context()}});
    return std::vector<NumaShare>();
  }
  for (const NumaShare& share : *shares) {
    log(LogLevel::kInfo, "NUMA node",
        {{"numa", std::to_string(share.node.value())},
         {"ddr", format_bytes(share.capacity_bytes)}});
  }
  return shares;
}

}  // namespace ho::daemon
