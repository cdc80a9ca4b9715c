#include "client/pool/placement/failure_domains.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace ho::client {
namespace {

using Place = FailureDomains::Place;

/// By node. Empty: some name is not known, or all are in one.
std::vector<std::uint32_t> numbered(std::span<const Place> nodes, std::string Place::*name) {
  std::map<std::string, std::uint32_t> numbers;
  std::vector<std::uint32_t> out;
  out.reserve(nodes.size());
  for (const Place& node : nodes) {
    if ((node.*name).empty()) return {};
    const auto next = static_cast<std::uint32_t>(numbers.size());
    out.push_back(numbers.emplace(node.*name, next).first->second);
  }
  if (numbers.size() < 2) out.clear();
  return out;
}

}  // namespace

FailureDomains::FailureDomains(std::span<const Place> nodes)
    : domain_(numbered(nodes, &Place::rack)) {
  if (!domain_.empty()) return;
  kind_ = Kind::kMachines;
  domain_ = numbered(nodes, &Place::machine);
  if (!domain_.empty()) return;
  kind_ = Kind::kNodes;
  domain_.resize(nodes.size());
  std::iota(domain_.begin(), domain_.end(), 0U);
}

bool FailureDomains::some_apart(std::span<const NodeIndex> nodes) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](NodeIndex node) { return are_apart(node, nodes.front()); });
}

std::size_t FailureDomains::count(std::span<const NodeIndex> nodes) const {
  if (kind_ == Kind::kNodes) return nodes.empty() ? 0 : 1;
  std::set<std::uint32_t> domains;
  for (const NodeIndex node : nodes) domains.insert(domain_.at(node.value()));
  return domains.size();
}

const char* FailureDomains::kind() const {
  switch (kind_) {
    case Kind::kRacks: return "racks";
    case Kind::kMachines: return "machines";
    case Kind::kNodes: break;
  }
  return "nodes";
}

}  // namespace ho::client
