#include "tools/simulator/simulate.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "tools/simulator/replay.hpp"
#include "tools/simulator/simulate_channels.hpp"

namespace ho::analyzer {

namespace detail {

void drive(Channels& channels, std::vector<std::unique_ptr<Replay>>& ranks,
           const std::function<bool(std::uint64_t)>& enough) {
  for (const auto& rank : ranks) rank->begin();
  std::uint64_t now_ns = 0;
  while (true) {
    while (channels.next_ns() == now_ns) {
      const auto ended = channels.advance(now_ns);
      if (ended) ranks[ended->rank]->end_transfer(ended->channel, now_ns);
    }
    for (const auto& rank : ranks) rank->settle(now_ns);
    for (const auto& rank : ranks) rank->start_transfers();
    if (enough(now_ns)) return;
    std::uint64_t next_ns = channels.next_ns();
    for (const auto& rank : ranks) next_ns = std::min(next_ns, rank->next_ns());
    if (next_ns == kNever) return;
    HO_CHECK(next_ns >= now_ns);
    now_ns = next_ns;
  }
}

}  // namespace detail

namespace {

/// @param recorded  as a Replay's
Result<Simulation> alone(TimedStep step, const ChannelLinks& links, detail::Until until,
                         const schedule::Schedule* recorded) {
  detail::Channels channels({{links, {}}}, {});
  std::vector<std::unique_ptr<detail::Replay>> ranks;
  ranks.push_back(std::make_unique<detail::Replay>(std::move(step), channels, 0, until, recorded));
  const detail::Replay& only = *ranks.front();
  detail::drive(channels, ranks, [&](std::uint64_t /*now_ns*/) {
    return !only.computing() && until == detail::Until::kSteady;
  });
  if (only.computing()) return only.stuck();
  return only.result();
}

}  // namespace

Result<Simulation> simulate(const schedule::Schedule& schedule, const Hardware& hardware) {
  const auto links = ChannelLinks::create(hardware);
  if (!links) return links.error();
  auto step = detail::timed_step(schedule, hardware, *links);
  if (!step) return step.error();
  const std::vector<unsigned> channel_of = step->steady.channel_of;
  auto out = alone(*std::move(step), *links, detail::Until::kEndOfRun, &schedule);
  if (!out) return out;
  std::array<std::uint64_t, kChannelCount> busy_ns{};
  for (std::size_t i = 0; i < schedule.cache_ops.size(); ++i) {
    const schedule::CacheOp& op = schedule.cache_ops[i];
    if (op.kind == schedule::CacheOpKind::kDetach) continue;
    detail::bytes_of(op.kind, *out) += op.range_end_bytes - op.range_begin_bytes;
    busy_ns[channel_of[i]] += out->cache_ops[i].end_ns - out->cache_ops[i].start_ns;
  }
  for (unsigned channel = 0; channel < kChannelCount; ++channel) {
    if (!links->links[channel]) continue;
    out->channels.push_back({std::string(kChannelNames[channel]), busy_ns[channel]});
  }
  out->tiers = detail::tier_peaks(schedule, out->peak_bytes);
  return out;
}

Result<Simulation> steady_period(const schedule::Schedule& schedule, const Hardware& hardware) {
  const auto links = ChannelLinks::create(hardware);
  if (!links) return links.error();
  auto step = detail::timed_step(schedule, hardware, *links);
  if (!step) return step.error();
  return steady_period(*std::move(step), *links);
}

Result<Simulation> steady_period(TimedStep step, const ChannelLinks& links) {
  return alone(std::move(step), links, detail::Until::kSteady, nullptr);
}

}  // namespace ho::analyzer
