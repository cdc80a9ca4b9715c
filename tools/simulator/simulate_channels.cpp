#include "tools/simulator/simulate_channels.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/base/check.hpp"
#include "common/model/links.hpp"

namespace ho::analyzer::detail {

namespace {

constexpr double kNsPerS = 1e9;

double bytes_per_ns(const Link& link) { return static_cast<double>(link.bytes_per_s) / kNsPerS; }

Error bad_index(std::string_view what, std::size_t at) {
  return {Errc::kInvalidArgument, std::string(what) + " " + std::to_string(at) +
                                      " refers to an element that does not exist"};
}

Result<void> check_cache_ops(const schedule::Schedule& schedule,
                             const std::vector<schedule::CacheOp>& list, std::string_view name) {
  const std::size_t positions = schedule.positions.size();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const schedule::CacheOp& op = list[i];
    const bool fine = op.storage.value() < schedule.storages.size() &&
                      op.range_begin_bytes <= op.range_end_bytes &&
                      (!op.after_position || op.after_position->value() < positions) &&
                      (!op.before_position || op.before_position->value() < positions) &&
                      std::all_of(op.after_cache_ops.begin(), op.after_cache_ops.end(),
                                  [&](const auto& ref) { return ref.op.value() < list.size(); });
    if (!fine) return bad_index(name, i);
  }
  return {};
}

}  // namespace

Channels::Channels(const std::vector<RankChannels>& ranks,
                   const std::vector<std::uint64_t>& shared_bytes_per_s) {
  for (const std::uint64_t each : shared_bytes_per_s) {
    HO_CHECK(each > 0);
    capacities_.push_back(static_cast<double>(each) / kNsPerS);
  }
  for (const RankChannels& rank : ranks) {
    std::array<std::optional<std::uint32_t>, 2> port_limits;
    for (unsigned direction = 0; direction < 2; ++direction) {
      const auto& port = rank.links.ports[direction];
      if (!port) continue;
      port_limits[direction] = static_cast<std::uint32_t>(capacities_.size());
      capacities_.push_back(bytes_per_ns(*port));
    }
    for (unsigned channel = 0; channel < kChannelCount; ++channel) {
      Server server;
      server.link = rank.links.links[channel];
      server.limits = rank.crosses[channel];
      const auto& port = port_limits[channel % 2];
      if (channel < kPortChannelCount && port) server.limits.push_back(*port);
      servers_.push_back(std::move(server));
    }
  }
}

void Channels::start(std::size_t rank, unsigned channel, std::uint64_t bytes,
                     std::uint64_t now_ns) {
  Server& server = servers_[rank * kChannelCount + channel];
  HO_CHECK(!server.busy);
  HO_CHECK(server.link.has_value());
  server.busy = true;
  server.moving = server.limits.empty();
  server.rate = 0;
  server.left_bytes = static_cast<double>(bytes);
  const auto alone_ns = static_cast<std::uint64_t>(transfer_ns(*server.link, bytes));
  server.event_ns = now_ns + (server.moving ? alone_ns : server.link->latency_ns);
}

std::uint64_t Channels::next_ns() const {
  std::uint64_t next = kNever;
  for (const Server& server : servers_) next = std::min(next, server.event_ns);
  return next;
}

std::optional<Channels::Ended> Channels::advance(std::uint64_t now_ns) {
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    if (server.event_ns != now_ns) continue;
    if (!server.moving) {
      server.moving = true;
      server.updated_ns = now_ns;
      share(now_ns);
      return std::nullopt;
    }
    server.busy = false;
    server.moving = false;
    server.event_ns = kNever;
    if (!server.limits.empty()) share(now_ns);
    return Ended{i / kChannelCount, static_cast<unsigned>(i % kChannelCount)};
  }
  return std::nullopt;
}

/// Gives whatever moves its share from now on. Where a share stays, so does the time of its end.
void Channels::share(std::uint64_t now_ns) {
  flows_.clear();
  moving_.clear();
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    if (!server.busy || !server.moving || server.limits.empty()) continue;
    moving_.push_back(i);
    flows_.push_back({bytes_per_ns(*server.link), &server.limits});
  }
  fair_shares(flows_, capacities_);
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    Server& server = servers_[moving_[f]];
    if (flows_[f].rate == server.rate) continue;
    const double elapsed = static_cast<double>(now_ns - server.updated_ns);
    server.left_bytes = std::max(0.0, server.left_bytes - elapsed * server.rate);
    server.updated_ns = now_ns;
    server.rate = flows_[f].rate;
    server.event_ns =
        now_ns + static_cast<std::uint64_t>(std::ceil(server.left_bytes / server.rate));
  }
}

