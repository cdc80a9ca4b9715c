#include "tools/report/trace.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "common/model/check_graph.hpp"
#include "common/text/json.hpp"

namespace ho::analyzer {

namespace {

using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::Schedule;

constexpr unsigned kPredicted = 1;
constexpr unsigned kMeasured = 2;
constexpr unsigned kCompute = 1;
constexpr unsigned kStalls = 2;
constexpr unsigned kFirstChannel = 3;

template <typename T>
using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<>>;

double micros(std::uint64_t ns) { return static_cast<double>(ns) / 1e3; }

/// The track of a cache op's channel.
std::string channel_name(const Schedule& schedule, const CacheOp& op) {
  return std::string(schedule::home_tier_name(schedule::transfer_tier(schedule, op))) +
         (schedule::moves_toward_device(op.kind) ? ".read" : ".write");
}

class Trace {
 public:
  explicit Trace(const TraceInput& input) : schedule_(input.schedule) {
    for (const CacheOp& op : schedule_.cache_ops) {
      if (op.kind != CacheOpKind::kDetach) channels_.push_back(channel_name(schedule_, op));
    }
    std::sort(channels_.begin(), channels_.end());
    channels_.erase(std::unique(channels_.begin(), channels_.end()), channels_.end());
  }

  std::string render(const TraceInput& input) {
    json_.begin_object().field("displayTimeUnit", "ms").key("traceEvents").begin_array();
    const Simulation& predicted = input.predicted;
    const Tracks predicted_tracks = tracks_of(predicted.cache_ops);
    name_process(kPredicted, "predicted", predicted_tracks);
    for (std::size_t p = 0; p < std::min(predicted.op_start_ns.size(), positions()); ++p) {
      const std::uint64_t start_ns = predicted.op_start_ns[p];
      const std::uint64_t stall_ns = predicted.op_stall_ns[p];
      compute(kPredicted, p, {start_ns, start_ns + op_at(p).duration_ns}, stall_ns, nullptr);
    }
    transfers(kPredicted, predicted.cache_ops, predicted_tracks, nullptr);
    for (const MemoryPoint& point : predicted.memory) {
      begin_event("C", kPredicted, kCompute, "device bytes", point.at_ns)
          .key("args")
          .begin_object()
          .field("live", point.bytes)
          .end()
          .end();
    }
    if (input.measured != nullptr) {
      const Tracks tracks = tracks_of(input.measured->cache_ops);
      name_process(kMeasured, "measured", tracks);
      const auto& ops = input.measured->ops;
      for (std::size_t p = 0; p < std::min(ops.size(), positions()); ++p) {
        const auto& stalls = input.measured->stall_ns;
        compute(kMeasured, p, ops[p], p < stalls.size() ? stalls[p] : 0, input.measured);
      }
      transfers(kMeasured, input.measured->cache_ops, tracks, input.measured);
    }
    json_.end().end();
    return std::move(json_).text();
  }

 private:
  using MeasuredStep = schedule::MeasuredStep;
  using Span = MeasuredStep::Span;

  /// The tracks for the transfers of one process. Viewers drop events of one track that overlap
  /// without nesting. Transfers that share a channel overlap so, hence a channel gets as many
  /// tracks as it has transfers at a time.
  struct Tracks {
    std::vector<unsigned> of;        ///< track per cache op
    std::vector<std::string> names;  ///< names, starting at kFirstChannel
  };

  [[nodiscard]] std::size_t channel_of(const CacheOp& op) const {
    const auto at =
        std::lower_bound(channels_.begin(), channels_.end(), channel_name(schedule_, op));
    return static_cast<std::size_t>(at - channels_.begin());
  }

  [[nodiscard]] Tracks tracks_of(const std::vector<Span>& spans) const {
    Tracks tracks;
    tracks.of.resize(std::min(spans.size(), schedule_.cache_ops.size()));
    std::vector<std::vector<std::size_t>> users(channels_.size());
    for (std::size_t i = 0; i < tracks.of.size(); ++i) {
      const CacheOp& op = schedule_.cache_ops[i];
      if (op.kind != CacheOpKind::kDetach) users[channel_of(op)].push_back(i);
    }
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      std::stable_sort(users[c].begin(), users[c].end(), [&](std::size_t a, std::size_t b) {
        return spans[a].start_ns < spans[b].start_ns;
      });
      const std::size_t first = tracks.names.size();
      // The lowest free track, so that a channel uses as few as possible.
      using Lane = std::uint32_t;
      MinHeap<std::pair<std::uint64_t, Lane>> busy;  // by end time
      MinHeap<Lane> free;
      Lane lanes = 0;
      for (const std::size_t i : users[c]) {
        for (; !busy.empty() && busy.top().first <= spans[i].start_ns; busy.pop()) {
          free.push(busy.top().second);
        }
        if (free.empty()) free.push(lanes++);
        busy.emplace(std::max(spans[i].end_ns, spans[i].start_ns), free.top());
        tracks.of[i] = kFirstChannel + static_cast<unsigned>(first) + free.top();
        free.pop();
      }
      for (Lane lane = 0; lane < std::max<Lane>(lanes, 1); ++lane) {
        const std::string number = lane == 0 ? "" : " " + std::to_string(lane + 1);
        tracks.names.push_back(channels_[c] + number);
      }
    }
    return tracks;
  }

