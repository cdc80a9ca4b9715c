// What a simulated job does: steps, values between them, and one turn of the transfer thread.
#include "tests/sim/job/sim_job.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"

namespace ho::test {
namespace {

using client::HostedMemory;
using client::ValuePlace;
using schedule::Access;

}  // namespace

TimePoint SimJob::next_event(TimePoint otherwise) const {
  return std::min(transport_.next_event().value_or(otherwise),
                  stager_.next_event().value_or(otherwise));
}

std::uint64_t SimJob::ticks() const {
  return static_cast<std::uint64_t>(clock_.now().time_since_epoch().count());
}

SimOutcome SimJob::run(std::uint64_t steps) {
  run_steps(plans_.front(), steps);
  return finish();
}

SimOutcome SimJob::finish() {
  if (!over() && running_ != nullptr) end_run(nullptr);
  if (!over()) check_homes();
  drain();
  outcome_.staged_bytes = stager_.moved();
  if (failure_) outcome_.failure = running_->replay->failure();
  outcome_.finished = !over();
  if (outcome_.finished && !host_.wrong().empty()) wrong(host_.wrong());
  return outcome_;
}

SimOutcome SimJob::run_mixed(std::uint64_t acts) {
  for (std::uint64_t act = 0; act < acts && !over(); ++act) {
    Plan& plan = plans_[random_.below(plans_.size())];
    switch (random_.below(10)) {
      case 0:
        if (running_ != nullptr) end_run(nullptr);
        if (!over()) check_homes();
        break;
      case 1: leave_step(plan); break;
      case 2:
      case 3: look_at_any(); break;
      case 4: write_any(); break;
      default: run_steps(plan, 1 + random_.below(3));
    }
  }
  return finish();
}

void SimJob::check_homes() {
  for (auto& [name, held] : held_) {
    // A plan that leaves a value alone on the device need not know of it: the runtime stores it.
    if (!held.place.at_home) {
      HO_CHECK(held.place.on_device);
      continue;
    }
    if (!at_home(held.home, 0, held.place.stale_homes, held.model)) wrong("home of " + name);
  }
}

void SimJob::run_steps(Plan& plan, std::uint64_t steps) {
  for (std::uint64_t step = 0; step < steps && !over(); ++step) {
    begin_step(plan);
    for (std::uint32_t p = 0; p < plan.schedule.positions.size() && !over(); ++p) {
      if (!run_position(plan, p)) return;
    }
  }
}

void SimJob::begin_step(Plan& plan) {
  if (running_ != &plan) begin_run(plan);
  if (over()) return;
  for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
    if (!is_input(plan.schedule.storages[s])) continue;
    plan.model[s] = random_value(plan.model[s].size());
    write_home(plan.homes[s], plan.steps, plan.model[s]);
  }
  const auto begun = plan.replay->begin_step();
  HO_CHECK(begun.ok());
  plan.steps += 1;
  plan.run_steps += 1;
}

/// @return false: the job has failed, or waits forever.
bool SimJob::run_position(Plan& plan, std::uint32_t position) {
  const std::uint64_t positions = plan.schedule.positions.size();
  const std::uint64_t at = (plan.run_steps - 1) * positions + position;
  if (!drive_until_ready(plan, at)) return false;
  run_op(plan, position);
  // The op takes about its duration; transfers go on meanwhile.
  const auto& op = plan.schedule.ops[plan.schedule.positions[position].op.value()];
  const TimePoint ends =
      clock_.now() + Duration(static_cast<std::int64_t>(random_.below(2 * op.duration_ns + 1)));
  while (clock_.now() < ends && !over()) {
    turn();
    clock_.advance_to(std::min(ends, std::min(next_event(ends), clock_.now() + kControlNotice)));
  }
  // What nothing needs any more the job frees itself.
  for (const auto& operand : plan.schedule.positions[position].operands) {
    const std::uint32_t s = operand.storage.value();
    const bool ends_here = !plan.schedule.storages[s].persistent && plan.last[s] == position;
    if (device_ == SimDevice::kArena || !ends_here) continue;
    host_.free(plan.replay->hosted()->address(operand.storage));
    plan.replay->hosted()->set_address(operand.storage, nullptr);
  }
  const auto ended = plan.replay->positions_ended(at + 1);
  HO_CHECK(ended.ok());
  serve();
  return !over();
}

