#include "common/transport/tcp/rail_links.hpp"

#include <algorithm>
#include <utility>

namespace ho::transport::tcp {

void RailLinks::add(std::uint64_t bytes_per_s) {
  links_.push_back(std::make_unique<Link>(bytes_per_s));
}

void RailLinks::join(Session& session, const LinkShare& share) {
  LinkShare of_rail = share;
  of_rail.bytes_per_s_min /= links_.size();
  minimums_ = minimums_ || of_rail.bytes_per_s_min > 0;
  for (const auto& link : links_) {
    session.flows.push_back({&link->in.join(of_rail), &link->out.join(of_rail)});
  }
}

void RailLinks::leave(Session& session) {
  for (std::size_t rail = 0; rail < session.flows.size(); ++rail) {
    links_[rail]->in.leave(*session.flows[rail].in);
    links_[rail]->out.leave(*session.flows[rail].out);
  }
  session.flows.clear();
}

bool RailLinks::owed(const Connection& connection) const {
  if (connection.ended() || connection.session() == nullptr) return false;
  const Link& link = *links_[connection.rail()];
  const RailFlows& flows = connection.session()->flows[connection.rail()];
  return link.in.owed(*flows.in) || link.out.owed(*flows.out);
}

void RailLinks::begin_round(std::vector<Connection*>& hot, TimePoint now) {
  now_ = now;
  for (const auto& link : links_) {
    link->in.begin_round(now);
    link->out.begin_round(now);
  }
  if (!std::exchange(some_wait_, false)) return;
  std::stable_partition(hot.begin(), hot.end(),
                        [](const Connection* one) { return one->idle > 0; });
  if (!minimums_) return;
  std::stable_partition(hot.begin(), hot.end(), [&](const Connection* one) { return owed(*one); });
}

bool RailLinks::serve(Connection& connection, std::span<std::byte> staging, std::size_t chunk_bytes,
                      HelloCheck& check) {
  connection.waits = false;
  if (connection.session() == nullptr) {
    return connection.serve(staging, {chunk_bytes, chunk_bytes}, now_, check).moved;
  }
  Link& link = *links_[connection.rail()];
  const RailFlows flows = connection.session()->flows[connection.rail()];
  const auto most = [&](LinkTurns& turns, LinkTurns::Flow& flow) {
    return std::min<std::size_t>(chunk_bytes, turns.allowance(flow, connection.small()));
  };
  const bool sends = connection.sends();
  const Connection::Limits limits{most(link.in, *flows.in),
                                  sends ? most(link.out, *flows.out) : chunk_bytes};
  connection.waits = limits.in == 0 || limits.out == 0;
  some_wait_ = some_wait_ || connection.waits;
  const Connection::Progress progress = connection.serve(staging, limits, now_, check);
  const bool lives = !connection.ended();
  const bool more_in = lives && progress.in > 0 && connection.stream().readable();
  const bool more_out = lives && limits.out > 0 && connection.sends();
  if (limits.in > 0) link.in.moved(*flows.in, progress.in, more_in);
  if (limits.out > 0) link.out.moved(*flows.out, progress.out, more_out);
  return progress.moved;
}

std::optional<Duration> RailLinks::pause(std::span<Connection* const> hot) const {
  std::optional<Duration> shortest;
  for (const Connection* const one : hot) {
    if (!one->waits) continue;
    // Those that wait for each other do so for a round only.
    const Link& link = *links_[one->rail()];
    const Duration own = std::max(link.in.until_free(), link.out.until_free());
    shortest = std::min(shortest.value_or(own), own);
  }
  return shortest;
}

}  // namespace ho::transport::tcp
