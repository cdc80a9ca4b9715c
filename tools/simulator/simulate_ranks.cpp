#include "tools/simulator/simulate_ranks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
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

/// The time in which all ranks are measured: from when all have made the unmeasured steps until
/// all have made the measured ones. Were each rank measured over its own steps, the sum of what
/// they move could exceed what a link carries.
struct Window {
  std::uint64_t begin_ns = detail::kNever;
  std::uint64_t end_ns = detail::kNever;
};

/// The ranks while they run.
class Together {
 public:
  Together(const std::vector<RankRun>& runs, std::vector<std::unique_ptr<detail::Replay>>& ranks)
      : runs_(runs), ranks_(ranks), at_end_(ranks.size()) {
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
    const auto made = [](std::uint32_t steps) {
      return [steps](const detail::Replay& rank) { return rank.steps_done() >= steps; };
    };
    if (window_.begin_ns == detail::kNever && all(made(kUnmeasuredSteps))) {
      window_.begin_ns = now_ns;
    }
    if (window_.end_ns == detail::kNever) {
      if (!all(made(kStepsCount))) return false;
      window_.end_ns = now_ns;
      for (std::size_t k = 0; k < ranks_.size(); ++k) at_end_[k] = ranks_[k]->steps_done();
    }
    // Steps that the window cuts have to end, so that it is known which part of them is in it.
    for (std::size_t k = 0; k < ranks_.size(); ++k) {
      const detail::Replay& rank = *ranks_[k];
      const bool cut = rank.computing() && !rank.at_gate() && rank.steps_done() == at_end_[k];
      if (cut && rank.step(at_end_[k]).start_ns < window_.end_ns) return false;
    }
    return true;
  }

  [[nodiscard]] Window window() const { return window_; }

 private:
  template <typename Test>
  [[nodiscard]] bool all(Test&& test) const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return test(*rank); });
  }

  const std::vector<RankRun>& runs_;
  std::vector<std::unique_ptr<detail::Replay>>& ranks_;
  bool open_ = false;
  Window window_;
  std::vector<std::uint32_t> at_end_;  ///< steps of each rank at the end of the window
};

/// Means over the steps in the window; of a step that it cuts, the part in it counts.
RankSimulation measured(const detail::Replay& rank, Window window) {
  const std::uint32_t steps = rank.steps_done();
  if (rank.step(steps - 1).end_ns <= window.begin_ns) {  // it had made all its steps before
    window = {rank.step(steps - kMeasuredSteps).start_ns, rank.step(steps - 1).end_ns};
  }
  double count = 0;
  double step_ns = 0;
  double stall_ns = 0;
  for (std::uint32_t k = 0; k < steps; ++k) {
    const detail::StepRecord& step = rank.step(k);
    const std::uint64_t begin_ns = std::max(step.start_ns, window.begin_ns);
    const std::uint64_t end_ns = std::min(step.end_ns, window.end_ns);
    if (begin_ns >= end_ns) continue;
    const auto inside_ns = static_cast<double>(end_ns - begin_ns);
    const double part = inside_ns / static_cast<double>(step.end_ns - step.start_ns);
    count += part;
    step_ns += inside_ns;
    stall_ns += static_cast<double>(step.stall_ns) * part;
  }
  RankSimulation out;
  if (count > 0) {  // else its ops take no time
    out.step_ns = static_cast<std::uint64_t>(std::llround(step_ns / count));
    out.stall_ns = static_cast<std::uint64_t>(std::llround(stall_ns / count));
  }
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
    out.push_back(measured(*ranks[k], together.window()));
    out.back().links = std::move(bytes[k]);
  }
  return out;
}

}  // namespace ho::analyzer