/// A step that ends before its last position. Persistent values that have no place then are
/// supplied again.
void SimJob::leave_step(Plan& plan) {
  begin_step(plan);
  const std::uint64_t positions = random_.below(plan.schedule.positions.size() + 1);
  for (std::uint32_t p = 0; p < positions && !over(); ++p) {
    if (!run_position(plan, p)) return;
  }
  for (std::uint64_t i = random_.below(4); i > 0 && !over(); --i) wait_a_little();
  if (over()) return;
  outcome_.left_steps += 1;
  stop_run();
  if (over()) return;
  for (auto& [name, held] : held_) {
    if (held.place.on_device || held.place.at_home) continue;
    write_home(held.home, 0, held.model);
    held.place.at_home = true;
    held.place.stale_homes = 0;
  }
}

/// As client::Runtime::begin_step().
void SimJob::begin_run(Plan& plan) {
  if (running_ != nullptr) end_run(&plan);
  if (over()) return;
  std::map<std::string, std::uint32_t> known;
  for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
    if (plan.schedule.storages[s].persistent) known[plan.schedule.storages[s].name] = s;
  }
  std::vector<ValuePlace> places(plan.homes.size());
  for (auto& [name, held] : held_) {
    const auto index = known.find(name);
    if (held.place.on_device) {
      client::Replay::Entry entry{.stays = false, .store_first = !held.place.at_home};
      if (index != known.end()) entry = plan.replay->entry(StorageIndex(index->second), held.place);
      if (entry.store_first) {
        write_home(held.home, 0, held.model);
        held.place.at_home = true;
        held.place.stale_homes = 0;
      }
      if (!entry.stays) {
        held.place.on_device = false;
        if (held.address != nullptr) host_.free(std::exchange(held.address, nullptr));
      } else if (!held.place.at_home) {
        outcome_.kept_values += 1;
      }
    }
    if (index != known.end()) places[index->second] = held.place;
  }
  if (HostedMemory* const hosted = plan.replay->hosted()) {
    for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
      const Storage& storage = plan.schedule.storages[s];
      hosted->set_address(StorageIndex(s),
                          storage.persistent ? held_[storage.name].address : nullptr);
    }
  }
  plan.replay->restart(places, plan.steps);
  plan.run_steps = 0;
  running_ = &plan;
  outcome_.runs += 1;
}

/// As client::Runtime::end_run().
void SimJob::end_run(const Plan* next) {
  Plan& plan = *running_;
  std::vector<std::uint8_t> keep(plan.homes.size(), 0);
  for (std::uint32_t s = 0; next != nullptr && s < keep.size(); ++s) {
    ValuePlace place = plan.replay->place(StorageIndex(s));
    for (std::uint32_t t = 0; t < next->homes.size() && place.on_device; ++t) {
      const Storage& storage = next->schedule.storages[t];
      if (!storage.persistent || storage.name != plan.schedule.storages[s].name) continue;
      place.at_home = false;
      keep[s] = next->replay->entry(StorageIndex(t), place).store_first ? 0 : 1;
    }
  }
  const auto begun = plan.replay->begin_epilogue(*mover_, keep);
  HO_CHECK(begun.ok());
  while (plan.replay->executor().state() != client::Executor::State::kFinished && !over()) {
    if (plan.replay->quiet() && mover_->in_flight() == 0) wrong("the epilogue never ends");
    wait_a_little();
  }
  if (!over()) take_places();
}

void SimJob::stop_run() {
  while (!running_->replay->stop(*mover_) && !over()) wait_a_little();
  if (!over()) take_places();
}

/// As client::Runtime::take_places(), with all values checked where they are said to be.
void SimJob::take_places() {
  Plan& plan = *running_;
  running_ = nullptr;
  HostedMemory* const hosted = plan.replay->hosted();
  for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
    const Storage& storage = plan.schedule.storages[s];
    const ValuePlace place = plan.replay->place(StorageIndex(s));
    check_place(plan, s, place);
    std::byte* address = hosted != nullptr ? hosted->address(StorageIndex(s)) : nullptr;
    const bool stays = place.on_device && storage.persistent;
    if (address != nullptr && !stays) host_.free(std::exchange(address, nullptr));
    if (!storage.persistent) continue;
    Held& held = held_[storage.name];
    held.place = place;
    held.address = address;
    if (!place.staged) continue;
    write_home(held.home, 0, held.model);
    held.place.staged = false;
    held.place.at_home = true;
  }
}

