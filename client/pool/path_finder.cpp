#include "client/pool/path_finder.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// Start-up only. A stopped daemon costs this much; an endpoint comes up in milliseconds.
constexpr Duration kPeerTimeout = std::chrono::seconds(2);

PathFacts facts_of(const HelloReply& hello) {
  return PathFacts{
      .offered = hello.drivers, .same_machine = runs_here(hello), .off = hello.drivers_off};
}

}  // namespace

PathFinder::Made& PathFinder::made(const std::string& name) {
  const auto [found, first] = made_.try_emplace(name);
  Made& made = found->second;
  if (!first) return made;
  auto driver = make_(name);
  if (driver) {
    made.driver = std::move(*driver);
  } else {
    made.error = driver.error();
  }
  return made;
}

Result<transport::PeerId> PathFinder::connect(const HelloReply& hello,
                                              const DriverEndpoint& endpoint, TimePoint deadline) {
  Made& driver = made(endpoint.driver);
  if (driver.error) return *driver.error;
  return driver.driver->transport->connect({hello.node, endpoint.address},
                                           std::min(deadline, clock_.now() + kPeerTimeout));
}

Result<Path> PathFinder::reach(const HelloReply& hello, const std::string& label) {
  PathFacts facts = facts_of(hello);
  std::optional<Error> last;
  for (;;) {
    auto choice = choose_path(allowed_, facts);
    if (!choice) {
      if (!last) return choice.error();
      return allowed_.size() == 1 ? *last : Error(last->code(), choice.error().context());
    }
    const std::string driver = choice->endpoint.driver;
    const auto peer = connect(hello, choice->endpoint);
    if (peer) {
      made(driver).used = true;
      return Path{std::move(*choice), *peer};
    }
    last = peer.error();
    Made& tried = made(driver);
    if (!tried.error) {
      log(LogLevel::kWarning, "a driver that a node offers does not reach it",
          {{"node", label}, {"driver", driver}, {"reason", last->message()}});
    } else if (!std::exchange(tried.warned, true)) {
      log(LogLevel::kWarning, "a driver that nodes offer cannot be used here",
          {{"node", label}, {"driver", driver}, {"reason", last->message()}});
    }
    facts.failed.push_back({driver, last->context()});
  }
}

Result<transport::PeerId> PathFinder::move(const HelloReply& hello, const DriverEndpoint& to,
                                           transport::PeerId from) {
  HO_CHECK(made(to.driver).used);
  auto peer = connect(hello, to);
  if (peer) made(to.driver).driver->transport->close_peer(from);
  return peer;
}

Result<PathChoice> PathFinder::explain(const HelloReply& hello, TimePoint deadline) {
  PathFacts facts = facts_of(hello);
  for (;;) {
    auto choice = choose_path(allowed_, facts);
    if (!choice || choice->endpoint.driver != "ucx") return choice;
    const auto peer = connect(hello, choice->endpoint, deadline);
    if (peer) {
      made("ucx").driver->transport->close_peer(*peer);
      return choice;
    }
    facts.failed.push_back({"ucx", peer.error().context()});
  }
}

std::vector<PathFinder::Found> PathFinder::take() {
  std::vector<Found> found;
  for (auto& [name, made] : made_) {
    if (made.used) found.push_back({name, std::move(*made.driver)});
  }
  made_.clear();
  return found;
}

}  // namespace ho::client
