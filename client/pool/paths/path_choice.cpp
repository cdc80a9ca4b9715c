#include "client/pool/paths/path_choice.hpp"

#include <algorithm>
#include <optional>

#include "common/transport/driver_names.hpp"

namespace ho::client {
namespace {

bool is_offered(std::span<const DriverOffer> offered, std::string_view driver) {
  return std::any_of(offered.begin(), offered.end(),
                     [driver](const DriverOffer& offer) { return offer.driver == driver; });
}

/// Why a driver cannot be used; nothing where it can.
std::optional<std::string> obstacle(std::string_view driver, const AllowedDrivers& allowed,
                                    const PathFacts& facts) {
  if (std::find(allowed.begin(), allowed.end(), driver) == allowed.end()) return "not allowed";
  if (driver == "local" && !facts.same_machine) return "it is another machine";
  const auto off = std::find_if(facts.off.begin(), facts.off.end(),
                                [driver](const DriverOff& one) { return one.driver == driver; });
  if (off != facts.off.end()) return "not offered by it: " + off->reason;
  if (!is_offered(facts.offered, driver)) {
    return driver == "local" ? "descriptors need its Unix socket" : "not offered by it";
  }
  const auto failed = std::find_if(facts.failed.begin(), facts.failed.end(),
                                   [driver](const DriverOff& one) { return one.driver == driver; });
  if (failed != facts.failed.end()) return failed->reason;
  return std::nullopt;
}

}  // namespace

Result<PathChoice> choose_path(const AllowedDrivers& allowed, const PathFacts& facts) {
  std::string passed_over;
  for (const std::string_view driver : transport::kDriverNames) {
    const auto why_not = obstacle(driver, allowed, facts);
    if (why_not) {
      passed_over += (passed_over.empty() ? "" : "; ") + std::string(driver) + ": " + *why_not;
      continue;
    }
    const std::string reason = driver == "local"
                                   ? "same machine"
                                   : (facts.same_machine ? "between processes" : "between nodes");
    return PathChoice{std::string(driver),
                      passed_over.empty() ? reason : reason + " (" + passed_over + ")"};
  }
  return Error(Errc::kUnsupported, "no driver can reach it: " + passed_over);
}

}  // namespace ho::client
