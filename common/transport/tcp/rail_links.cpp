#include "common/transport/tcp/rail_links.hpp"

#include <algorithm>
#include <utility>

namespace ho::transport::tcp {

void RailLinks::add(std::uint64_t bytes_per_s) {
  links_.push_back(std::make_unique<Link>(bytes_per_s));
}

void RailLinks::join(Session& session, const LinkShare& share) {
  double all = 0;
  for (const auto& link : links_) all += static_cast<double>(link->bytes_per_s);
  const bool known = std::all_of(links_.begin(), links_.end(),
                                 [](const auto& link) { return link->bytes_per_s > 0; });
  minimums_ = minimums_ || share.bytes_per_s_min > 0;
  for (const auto& link : links_) {
    // A rail carries the part of the minimum that it has of all.
    const double part = known ? static_cast<double>(link->bytes_per_s) / all
                              : 1 / static_cast<double>(links_.size());
    LinkShare of_rail = share;
    of_rail.bytes_per_s_min =
        static_cast<std::uint64_t>(static_cast<double>(share.bytes_per_s_min) * part);
    auto& flows = session.flows.emplace_back();
    for (std::size_t i = 0; i < kTrafficClasses; ++i) {
      const auto traffic = static_cast<TrafficClass>(i);
      flows[i] = {&link->in.join(of_rail, traffic), &link->out.join(of_rail, traffic)};
    }
  }
}

void RailLinks::leave(Session& session) {
  for (std::size_t rail = 0; rail < session.flows.size(); ++rail) {
    for (const RailFlows& flows : session.flows[rail]) {
      links_[rail]->in.leave(*flows.in);
      links_[rail]->out.leave(*flows.out);
    }
  }
  session.flows.clear();
}

RailFlows RailLinks::flows_of(const Connection& connection) {
  const auto traffic = static_cast<std::size_t>(connection.traffic());
  return connection.session()->flows[connection.rail()][traffic];
}

bool RailLinks::owed(const Connection& connection) const {
  if (connection.ended() || connection.session() == nullptr) return false;
  const Link& link = *links_[connection.rail()];
  const RailFlows flows = flows_of(connection);
  return link.in.owed(*flows.in) || link.out.owed(*flows.out);
}

void RailLinks::begin_round(std::vector<Connection*>& hot, TimePoint now) {
  now_ = now;
  for (const auto& link : links_) {
    link->in.begin_round(now);
    link->out.begin_round(now);
  }
  if (!std::exchange(some_wait_, false)) return;
  const auto turn_of = [&](const Connection& one) {
    if (minimums_ && owed(one)) return 0;
    return one.idle > 0 ? 1 : 2;
  };
  order_.clear();
  for (int turn = 0; turn < 3; ++turn) {
    for (Connection* const one : hot) {
      if (turn_of(*one) == turn) order_.push_back(one);
    }
  }
  std::swap(hot, order_);
}

bool RailLinks::serve(Connection& connection, std::span<std::byte> staging, std::size_t chunk_bytes,
                      HelloCheck& check) {
  connection.waits_in = connection.waits_out = false;
  if (connection.session() == nullptr) {
    return connection.receive(staging, chunk_bytes, now_, check).moved;
  }
  Link& link = *links_[connection.rail()];
  const RailFlows flows = flows_of(connection);
  const auto small_if = [](bool small) {
    return small ? LinkTurns::Size::kSmall : LinkTurns::Size::kLarge;
  };
  // A header is small, whatever it asks for.
  const bool header = connection.small() || !connection.amid_put();
  const auto in =
      std::min<std::uint64_t>(chunk_bytes, link.in.allowance(*flows.in, small_if(header)));
  connection.waits_in = in == 0;
  bool moved = false;
  if (in > 0) {
    const auto got = connection.receive(staging, in, now_, check);
    link.in.moved(*flows.in, got.bytes);
    if (connection.ended()) return got.moved;
    if (got.bytes > 0 && connection.stream().readable()) link.in.want(*flows.in);
    moved = got.moved;
  }
  if (connection.sends()) {
    const auto size = small_if(connection.small());
    const auto out = std::min<std::uint64_t>(chunk_bytes, link.out.allowance(*flows.out, size));
    connection.waits_out = out == 0;
    if (out > 0) {
      const auto sent = connection.send(out, now_, check);
      link.out.moved(*flows.out, sent.bytes);
      if (connection.sends()) link.out.want(*flows.out);
      moved = moved || sent.moved;
    }
  }
  some_wait_ = some_wait_ || connection.waits();
  return moved;
}

std::optional<Duration> RailLinks::pause(std::span<Connection* const> hot) const {
  std::optional<Duration> shortest;
  const auto note = [&](Duration own) { shortest = std::min(shortest.value_or(own), own); };
  for (const Connection* const one : hot) {
    const Link& link = *links_[one->rail()];
    if (one->waits_in) note(link.in.until_free());
    if (one->waits_out) note(link.out.until_free());
  }
  return shortest;
}

}  // namespace ho::transport::tcp
