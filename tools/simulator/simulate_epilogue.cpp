#include <array>
#include <functional>
#include <queue>

#include "common/base/buckets.hpp"
#include "tools/simulator/simulate_channels.hpp"

namespace ho::analyzer::detail {

using schedule::CacheOp;
using schedule::CacheOpKind;

namespace {

/// The epilogue on idle channels. Each channel takes its ready transfers in list order.
class Epilogue {
 public:
  Epilogue(const schedule::Schedule& schedule, const ChannelLinks& links,
           const std::vector<unsigned>& channel_of, std::uint64_t from_ns)
      : list_(schedule.epilogue),
        channel_of_(channel_of),
        channels_({{links, {}}}, {}),
        now_ns_(from_ns),
        spans_(list_.size()) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
    for (std::uint32_t i = 0; i < list_.size(); ++i) {
      waits_.push_back(static_cast<std::uint32_t>(list_[i].after_cache_ops.size()));
      for (const auto& ref : list_[i].after_cache_ops) edges.emplace_back(ref.op.value(), i);
    }
    dependents_ = Buckets(list_.size(), edges);
  }

  std::vector<schedule::MeasuredStep::Span> run() {
    for (std::uint32_t i = 0; i < list_.size(); ++i) {
      if (waits_[i] == 0) queue(i);
    }
    while (true) {
      start_transfers();
      const std::uint64_t next_ns = channels_.next_ns();
      if (next_ns == kNever) break;
      now_ns_ = next_ns;
      while (channels_.next_ns() == now_ns_) {
        if (const auto ended = channels_.advance(now_ns_)) complete(active_[ended->channel]);
      }
    }
    return std::move(spans_);
  }

 private:
  void queue(std::uint32_t op) {
    if (list_[op].kind == CacheOpKind::kDetach) return;  // not allowed here; it has no channel
    queues_[channel_of_[op]].push(op);
  }

  void start_transfers() {
    for (unsigned channel = 0; channel < kChannelCount; ++channel) {
      if (queues_[channel].empty() || !channels_.idle(0, channel)) continue;
      const std::uint32_t op = queues_[channel].top();
      queues_[channel].pop();
      active_[channel] = op;
      spans_[op].start_ns = now_ns_;
      channels_.start(0, channel, list_[op].range_end_bytes - list_[op].range_begin_bytes, now_ns_);
    }
  }

  void complete(std::uint32_t op) {
    spans_[op].end_ns = now_ns_;
    for (const auto* next = dependents_.begin(op); next != dependents_.end(op); ++next) {
      if (--waits_[*next] == 0) queue(*next);
    }
  }

  const std::vector<CacheOp>& list_;
  const std::vector<unsigned>& channel_of_;
  Channels channels_;
  std::uint64_t now_ns_;
  Buckets dependents_;
  std::vector<std::uint32_t> waits_;
  std::array<std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>>,
             kChannelCount>
      queues_;
  std::array<std::uint32_t, kChannelCount> active_{};
  std::vector<schedule::MeasuredStep::Span> spans_;
};

}  // namespace

std::vector<schedule::MeasuredStep::Span> replay_epilogue(const schedule::Schedule& schedule,
                                                          const ChannelLinks& links,
                                                          const std::vector<unsigned>& channel_of,
                                                          std::uint64_t from_ns) {
  return Epilogue(schedule, links, channel_of, from_ns).run();
}

}  // namespace ho::analyzer::detail