Result<void> check_indices(const schedule::Schedule& schedule) {
  if (schedule.positions.empty()) {
    return Error{Errc::kInvalidArgument, "the schedule has no ops"};
  }
  std::uint64_t compute_ns = 0;
  for (std::size_t p = 0; p < schedule.positions.size(); ++p) {
    const auto& at = schedule.positions[p];
    if (at.op.value() >= schedule.ops.size()) return bad_index("position", p);
    for (const auto& operand : at.operands) {
      if (operand.storage.value() >= schedule.storages.size()) return bad_index("position", p);
    }
    const std::uint64_t duration_ns = schedule.ops[at.op.value()].duration_ns;
    if (duration_ns > kComputeNsMax - compute_ns) {
      return Error{Errc::kInvalidArgument, "the sum of the durations is too large"};
    }
    compute_ns += duration_ns;
  }
  if (schedule.homes.size() != schedule.storages.size()) {
    return Error{Errc::kInvalidArgument, "the numbers of homes and storages differ"};
  }
  if (auto fine = check_cache_ops(schedule, schedule.cache_ops, "cache op"); !fine) return fine;
  if (auto fine = check_cache_ops(schedule, schedule.prologue, "prologue op"); !fine) return fine;
  return check_cache_ops(schedule, schedule.epilogue, "epilogue op");
}

Result<void> check_transfers(const schedule::Schedule& schedule, const Hardware& hardware) {
  if (auto links = ChannelLinks::create(hardware); !links) return links.error();
  std::vector<std::uint64_t> uses(schedule.storages.size(), 2);
  for (const auto& at : schedule.positions) {
    for (const auto& operand : at.operands) uses[operand.storage.value()] += 2;
  }
  double sum_ns = 0;
  for (const auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (const schedule::CacheOp& op : *list) {
      sum_ns += round_trip_ns(hardware, op.range_end_bytes - op.range_begin_bytes);
    }
  }
  for (std::size_t s = 0; s < uses.size(); ++s) {
    sum_ns += static_cast<double>(uses[s]) * round_trip_ns(hardware, schedule.storages[s].bytes);
  }
  if (sum_ns <= 4 * kRoundTripsNsMax) return {};
  return Error{Errc::kInvalidArgument,
               "the links are too slow for the storages: the sum of the transfer times of a step "
               "is too large"};
}

namespace {

Result<TimedStep::List> timed_list(const schedule::Schedule& schedule, const ChannelLinks& links,
                                   const std::vector<schedule::CacheOp>& list) {
  TimedStep::List out{list, std::vector<unsigned>(list.size(), 0)};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const schedule::CacheOp& op = list[i];
    if (op.kind == schedule::CacheOpKind::kDetach) continue;
    const auto& home = schedule.homes[op.storage.value()];
    if (!home) {
      return Error{Errc::kInvalidArgument, "storage " + schedule.storages[op.storage.value()].name +
                                               " moves but has no home slot"};
    }
    auto channel = links.channel(schedule::transfer_tier(schedule, op), op.kind);
    if (!channel) return channel.error();
    out.channel_of[i] = *channel;
  }
  return out;
}

}  // namespace

Result<TimedStep> timed_step(const schedule::Schedule& schedule, const Hardware& hardware,
                             const ChannelLinks& links) {
  if (auto fine = check_indices(schedule); !fine) return fine.error();
  if (auto fine = check_transfers(schedule, hardware); !fine) return fine.error();
  TimedStep out;
  for (const auto& at : schedule.positions) {
    out.duration_ns.push_back(static_cast<std::int64_t>(schedule.ops[at.op.value()].duration_ns));
  }
  const auto fill = [&](TimedStep::List& to,
                        const std::vector<schedule::CacheOp>& list) -> Result<void> {
    auto timed = timed_list(schedule, links, list);
    if (!timed) return timed.error();
    to = *std::move(timed);
    return {};
  };
  if (auto fine = fill(out.prologue, schedule.prologue); !fine) return fine.error();
  if (auto fine = fill(out.steady, schedule.cache_ops); !fine) return fine.error();
  if (auto fine = fill(out.epilogue, schedule.epilogue); !fine) return fine.error();
  return out;
}

std::uint64_t& bytes_of(schedule::CacheOpKind kind, Simulation& out) {
  switch (kind) {
    case schedule::CacheOpKind::kPrefetch: return out.prefetch_bytes;
    case schedule::CacheOpKind::kStageIn: return out.stage_in_bytes;
    case schedule::CacheOpKind::kStageOut: return out.stage_out_bytes;
    case schedule::CacheOpKind::kStore:
    case schedule::CacheOpKind::kDetach: break;
  }
  return out.store_bytes;
}

std::vector<std::uint64_t> last_access(const schedule::Schedule& schedule) {
  std::vector<std::uint64_t> last(schedule.storages.size(), kNever);
  for (std::size_t p = 0; p < schedule.positions.size(); ++p) {
    for (const auto& operand : schedule.positions[p].operands) last[operand.storage.value()] = p;
  }
  return last;
}

std::vector<schedule::TierPeak> tier_peaks(const schedule::Schedule& schedule,
                                           std::uint64_t device_peak_bytes) {
  std::vector<schedule::TierPeak> out{{"device", device_peak_bytes}};
  if (schedule.hardware.local_ddr) out.push_back({"local_ddr", schedule.local_ddr_bytes});
  if (schedule.hardware.remote_ddr) out.push_back({"remote_ddr", schedule.remote_ddr_bytes});
  if (schedule.hardware.flash) out.push_back({"flash", schedule.flash_bytes});
  return out;
}

}  // namespace ho::analyzer::detail
