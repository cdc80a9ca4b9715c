// Values that the job writes and reads itself.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "client/runtime/plan.hpp"
#include "client/runtime/runtime.hpp"

namespace ho::client {

/// The storage that has these bytes. @param offset_bytes  nothing: they have to be all of it.
Result<const Plan::StorageSlot*> Plan::find_range(std::uint32_t storage_id,
                                                  std::optional<std::uint64_t> offset_bytes,
                                                  std::size_t bytes) const {
  if (auto ok = runtime_.check_running(); !ok) return ok.error();
  const StorageSlot* const slot = find_storage(storage_id);
  if (slot == nullptr) {
    return Error(Errc::kNotFound, "no storage with id " + std::to_string(storage_id));
  }
  const std::uint64_t begin = offset_bytes.value_or(0);
  if (!offset_bytes && bytes == slot->bytes) return slot;
  if (offset_bytes && bytes == 0) return Error(Errc::kInvalidArgument, "a range of 0 bytes");
  if (offset_bytes && begin <= slot->bytes && bytes <= slot->bytes - begin) return slot;
  const std::string has =
      names_[slot->storage.value()] + " has " + std::to_string(slot->bytes) + " bytes, ";
  if (!offset_bytes) return Error(Errc::kInvalidArgument, has + std::to_string(bytes) + " given");
  return Error(Errc::kOutOfRange, has + "the range is " + std::to_string(bytes) + " from " +
                                      std::to_string(begin) + " on");
}

Result<void> Plan::write(std::uint32_t storage_id, std::optional<std::uint64_t> offset_bytes,
                         std::span<const std::byte> data) {
  const auto slot = find_range(storage_id, offset_bytes, data.size());
  if (!slot) return slot.error();
  const std::string& name = names_[(*slot)->storage.value()];
  if ((*slot)->persistent) {
    return runtime_.write(*numbers_[(*slot)->storage.value()], offset_bytes.value_or(0), data);
  }
  if (!(*slot)->input) {
    return Error(Errc::kInvalidArgument,
                 name + " is neither persistent nor an INPUT: an op makes its value");
  }
  if (data.size() != (*slot)->bytes) {
    return Error(Errc::kInvalidArgument, name + " is an INPUT: write all of it");
  }
  return write_input(*inputs_[*(*slot)->input], data);
}

Result<void> Plan::read(std::uint32_t storage_id, std::optional<std::uint64_t> offset_bytes,
                        std::span<std::byte> into) {
  const auto slot = find_range(storage_id, offset_bytes, into.size());
  if (!slot) return slot.error();
  if (!(*slot)->persistent) {
    return Error(Errc::kInvalidArgument,
                 names_[(*slot)->storage.value()] + " is not persistent: no value outlives a step");
  }
  return runtime_.read(*numbers_[(*slot)->storage.value()], offset_bytes.value_or(0), into);
}

/// By way of memory that stays registered: an INPUT comes at every step. Steps take turns with two
/// homes, so the one that is written was last used two steps before.
Result<void> Plan::write_input(Input& input, std::span<const std::byte> data) {
  const std::uint64_t step = steps_begun_.load();
  const auto unused = [&] {
    const std::uint64_t first = run_first_step_.load();
    return step < 2 || first == kNotRunning || first + active_.retired_steps.load() + 1 >= step;
  };
  for (;;) {
    const std::uint32_t token = active_.changed.token();
    if (unused()) break;
    if (auto ok = runtime_.check_running(); !ok) return ok;
    active_.changed.wait(token, kLookAgain);
  }
  const std::lock_guard guard(input.moving);
  Storages& storages = runtime_.storages();
  const auto copy = storages.registered(Direction::kPut, bounce_handles_);
  const auto hurried = storages.registered(Direction::kPut, bounce_handles_, kPutLateMin);
  std::uint8_t& missed = input.missed[step % 2];
  const auto write_by = [&](const Storages::Copy& by) -> Result<void> {
    missed = 0;
    for (std::size_t at = 0; at < data.size(); at += bounce_.size()) {
      const auto part = data.subspan(at, std::min(bounce_.size(), data.size() - at));
      std::copy(part.begin(), part.end(), bounce_.begin());
      const auto bytes = std::span(bounce_).first(part.size());
      auto moved = storages.put_in_time(input.home, step % 2, at, bytes, copy, by, missed);
      if (!moved) return moved;
    }
    return {};
  };
  auto written = write_by(hurried);
  // The home that had it is lost; the node that was left out may answer yet.
  if (!written && missed != 0) written = write_by(copy);
  if (!written) {
    return runtime_.moved_badly(written.error().at("writing " + names_[input.storage.value()]));
  }
  replay_->input_written(input.storage, step, missed);
  input.written_steps.store(step + 1);
  return {};
}

}  // namespace ho::client
