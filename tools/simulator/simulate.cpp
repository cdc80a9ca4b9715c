#include "tools/simulator/simulate.hpp"

#include <memory>
#include <utility>

#include "common/base/check.hpp"
#include "tools/simulator/replay.hpp"
#include "tools/simulator/simulate_channels.hpp"

namespace ho::analyzer {

namespace detail {

Result<std::array<std::vector<unsigned>, 3>> checked_channels(const schedule::Schedule& schedule,
                                                              const Hardware& hardware) {
  if (auto fine = check_indices(schedule); !fine) return fine.error();
  if (auto fine = check_transfers(schedule, hardware); !fine) return fine.error();
  std::array<std::vector<unsigned>, 3> channel_of;
  const std::array<const std::vector<schedule::CacheOp>*, 3> lists = {
      &schedule.prologue, &schedule.cache_ops, &schedule.epilogue};
  for (std::size_t i = 0; i < lists.size(); ++i) {
    auto channels = channels_of(schedule, hardware, *lists[i]);
    if (!channels) return channels.error();
    channel_of[i] = *std::move(channels);
  }
  return channel_of;
}

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

Result<Simulation> simulate(const schedule::Schedule& schedule, const Hardware& hardware,
                            RunEnd end) {
  auto channel_of = detail::checked_channels(schedule, hardware);
  if (!channel_of) return channel_of.error();
  auto links = detail::ChannelLinks::create(hardware);
  if (!links) return links.error();
  detail::Channels channels({{*links, {}}}, {});
  std::vector<std::unique_ptr<detail::Replay>> ranks;
  ranks.push_back(std::make_unique<detail::Replay>(
      detail::Replay::Input{schedule, *links, *std::move(channel_of), channels, 0}, end,
      detail::Until::kSteady));
  const detail::Replay& only = *ranks.front();
  detail::drive(channels, ranks, [&](std::uint64_t /*now_ns*/) {
    return !only.computing() && end == RunEnd::kLeftOut;
  });
  if (only.computing()) return only.stuck();
  return only.result();
}

}  // namespace ho::analyzer
