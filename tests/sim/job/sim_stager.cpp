#include "tests/sim/job/sim_stager.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::test {

SimStager::SimStager(const Clock& clock, Options options, std::uint64_t seed, Segment segment)
    : clock_(clock), options_(options), random_(seed), segment_(std::move(segment)) {}

SimStager::Node& SimStager::node_of(client::NodeIndex node) {
  while (nodes_.size() <= node.value()) nodes_.emplace_back();
  return nodes_[node.value()];
}

std::vector<std::byte>& SimStager::flash(client::NodeIndex node) { return node_of(node).flash; }

void SimStager::kill(client::NodeIndex node) { node_of(node).state = NodeState::kDead; }

void SimStager::stop(client::NodeIndex node) { node_of(node).state = NodeState::kStopped; }

Result<void> SimStager::submit(const client::StageOp& op) {
  HO_CHECK(op.length_bytes > 0 && op.length_bytes <= options_.op_bytes_max);
  if (node_of(op.flash.node).state == NodeState::kDead) {
    return Error(Errc::kUnavailable, "killed");
  }
  if (flights_.size() >= options_.depth_ops) return Error(Errc::kBusy, "full");
  Flight flight{op, clock_.now(), Errc::kOk};
  const auto most = static_cast<std::uint64_t>(options_.delay_max.count());
  flight.ends += Duration(static_cast<std::int64_t>(random_.below(most + 1)));
  if (random_.below(1'000'000) < static_cast<std::uint64_t>(options_.failure * 1'000'000)) {
    flight.code = Errc::kCorrupt;
  }
  flights_.push_back(flight);
  return {};
}

TimePoint SimStager::end_of(const Flight& flight) const {
  switch (nodes_[flight.op.flash.node.value()].state) {
    case NodeState::kUp: return std::min(flight.ends, flight.op.deadline);
    case NodeState::kStopped: return flight.op.deadline;
    case NodeState::kDead: break;
  }
  return clock_.now();
}

void SimStager::move(const client::StageOp& op) {
  auto& flash = node_of(op.flash.node).flash;
  const auto segment = segment_(op.flash.node, op.segment);
  HO_CHECK(op.segment_offset_bytes + op.length_bytes <= segment.size());
  HO_CHECK(op.flash.offset_bytes + op.length_bytes <= flash.size());
  const auto here = segment.subspan(op.segment_offset_bytes, op.length_bytes);
  const auto there = std::span(flash).subspan(op.flash.offset_bytes, op.length_bytes);
  const bool in = op.direction == StageDirection::kIn;
  if (in) std::copy(there.begin(), there.end(), here.begin());
  if (!in) std::copy(here.begin(), here.end(), there.begin());
  moved_ += op.length_bytes;
}

std::size_t SimStager::poll(std::span<Completion> out) {
  std::size_t written = 0;
  for (std::size_t i = 0; i < flights_.size() && written < out.size();) {
    const Flight flight = flights_[i];
    if (end_of(flight) > clock_.now()) {
      ++i;
      continue;
    }
    const NodeState state = node_of(flight.op.flash.node).state;
    Errc code = flight.code;
    if (flight.op.deadline <= clock_.now()) code = Errc::kDeadline;
    if (state == NodeState::kDead) code = Errc::kUnavailable;
    if (code == Errc::kOk) move(flight.op);
    out[written++] = {flight.op.op, code, code == Errc::kOk ? flight.op.length_bytes : 0};
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return written;
}

std::optional<TimePoint> SimStager::next_event() const {
  std::optional<TimePoint> next;
  for (const Flight& flight : flights_) {
    const TimePoint end = end_of(flight);
    if (!next || end < *next) next = end;
  }
  return next;
}

}  // namespace ho::test