/// Some storages' values between steps, once nothing moves them: where the replay says.
void SimJob::look_at_any() {
  if (running_ == nullptr) return check_homes();
  Plan& plan = *running_;
  for (std::uint32_t s = 0; s < plan.homes.size() && !over(); ++s) {
    if (!plan.schedule.storages[s].persistent || random_.below(3) > 0) continue;
    while (!plan.replay->at_rest(StorageIndex(s)) && !over()) wait_a_little();
    if (over()) return;
    const ValuePlace place = plan.replay->place(StorageIndex(s));
    check_place(plan, s, place);
    if (!place.on_device && !place.at_home && !place.staged) {
      wrong(plan.schedule.storages[s].name + " has no value between steps");
    }
    if (place.at_home || plan.homes[s].flash || !place.on_device) continue;
    write_home(plan.homes[s], 0, model(plan, s));  // as a read does
    plan.replay->set_at_home(StorageIndex(s), 0);
  }
}

void SimJob::write_any() {
  for (auto& [name, held] : held_) {
    if (random_.below(4) > 0) continue;
    if (running_ != nullptr && held.home.flash) end_run(nullptr);
    if (over()) return;
    std::optional<std::uint32_t> index;
    for (std::uint32_t s = 0; running_ != nullptr && s < running_->homes.size(); ++s) {
      const Storage& storage = running_->schedule.storages[s];
      if (storage.persistent && storage.name == name) index = s;
    }
    std::byte* device = nullptr;
    if (index) {
      while (!running_->replay->at_rest(StorageIndex(*index)) && !over()) wait_a_little();
      if (over()) return;
      const ValuePlace place = running_->replay->place(StorageIndex(*index));
      if (place.on_device) device = device_bytes(*running_, *index, place.device_offset_bytes);
      running_->replay->set_at_home(StorageIndex(*index), 0);
    } else if (held.place.on_device) {
      device =
          held.address != nullptr ? held.address : arena_.data() + held.place.device_offset_bytes;
    }
    held.model = random_value(held.model.size());
    held.place.at_home = true;
    held.place.stale_homes = 0;
    write_home(held.home, 0, held.model);
    if (device != nullptr) std::copy(held.model.begin(), held.model.end(), device);
  }
}

bool SimJob::drive_until_ready(Plan& plan, std::uint64_t position) {
  client::Replay& replay = *plan.replay;
  const TimePoint called = clock_.now();
  for (std::uint64_t turns = 0; replay.executor().ready_through() <= position; ++turns) {
    HO_CHECK(turns < 10'000'000);
    serve();
    turn();
    if (over()) return false;
    if (replay.executor().ready_through() > position) {
      if (turns > 0) check_release(plan, position);
      break;
    }
    if (replay.quiet() && mover_->in_flight() == 0) {
      wrong("deadlock at position " + std::to_string(position));
      return false;
    }
    outcome_.stall_turns += 1;
    clock_.advance_to(
        std::min(next_event(clock_.now() + kControlNotice), clock_.now() + kControlNotice));
  }
  outcome_.waited_max = std::max(outcome_.waited_max, clock_.now() - called);
  serve();
  return !over();
}

/// A position that the job waited for is ready as of now, so the cache op that is reported to have
/// released it ended now. In the first step of a run it may have been one of the prologue. A job
/// that drops memory itself may come later.
void SimJob::check_release(Plan& plan, std::uint64_t position) {
  // A Store that a lost node made needless ends at no moment of its own.
  if (device_ == SimDevice::kHosted || doubled_faults()) return;
  const std::uint64_t step = position / plan.schedule.positions.size();
  const auto by = plan.replay->released_by(position);
  const auto ended_now = [&](std::uint64_t of_step) {
    const client::Replay::Span span = plan.replay->span(*by, of_step, 0);
    return span.end_ticks == ticks() && span.queued_ticks <= span.start_ticks &&
           span.start_ticks <= span.end_ticks;
  };
  if (!by && step == 0) return;
  for (std::uint64_t back = 0; by && back <= std::min<std::uint64_t>(step, 2); ++back) {
    if (ended_now(step - back)) return;
  }
  wrong("position " + std::to_string(position) + " was not released by " +
        (by ? "cache op " + std::to_string(*by) : "a transfer"));
}

