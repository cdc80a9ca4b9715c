#include "client/pool/paths/path_finder.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// A stopped daemon costs this much; an endpoint comes up in milliseconds.
constexpr Duration kPeerTimeout = std::chrono::seconds(2);
/// The same once the drivers move bytes, which wait meanwhile.
constexpr Duration kLaterPeerTimeout = std::chrono::milliseconds(200);

/// Nodes that come later may be on other machines. It reaches all.
constexpr const char* kForLater = "tcp";

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

PathFacts facts_of(const HelloReply& hello) {
  return PathFacts{
      .offered = hello.drivers, .same_machine = runs_here(hello), .off = hello.drivers_off};
}

}  // namespace

bool runs_here(const HelloReply& hello) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  if (!std::getline(file, text)) {
    log(LogLevel::kWarning,
        "/proc/sys/kernel/random/boot_id cannot be read: daemons count as those of other machines",
        {{"reason", errno_error(errno, "open").message()}});
  }
  return trimmed(hello.boot_id) == trimmed(text);
}

PathFinder::Made& PathFinder::made(const std::string& name) {
  const auto [found, first] = made_.try_emplace(name);
  Made& made = found->second;
  if (!first) return made;
  if (on_owner_) {
    made.error = Error(Errc::kUnsupported, name + ": the job has not begun with it");
    return made;
  }
  auto driver = make_(name);
  if (driver) {
    made.driver = std::move(*driver);
    made.transport = made.driver->transport.get();
  } else {
    made.error = driver.error();
  }
  return made;
}

Result<transport::PeerId> PathFinder::connect(NodeControl& node, const std::string& driver,
                                              const Session& session, TimePoint deadline) {
  Made& made_driver = made(driver);
  HO_CHECK(!made_driver.error);
  transport::PeerAddress peer;
  peer.node = node.hello().node;
  peer.address = session.address;
  peer.session = {session.id, session.token};
  peer.fence = node.fence_of(session);
  const Duration limit = on_owner_ ? kLaterPeerTimeout : kPeerTimeout;
  std::optional<Result<transport::PeerId>> reached;
  const auto connect = [&] {
    reached = made_driver.transport->connect(peer, std::min(deadline, clock_.now() + limit));
  };
  on_owner_ ? on_owner_(connect) : connect();
  return *std::move(reached);
}

Result<Path> PathFinder::reach(NodeControl& node, const std::string& label) {
  PathFacts facts = facts_of(node.hello());
  std::optional<Error> last;
  for (;;) {
    auto choice = choose_path(allowed_, facts);
    if (!choice) {
      if (!last) return choice.error();
      return allowed_.size() == 1 ? *last : Error(last->code(), choice.error().context());
    }
    const std::string driver = choice->driver;
    Made& tried = made(driver);
    if (tried.error) {
      last = tried.error;
      if (!std::exchange(tried.warned, true)) {
        log(LogLevel::kWarning, "a driver that nodes offer cannot be used here",
            {{"node", label}, {"driver", driver}, {"reason", last->message()}});
      }
      facts.failed.push_back({driver, last->context()});
      continue;
    }
    const TimePoint asked = clock_.now();
    auto session = node.open_session(driver);
    if (!session) return session.error();
    const auto peer = connect(node, driver, *session, TimePoint::max());
    if (peer) {
      tried.used = true;
      return Path{std::move(*choice), std::move(*session), asked, *peer};
    }
    node.close_session(*session);
    last = peer.error();
    log(LogLevel::kWarning, "a driver that a node offers does not reach it",
        {{"node", label}, {"driver", driver}, {"reason", last->message()}});
    facts.failed.push_back({driver, last->context()});
  }
}

Result<PathChoice> PathFinder::explain(NodeControl& node, TimePoint deadline) {
  PathFacts facts = facts_of(node.hello());
  for (;;) {
    auto choice = choose_path(allowed_, facts);
    if (!choice || choice->driver != "ucx") return choice;
    Made& ucx = made("ucx");
    if (ucx.error) {
      facts.failed.push_back({"ucx", ucx.error->context()});
      continue;
    }
    const auto session = node.open_session("ucx");
    if (!session) {
      choice->reason += "; not tried: " + session.error().context();
      return choice;
    }
    const auto peer = connect(node, "ucx", *session, deadline);
    if (peer) ucx.transport->close_peer(*peer);
    node.close_session(*session);
    if (peer) return choice;
    facts.failed.push_back({"ucx", peer.error().context()});
  }
}

std::vector<PathFinder::Found> PathFinder::take(OnOwner on_owner) {
  std::vector<Found> found;
  if (std::find(allowed_.begin(), allowed_.end(), kForLater) != allowed_.end()) {
    Made& later = made(kForLater);
    later.used = !later.error;
  }
  std::erase_if(made_, [](const auto& entry) { return !entry.second.used && !entry.second.error; });
  for (auto& [name, made] : made_) {
    if (made.used) found.push_back({name, *std::exchange(made.driver, std::nullopt)});
  }
  on_owner_ = std::move(on_owner);
  return found;
}

}  // namespace ho::client
