#include "client/control_stager.hpp"

#include <iterator>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {

ControlStager::ControlStager(const std::vector<NodeSession>& nodes, std::shared_ptr<Doorbell> door)
    : nodes_(nodes), door_(std::move(door)), slots_(kOpsMax), said_(nodes.size()) {
  for (std::uint32_t i = kOpsMax; i-- > 0;) free_.push_back(i);
}

Result<void> ControlStager::submit(const StageOp& op) {
  HO_CHECK(op.flash.node.value() < nodes_.size());
  if (free_.empty()) return Error(Errc::kBusy, "too many stages are under way");
  const NodeSession& node = nodes_[op.flash.node.value()];
  const std::uint32_t slot = free_.back();
  const std::uint64_t number = next_number_++;
  StageSpec spec;
  spec.direction = op.direction == Staging::kIn ? StageDirection::kIn : StageDirection::kOut;
  spec.extent = op.flash.extent;
  spec.extent_offset_bytes = op.flash.offset_bytes;
  spec.segment = op.segment;
  spec.segment_offset_bytes = op.segment_offset_bytes;
  spec.length_bytes = op.length_bytes;
  auto started = node.control->stage(
      node.session, spec, [box = box_, door = door_, slot, number](const Result<void>& done) {
        Answer answer{slot, number, done ? Errc::kOk : done.error().code(),
                      done ? std::string() : done.error().context()};
        {
          const std::lock_guard guard(box->mutex);
          box->answers.push_back(std::move(answer));
        }
        door->bell.ring();
      });
  if (!started) return started;
  free_.pop_back();
  slots_[slot] = {op, number};
  return {};
}

std::size_t ControlStager::poll(std::span<Completion> out) {
  {
    const std::lock_guard guard(box_->mutex);
    std::move(box_->answers.begin(), box_->answers.end(), std::back_inserter(taken_));
    box_->answers.clear();
  }
  std::size_t written = 0;
  std::size_t read = 0;
  const auto end = [&](std::uint32_t slot, Errc code) {
    const std::uint64_t moved = code == Errc::kOk ? slots_[slot].op.length_bytes : 0;
    out[written++] = {slots_[slot].op.op, code, moved};
    slots_[slot].number = 0;
    free_.push_back(slot);
  };
  for (; read < taken_.size() && written < out.size(); ++read) {
    Answer& answer = taken_[read];
    const Slot& slot = slots_[answer.slot];
    if (slot.number != answer.number) continue;  // its deadline has passed
    if (answer.code != Errc::kOk) said_[slot.op.flash.node.value()] = std::move(answer.text);
    end(answer.slot, answer.code);
  }
  taken_.erase(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(read));
  if (free_.size() == slots_.size()) return written;
  const TimePoint now = clock_.now();
  for (std::uint32_t i = 0; i < kOpsMax && written < out.size(); ++i) {
    if (slots_[i].number == 0 || now < slots_[i].op.deadline) continue;
    said_[slots_[i].op.flash.node.value()] = "no answer in time";
    end(i, Errc::kDeadline);
  }
  return written;
}

}  // namespace ho::client