/// What the job's thread does within its calls: takes and drops memory.
void SimJob::serve() {
  HostedMemory* const hosted = running_ != nullptr ? running_->replay->hosted() : nullptr;
  while (hosted != nullptr) {
    const auto request = hosted->next_request();
    if (!request) return;
    std::byte* const address = hosted->address(request->storage);
    if (request->ask == HostedMemory::Ask::kTake && address == nullptr) {
      const std::uint64_t bytes = running_->schedule.storages[request->storage.value()].bytes;
      hosted->set_address(request->storage, host_.allocate(bytes));
      if (host_.live_bytes() > running_->schedule.arena_bytes) wrong("too many live bytes");
    } else if (request->ask == HostedMemory::Ask::kDrop) {
      hosted->set_address(request->storage, nullptr);
      host_.free(address);
    }
    hosted->answer({request->flight, 0});
  }
}

/// The transfer thread looks at everything once.
void SimJob::turn() {
  inject();
  if (running_ != nullptr) running_->replay->pump(*mover_, ticks());
  mover_->pump(ticks());
  std::array<client::TransferDone, 4> done;
  const std::size_t count = mover_->poll(done);
  for (std::size_t i = 0; i < count; ++i) {
    HO_CHECK(running_ != nullptr);
    outcome_.late += done[i].late ? 1 : 0;
    // As client::Engine::report_unresponsive().
    const bool unanswered = done[i].code == Errc::kDeadline || done[i].code == Errc::kUnavailable;
    if (doubled_faults() && unanswered && !done[i].yielded) lose(done[i].node.value());
    running_->replay->transfer_done(*mover_, done[i], ticks());
  }
  if (running_ == nullptr || failure_ || !running_->replay->failure()) return;
  failure_ = running_->replay->failure();
  if (fault_at_ < clock_.now()) outcome_.failed_after = clock_.now() - fault_at_;
}

void SimJob::wait_a_little() {
  serve();
  turn();
  clock_.advance_to(
      std::min(next_event(clock_.now() + kControlNotice), clock_.now() + kControlNotice));
}

void SimJob::run_op(Plan& plan, std::uint32_t position) {
  std::uint64_t seed = (std::uint64_t{position} << 32U) + plan.steps;
  HostedMemory* const hosted = plan.replay->hosted();
  for (const auto& operand : plan.schedule.positions[position].operands) {
    const std::uint32_t s = operand.storage.value();
    if (operand.access == Access::kWrite) continue;
    const std::byte* const here = device_bytes(plan, s, operand.device_offset_bytes);
    const auto& expected = model(plan, s);
    if (here == nullptr || !std::equal(expected.begin(), expected.end(), here)) {
      return wrong(plan.schedule.storages[s].name + " at position " + std::to_string(position) +
                   " of step " + std::to_string(plan.steps));
    }
    seed ^= checksum64(expected) + s;
  }
  for (const auto& operand : plan.schedule.positions[position].operands) {
    if (operand.access == Access::kRead) continue;
    const std::uint32_t s = operand.storage.value();
    auto& made = model(plan, s);
    if (hosted != nullptr && hosted->address(operand.storage) == nullptr) {
      hosted->set_address(operand.storage, host_.allocate(made.size()));
      if (host_.live_bytes() > plan.schedule.arena_bytes) wrong("too many live bytes");
    }
    fill(made, seed + s);
    std::copy(made.begin(), made.end(), device_bytes(plan, s, operand.device_offset_bytes));
  }
}

/// Waits until nothing is in flight: each transfer ends by completion or by its deadline.
void SimJob::drain() {
  for (std::uint64_t turns = 0; mover_->in_flight() > 0; ++turns) {
    HO_CHECK(turns < 10'000'000);
    turn();
    clock_.advance_to(
        std::min(next_event(clock_.now() + kControlNotice), clock_.now() + kControlNotice));
  }
  if (running_ != nullptr) HO_CHECK(running_->replay->in_flight() == 0);
}

}  // namespace ho::test
