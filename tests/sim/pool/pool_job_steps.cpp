// The steps of a simulated job, as client::Runtime and client::Plan have them.
#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tests/sim/pool/pool_job.hpp"

namespace ho::test {
namespace {

using client::ValuePlace;
using schedule::Access;

/// Longer than any wait that ends by a deadline.
constexpr Duration kNeverSoLong = std::chrono::seconds(20);

}  // namespace

bool PoolJob::check_value(std::uint32_t storage, std::span<const std::byte> bytes,
                          const std::string& where) {
  const auto found = check_stamped(bytes, stamp_of(held_[storage]));
  if (found) {
    wrong("storage " + std::to_string(storage) + " of step " + std::to_string(steps_) + ", " +
          where + ": " + *found);
  }
  return !found;
}

/// One step, with what the job does between two. @return false: the job has failed.
bool PoolJob::step() {
  if (!repair()) return false;
  if (running_ && random_.below(12) == 0 && !end_run()) return false;
  if (!running_) {
    for (Held& held : held_) {
      if (!held.persistent || random_.below(6) != 0) continue;
      if (random_.below(2) == 0) {
        if (held.place.at_home && !read(held)) return fail("a value cannot be read");
      } else if (!held.place.on_device) {
        held.version += 1;
        if (!write(held)) return fail("a value cannot be written");
      }
    }
    if (!begin_run()) return false;
  }
  for (std::uint32_t s = 0; s < held_.size(); ++s) {
    Held& held = held_[s];
    if (!held.input) continue;
    held.version += 1;
    std::uint8_t& missed = held.missed[steps_ % 2];
    missed = 0;
    if (!put(held, steps_ % 2, missed)) return fail("an INPUT cannot be written");
    replay_->input_written(StorageIndex(s), steps_, missed);
  }
  if (failed_) return false;
  HO_CHECK(replay_->begin_step().ok());
  steps_ += 1;
  run_steps_ += 1;
  world_.counts().steps += 1;
  world_.trace("step", number_, steps_);
  kick(world_.now());
  for (std::uint32_t p = 0; p < schedule_.positions.size(); ++p) {
    if (!run_position(p)) return false;
  }
  return true;
}

bool PoolJob::run_position(std::uint32_t position) {
  const std::uint64_t at = (run_steps_ - 1) * schedule_.positions.size() + position;
  const bool ready = world_.fibers().wait_until(
      [&] { return replay_->failure() || replay_->executor().ready_through() > at; },
      world_.now() + kNeverSoLong);
  if (replay_->failure()) return fail("");
  if (!ready) {
    wrong("position " + std::to_string(position) + " is never ready");
    return false;
  }
  if (!run_op(position)) return false;
  const auto& op = schedule_.ops[schedule_.positions[position].op.value()];
  world_.fibers().sleep(Duration(static_cast<std::int64_t>(random_.below(2 * op.duration_ns + 1))));
  if (replay_->failure()) return fail("");
  HO_CHECK(replay_->positions_ended(at + 1).ok());
  kick(world_.now());
  return true;
}

/// Each operand that is read is compared; each that is written becomes the next version.
bool PoolJob::run_op(std::uint32_t position) {
  const auto& operands = schedule_.positions[position].operands;
  for (const auto& operand : operands) {
    const std::uint32_t s = operand.storage.value();
    if (operand.access == Access::kWrite) continue;
    world_.counts().gets += 1;
    const std::string where = "position " + std::to_string(position);
    if (!check_value(s, device(s, operand.device_offset_bytes), where)) return false;
  }
  for (const auto& operand : operands) {
    const std::uint32_t s = operand.storage.value();
    if (operand.access == Access::kRead) continue;
    held_[s].version += 1;
    fill_stamped(device(s, operand.device_offset_bytes), stamp_of(held_[s]));
  }
  return true;
}

/// As Runtime::begin_run().
bool PoolJob::begin_run() {
  std::vector<ValuePlace> places(held_.size());
  for (std::uint32_t s = 0; s < held_.size(); ++s) {
    Held& held = held_[s];
    if (!held.persistent) continue;
    if (held.place.on_device) {
      const auto entry = replay_->entry(StorageIndex(s), held.place);
      if (entry.store_first && !write(held)) return fail("a value cannot be stored");
      if (!entry.stays) held.place.on_device = false;
    }
    if (!held.place.on_device && !held.place.at_home) return fail("a value is nowhere");
    places[s] = held.place;
  }
  replay_->restart(places, steps_);
  run_steps_ = 0;
  running_ = true;
  kick(world_.now());
  return true;
}

/// As Runtime::end_run().
bool PoolJob::end_run() {
  HO_CHECK(replay_->begin_epilogue(*mover_, {}).ok());
  kick(world_.now());
  const bool ended = world_.fibers().wait_until(
      [this] {
        return replay_->failure() ||
               replay_->executor().state() == client::Executor::State::kFinished;
      },
      world_.now() + kNeverSoLong);
  if (replay_->failure()) return fail("");
  if (!ended) {
    wrong("an epilogue never ends");
    return false;
  }
  return take_places();
}

bool PoolJob::stop_run() {
  const bool ended = world_.fibers().wait_until(
      [this] {
        const bool quiet = replay_->stop(*mover_);
        kick(world_.now());
        return quiet;
      },
      world_.now() + kNeverSoLong);
  if (replay_->failure()) return fail("");
  if (!ended) {
    wrong("a run is never stopped");
    return false;
  }
  return take_places();
}

/// As Runtime::take_places(): every value is where the replay says.
bool PoolJob::take_places() {
  running_ = false;
  for (std::uint32_t s = 0; s < held_.size(); ++s) {
    Held& held = held_[s];
    if (!held.persistent) continue;
    held.place = replay_->place(StorageIndex(s));
    HO_CHECK(!held.place.staged);
    if (held.place.stale_homes != 0) world_.counts().stale_values += 1;
    if (world_.planted(Planted::kStaleForgotten)) held.place.stale_homes = 0;
    const auto bytes = device(s, held.place.device_offset_bytes);
    if (held.place.on_device && !check_value(s, bytes, "on the device")) return false;
  }
  check_homes();
  return !world_.is_wrong();
}

}  // namespace ho::test
