#include "tools/analyzer/programs/held_shares.hpp"

#include <algorithm>
#include <cstddef>

#include "common/base/check.hpp"

namespace ho::analyzer {

namespace {

bool has_to_hold(const std::vector<LinkClaim>& claims, const std::vector<std::size_t>& users,
                 std::uint64_t capacity) {
  return std::any_of(users.begin(), users.end(), [&](std::size_t user) {
    return claims[user].weight != claims[users.front()].weight ||
           claims[user].least_bytes_per_s > capacity / users.size();
  });
}

/// One direction of a link: a part for each of its users.
std::vector<std::uint64_t> divide(std::uint64_t capacity, const std::vector<LinkClaim>& claims,
                                  const std::vector<std::size_t>& users) {
  std::vector<std::uint64_t> out(users.size(), 0);
  std::vector<bool> least(users.size(), false);
  while (true) {
    double weights = 0;
    std::uint64_t rest = capacity;
    for (std::size_t i = 0; i < users.size(); ++i) {
      if (least[i]) {
        HO_CHECK(rest >= claims[users[i]].least_bytes_per_s);
        rest -= claims[users[i]].least_bytes_per_s;
      } else {
        weights += claims[users[i]].weight;
      }
    }
    bool again = false;
    for (std::size_t i = 0; i < users.size(); ++i) {
      const LinkClaim& claim = claims[users[i]];
      if (least[i]) {
        out[i] = claim.least_bytes_per_s;
        continue;
      }
      out[i] = static_cast<std::uint64_t>(static_cast<double>(rest) * claim.weight / weights);
      out[i] = std::clamp<std::uint64_t>(out[i], 1, capacity);
      if (out[i] < claim.least_bytes_per_s) least[i] = again = true;
    }
    if (!again) return out;
  }
}

}  // namespace

std::optional<std::vector<std::vector<LinkShare>>> held_shares(
    const Hardware& hardware, const std::vector<LinkClaim>& claims) {
  std::vector<std::vector<LinkShare>> out(claims.size(), whole_links(hardware));
  bool hold = false;
  for (std::size_t l = 0; l < hardware.links.size(); ++l) {
    const SharedLink& link = hardware.links[l];
    std::vector<std::size_t> users;
    for (std::size_t k = 0; k < claims.size(); ++k) {
      if (crosses(hardware, k, link)) users.push_back(k);
    }
    if (users.empty()) continue;
    hold = hold || has_to_hold(claims, users, link.read_bytes_per_s) ||
           has_to_hold(claims, users, link.write_bytes_per_s);
    const auto reads = divide(link.read_bytes_per_s, claims, users);
    const auto writes = divide(link.write_bytes_per_s, claims, users);
    for (std::size_t i = 0; i < users.size(); ++i) out[users[i]][l] = {reads[i], writes[i]};
  }
  if (!hold) return std::nullopt;
  return out;
}

}  // namespace ho::analyzer
