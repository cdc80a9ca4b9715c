#include "tools/analyzer/ranks/shares.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "common/base/check.hpp"
#include "tools/analyzer/problem/least_traffic.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/planned_step.hpp"

namespace ho::analyzer {

namespace {

void limit(Link& link, std::uint64_t bytes_per_s) {
  link.bytes_per_s = std::min(link.bytes_per_s, bytes_per_s);
}

void limit(std::optional<TierSpec>& tier, const LinkShare& share) {
  if (!tier) return;
  limit(tier->read, share.read_bytes_per_s);
  limit(tier->write, share.write_bytes_per_s);
}

void limit(std::optional<Link>& port, std::uint64_t bytes_per_s) {
  if (!port) port = Link{bytes_per_s, 0};
  limit(*port, bytes_per_s);
}

}  // namespace

bool names(const std::vector<std::string>& path, const SharedLink& link) {
  return std::find(path.begin(), path.end(), link.name) != path.end();
}

const RankPath& path_of(const Hardware& hardware, std::size_t rank) {
  static const RankPath kNothingShared;
  if (hardware.paths.empty()) return kNothingShared;
  if (hardware.paths.size() == 1) return hardware.paths[0];
  HO_CHECK(rank < hardware.paths.size());
  return hardware.paths[rank];
}

bool crosses(const Hardware& hardware, std::size_t rank, const SharedLink& link) {
  const RankPath& path = path_of(hardware, rank);
  return names(path.local_ddr, link) || names(path.remote_ddr, link) || names(path.flash, link);
}

std::vector<LinkShare> whole_links(const Hardware& hardware) {
  std::vector<LinkShare> out;
  for (const SharedLink& link : hardware.links) {
    out.push_back({link.read_bytes_per_s, link.write_bytes_per_s});
  }
  return out;
}

std::vector<LinkShare> equal_shares(const Hardware& hardware, std::size_t ranks) {
  std::vector<LinkShare> out = whole_links(hardware);
  for (std::size_t l = 0; l < out.size(); ++l) {
    std::uint64_t users = 0;
    for (std::size_t k = 0; k < ranks; ++k) users += crosses(hardware, k, hardware.links[l]);
    users = std::max<std::uint64_t>(users, 1);
    out[l].read_bytes_per_s = std::max<std::uint64_t>(out[l].read_bytes_per_s / users, 1);
    out[l].write_bytes_per_s = std::max<std::uint64_t>(out[l].write_bytes_per_s / users, 1);
  }
  return out;
}

Hardware for_one(const Hardware& hardware, std::size_t rank, const std::vector<LinkShare>& shares) {
  HO_CHECK(shares.size() == hardware.links.size());
  const RankPath& path = path_of(hardware, rank);
  Hardware out = hardware;
  out.links.clear();
  out.paths.clear();
  for (std::size_t l = 0; l < shares.size(); ++l) {
    const SharedLink& link = hardware.links[l];
    const bool local = names(path.local_ddr, link);
    const bool remote = names(path.remote_ddr, link);
    if (local) limit(out.local_ddr, shares[l]);
    if (remote) limit(out.remote_ddr, shares[l]);
    if (names(path.flash, link)) limit(out.flash, shares[l]);
    if (!local || !remote) continue;
    limit(out.device_port_read, shares[l].read_bytes_per_s);
    limit(out.device_port_write, shares[l].write_bytes_per_s);
  }
  return out;
}

LinkBytes least_bytes(const Graph& graph, const schedule::Schedule& schedule) {
  const auto of = [&](const Graph& steps) {
    const Lifetimes life = lifetimes_of(steps, 1);
    return least_traffic(life, steps, excess_of(life, steps, schedule.device_budget_bytes));
  };
  const Traffic given = of(graph);
  const Traffic chosen = of(refined_graph(schedule));
  return {static_cast<std::uint64_t>(std::min(given.supplied_bytes + given.read_bytes,
                                              chosen.supplied_bytes + chosen.read_bytes)),
          static_cast<std::uint64_t>(std::min(given.write_bytes, chosen.write_bytes))};
}

}  // namespace ho::analyzer
