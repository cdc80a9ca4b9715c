#include "client/transfer/control_stager.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {

ControlStager::ControlStager(Options options, const Clock& clock, std::shared_ptr<Doorbell> door)
    : options_(std::move(options)), clock_(clock), door_(std::move(door)), slots_(kOpsMax) {
  HO_CHECK(options_.send != nullptr && options_.op_bytes_max > 0);
  for (std::uint32_t i = kOpsMax; i-- > 0;) free_.push_back(i);
}

Result<void> ControlStager::submit(const StageOp& op) {
  HO_CHECK(op.length_bytes > 0 && op.length_bytes <= options_.op_bytes_max);
  if (free_.empty()) return Error(Errc::kBusy, "too many stages are under way");
  const std::uint32_t slot = free_.back();
  slots_[slot] = Slot();
  slots_[slot].op = op;
  if (auto asked = ask(slot); !asked) {
    slots_[slot].number = 0;
    keep(op.op, asked.error().context());
    return asked;
  }
  free_.pop_back();
  return {};
}

/// @return what cannot be mended by asking again.
Result<void> ControlStager::ask(std::uint32_t slot) {
  Slot& asking = slots_[slot];
  const std::uint64_t number = next_number_++;
  asking.number = number;
  asking.again = TimePoint::max();
  auto asked =
      options_.send(asking.op, [box = box_, door = door_, slot, number](const Result<void>& done) {
        Answer answer{slot, number, done ? Errc::kOk : done.error().code(),
                      done ? std::string() : done.error().context()};
        {
          const std::lock_guard guard(box->mutex);
          box->answers.push_back(std::move(answer));
        }
        door->bell.ring();
      });
  if (asked || asked.error().code() != Errc::kBusy) return asked;
  ask_later(asking, asked.error().context());
  return {};
}

void ControlStager::ask_later(Slot& slot, std::string text) {
  slot.again = clock_.now() + slot.pause;
  slot.pause = std::min(2 * slot.pause, kRetryMax);
  slot.busy = std::move(text);
}

void ControlStager::keep(OpId op, std::string text) {
  texts_[texts_count_++ % texts_.size()] = {op, std::move(text)};
}

std::string ControlStager::explain(OpId op) const {
  for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(texts_count_, kTextsMax); ++back) {
    const Text& one = texts_[(texts_count_ - back) % texts_.size()];
    if (one.op == op) return one.text;
  }
  return "";
}

std::size_t ControlStager::poll(std::span<Completion> out) {
  {
    const std::lock_guard guard(box_->mutex);
    std::move(box_->answers.begin(), box_->answers.end(), std::back_inserter(taken_));
    box_->answers.clear();
  }
  std::size_t written = 0;
  std::size_t read = 0;
  const auto end = [&](std::uint32_t slot, Errc code, std::string text) {
    const StageOp& op = slots_[slot].op;
    if (code != Errc::kOk) keep(op.op, std::move(text));
    out[written++] = {op.op, code, code == Errc::kOk ? op.length_bytes : 0};
    slots_[slot].number = 0;
    free_.push_back(slot);
  };
  for (; read < taken_.size() && written < out.size(); ++read) {
    Answer& answer = taken_[read];
    Slot& slot = slots_[answer.slot];
    if (slot.number != answer.number) continue;  // its deadline has passed
    if (answer.code == Errc::kBusy) {
      ask_later(slot, std::move(answer.text));
    } else {
      end(answer.slot, answer.code, std::move(answer.text));
    }
  }
  taken_.erase(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(read));
  if (free_.size() == slots_.size()) return written;
  const TimePoint now = clock_.now();
  for (std::uint32_t i = 0; i < kOpsMax && written < out.size(); ++i) {
    Slot& slot = slots_[i];
    const bool refused = slot.again != TimePoint::max();
    if (slot.number == 0) continue;
    if (now >= slot.op.deadline) {
      // A busy node has nothing of it under way, and is not one that fell silent.
      if (refused) end(i, Errc::kBusy, "busy until the deadline: " + slot.busy);
      if (!refused) end(i, Errc::kDeadline, "no answer in time");
    } else if (now >= slot.again) {
      if (auto asked = ask(i); !asked) end(i, asked.error().code(), asked.error().context());
    }
  }
  return written;
}

}  // namespace ho::client
