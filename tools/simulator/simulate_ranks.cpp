#include "tools/simulator/simulate_ranks.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"
#include "tools/simulator/replay.hpp"

namespace ho::analyzer {

namespace {

using Crosses = std::array<std::vector<std::uint32_t>, kChannelCount>;

constexpr std::uint32_t kStepsCount = kUnmeasuredSteps + kMeasuredSteps;
/// Limit for the steps of a rank that runs beside slower ones.
constexpr std::uint32_t kRankStepsMax = 256;

std::size_t index_of(const Hardware& hardware, const std::string& name) {
  const auto at = std::find_if(hardware.links.begin(), hardware.links.end(),
                               [&](const SharedLink& link) { return link.name == name; });
  HO_CHECK(at != hardware.links.end());
  return static_cast<std::size_t>(at - hardware.links.begin());
}

/// Per channel: 2 * link, plus 1 for its direction away from the device.
Crosses crosses_of(const Hardware& hardware, std::size_t rank) {
  Crosses out;
  if (hardware.paths.empty()) return out;
  const RankPath& path = hardware.paths.size() == 1 ? hardware.paths[0] : hardware.paths[rank];
  const std::array<const std::vector<std::string>*, 3> tiers = {&path.local_ddr, &path.remote_ddr,
                                                                &path.flash};
  for (unsigned channel = 0; channel < kChannelCount; ++channel) {
    for (const std::string& name : *tiers[channel / 2]) {
      const auto link = static_cast<std::uint32_t>(index_of(hardware, name));
      out[channel].push_back(link * 2 + channel % 2);
    }
  }
  return out;
}

std::vector<LinkBytes> link_bytes(const TimedStep::List& list, const Crosses& crosses,
                                  std::size_t links) {
  std::vector<LinkBytes> out(links);
  for (std::size_t i = 0; i < list.ops.size(); ++i) {
    const schedule::CacheOp& op = list.ops[i];
    if (op.kind == schedule::CacheOpKind::kDetach) continue;
    for (const std::uint32_t direction : crosses[list.channel_of[i]]) {
      LinkBytes& sum = out[direction / 2];
      (direction % 2 == 0 ? sum.read_bytes : sum.write_bytes) +=
          op.range_end_bytes - op.range_begin_bytes;
    }
  }
  return out;
}

/// The ranks while they run.
class Together {
 public:
  Together(const std::vector<RankRun>& runs, std::vector<std::unique_ptr<detail::Replay>>& ranks)
      : runs_(runs), ranks_(ranks) {
    for (const auto& rank : ranks_) rank->set_gate(detail::kNever);
  }

  bool enough(std::uint64_t now_ns) {
    if (!open_ && all([](const detail::Replay& rank) { return rank.steps_done() > 0; })) {
      open_ = true;
      for (std::size_t k = 0; k < ranks_.size(); ++k) {
        ranks_[k]->set_gate(now_ns + runs_[k].start_ns, runs_[k].period_ns);
      }
    }
    for (const auto& rank : ranks_) {
      if (rank->steps_done() + 1 >= kRankStepsMax) rank->stop();
    }
    return all([](const detail::Replay& rank) { return rank.steps_done() >= kStepsCount; });
  }

 private:
  template <typename Test>
  [[nodiscard]] bool all(Test&& test) const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return test(*rank); });
  }

  const std::vector<RankRun>& runs_;
  std::vector<std::unique_ptr<detail::Replay>>& ranks_;
  bool open_ = false;
};

RankSimulation measured(const detail::Replay& rank) {
  RankSimulation out;
  for (std::uint32_t step = kUnmeasuredSteps; step < kStepsCount; ++step) {
    out.step_ns += rank.step_ns(step);
    out.stall_ns += rank.stall_ns(step);
  }
  out.step_ns /= kMeasuredSteps;
  out.stall_ns /= kMeasuredSteps;
  out.peak_bytes = rank.peak_bytes();
  return out;
}

}  // namespace

Result<void> check_ranks(const Hardware& hardware, std::size_t ranks) {
  if (auto checked = check_hardware(hardware); !checked) return checked;
  if (ranks == 0) return Error{Errc::kInvalidArgument, "there are no ranks"};
  if (hardware.paths.size() <= 1 || hardware.paths.size() == ranks) return {};
  return Error{Errc::kInvalidArgument, "the hardware has paths of " +
                                           std::to_string(hardware.paths.size()) +
                                           " ranks, but there are " + std::to_string(ranks) +
                                           ": name one path per rank, or one for all"};
}

Result<std::vector<RankSimulation>> simulate_ranks(const std::vector<RankRun>& runs,
                                                   const Hardware& hardware) {
  if (auto checked = check_ranks(hardware, runs.size()); !checked) return checked.error();
  constexpr std::uint64_t kTimeNsMax = 1ULL << 54U;  // so that no sum of them wraps around
  for (const RankRun& run : runs) {
    if (run.start_ns <= kTimeNsMax && run.period_ns <= kTimeNsMax) continue;
    return Error{Errc::kInvalidArgument, "a rank's start or period is above 2^54 ns"};
  }
  auto links = ChannelLinks::create(hardware);
  if (!links) return links.error();
  std::vector<std::uint64_t> shared;
  for (const SharedLink& link : hardware.links) {
    shared.push_back(link.read_bytes_per_s);
    shared.push_back(link.write_bytes_per_s);
  }
  std::vector<detail::RankChannels> own;
  for (std::size_t k = 0; k < runs.size(); ++k) own.push_back({*links, crosses_of(hardware, k)});
  detail::Channels channels(own, shared);
  std::vector<std::unique_ptr<detail::Replay>> ranks;
  std::vector<std::vector<LinkBytes>> bytes;
  for (std::size_t k = 0; k < runs.size(); ++k) {
    auto step = detail::timed_step(*runs[k].schedule, hardware, *links);
    if (!step) return step.error().at("rank " + std::to_string(k));
    bytes.push_back(link_bytes(step->steady, own[k].crosses, shared.size() / 2));
    ranks.push_back(std::make_unique<detail::Replay>(*std::move(step), channels, k,
                                                     detail::Until::kStopped, runs[k].schedule));
  }
  Together together(runs, ranks);
  detail::drive(channels, ranks, [&](std::uint64_t now_ns) { return together.enough(now_ns); });
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    // One that waits for the others' first steps is not the one that is stuck.
    if (ranks[k]->steps_done() < kStepsCount && !ranks[k]->at_gate()) {
      return ranks[k]->stuck().at("rank " + std::to_string(k));
    }
  }
  std::vector<RankSimulation> out;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    out.push_back(measured(*ranks[k]));
    out.back().links = std::move(bytes[k]);
  }
  return out;
}

}  // namespace ho::analyzer