  [[nodiscard]] std::size_t positions() const { return schedule_.positions.size(); }
  [[nodiscard]] const schedule::OpInfo& op_at(std::size_t p) const {
    return schedule_.ops[schedule_.positions[p].op.value()];
  }

  JsonWriter& begin_event(std::string_view phase, unsigned process, unsigned track,
                          std::string_view name, std::uint64_t at_ns) {
    return json_.begin_object()
        .field("ph", phase)
        .field("pid", process)
        .field("tid", track)
        .field("name", name)
        .field("ts", micros(at_ns));
  }

  void name_one(std::string_view what, unsigned process, unsigned track, std::string_view name) {
    begin_event("M", process, track, what, 0)
        .key("args")
        .begin_object()
        .field("name", name)
        .end()
        .end();
  }

  void name_process(unsigned process, std::string_view name, const Tracks& tracks) {
    name_one("process_name", process, kCompute, name);
    name_one("thread_name", process, kCompute, "compute");
    name_one("thread_name", process, kStalls, "stalls");
    for (unsigned t = 0; t < tracks.names.size(); ++t) {
      name_one("thread_name", process, kFirstChannel + t, tracks.names[t]);
    }
  }

  void compute(unsigned process, std::size_t p, Span span, std::uint64_t stall_ns,
               const MeasuredStep* measured) {
    const auto& op = op_at(p);
    if (stall_ns > 0) {
      const std::uint64_t from_ns = span.start_ns - std::min(stall_ns, span.start_ns);
      begin_event("X", process, kStalls, "wait for " + op_label(op.id, op.name), from_ns)
          .field("dur", micros(span.start_ns - from_ns))
          .end();
    }
    begin_event("X", process, kCompute, op_label(op.id, op.name), span.start_ns)
        .field("dur", micros(std::max(span.end_ns, span.start_ns) - span.start_ns));
    json_.key("args").begin_object().field("position", p).field("id", op.id);
    json_.field("stall_ns", stall_ns);
    if (measured != nullptr && p < measured->awaited_bytes.size()) {
      json_.field("awaited_bytes", measured->awaited_bytes[p]);
    }
    if (!op.phase.empty()) json_.field("phase", op.phase);
    json_.end().end();
  }

  void transfers(unsigned process, const std::vector<Span>& spans, const Tracks& tracks,
                 const MeasuredStep* measured) {
    for (std::size_t i = 0; i < tracks.of.size(); ++i) {
      const CacheOp& op = schedule_.cache_ops[i];
      if (op.kind == CacheOpKind::kDetach) continue;
      const Storage& storage = schedule_.storages[op.storage.value()];
      const std::string name = std::string(schedule::cache_op_kind_name(op.kind)) + " " +
                               storage_label(storage.id, storage.name);
      begin_event("X", process, tracks.of[i], name, spans[i].start_ns)
          .field("dur", micros(std::max(spans[i].end_ns, spans[i].start_ns) - spans[i].start_ns))
          .key("args")
          .begin_object()
          .field("cache_op", i)
          .field("bytes", op.range_end_bytes - op.range_begin_bytes);
      if (measured != nullptr && i < measured->queue_ns.size()) {
        json_.field("queue_ns", measured->queue_ns[i]);
      }
      if (measured != nullptr && i < measured->cache_op_stall_ns.size()) {
        json_.field("stall_ns", measured->cache_op_stall_ns[i]);
      }
      json_.end().end();
    }
  }

  const Schedule& schedule_;
  std::vector<std::string> channels_;
  JsonWriter json_;
};

}  // namespace

std::string render_trace(const TraceInput& input) { return Trace(input).render(input); }

}  // namespace ho::analyzer
