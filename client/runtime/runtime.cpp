#include "client/runtime/runtime.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

/// Repair may take a step's time divided by this before the next step.
constexpr int kRepairShare = 4;

Result<std::unique_ptr<DeviceStreams>> open_streams(const DeviceMemory& device) {
  auto accel = make_accel(device.device);
  if (!accel) return accel.error();
  if (!device.hosted()) {
    if (auto ok = (*accel)->check_device_memory(device.arena); !ok) return ok.error();
  }
  return DeviceStreams::create(std::move(accel).value());
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::open(Pool& pool, const DeviceMemory& device) {
  const bool callbacks = device.take != nullptr && device.drop != nullptr;
  if (device.arena.empty() != callbacks || (device.take != nullptr) != callbacks ||
      (device.drop != nullptr) != callbacks) {
    return Error(Errc::kInvalidArgument,
                 "device memory is either an arena or both of take and drop");
  }
  if (device.copies < 1 || device.copies > 2 || (device.copies > 1 && !device.hosted())) {
    return Error(Errc::kInvalidArgument,
                 "copies are 1, or 2 where take and drop are set; in an arena, plans say how many "
                 "homes values have");
  }
  pool.use_new_nodes(TriedNodes::kAgain);
  const std::size_t nodes = pool.candidates(Nearness::kAny).size();
  if (nodes == 0) return pool.lost();
  if (device.copies > nodes) {
    return Error(Errc::kExhausted, "2 copies of each value need 2 nodes, and the job reaches " +
                                       std::to_string(nodes) +
                                       ": start another daemon, or ask for 1 copy");
  }
  std::unique_ptr<DeviceStreams> streams;
  if (device.device.kind != DeviceOptions::Kind::kHost) {
    auto opened = open_streams(device);
    if (!opened) return opened.error();
    streams = std::move(opened).value();
  }
  std::unique_ptr<Runtime> made(new Runtime(pool, device, std::move(streams)));
  if (auto ok = made->start(); !ok) return ok.error();
  return made;
}

Runtime::Runtime(Pool& pool, const DeviceMemory& device, std::unique_ptr<DeviceStreams> streams)
    : pool_(pool),
      engine_(pool.engine()),
      device_(device),
      streams_(std::move(streams)),
      active_(streams_.get()) {}

Result<void> Runtime::start() {
  if (streams_ != nullptr) {
    if (auto added = pool_.add_device(*streams_); !added) return added;
    registered_ = true;
  } else if (!device_.hosted()) {
    auto handles = pool_.register_memory(device_.arena);
    if (!handles) return handles.error();
    arena_handles_ = *handles;
    registered_ = true;
  }
  storages_ = std::make_unique<Storages>(pool_, device_, arena_handles_, streams_.get());
  owner_ = engine_.call([&] { return engine_.reserve_owner(); });
  engine_.call([&] { engine_.attach(&active_, owner_); });
  attached_ = true;
  return {};
}

Runtime::~Runtime() {
  while (attached_) {
    attached_ = !engine_.call([&] { return engine_.detach(&active_); });
    if (!attached_) break;
    // A few pieces are still on their way; each ends by its deadline.
    Bell pause;
    pause.wait(pause.token(), std::chrono::milliseconds(1));
  }
  pool_.progress().add_copies_missing(-copies_missing_);
  plans_.clear();
  storages_.reset();
  if (!registered_) return;
  if (streams_ != nullptr) {
    pool_.remove_device(*streams_);
  } else {
    pool_.unregister_memory(arena_handles_);
  }
}

ho_runtime_counters Runtime::counters() const {
  ho_runtime_counters now = counters_;
  for_each_doubled([&](const DoubledHome& doubled) {
    (storages_->is_whole(doubled) ? now.doubled_storages : now.halved_storages) += 1;
  });
  now.ddr_bytes = storages_->ddr_bytes();
  now.nodes = static_cast<std::uint32_t>(pool_.nodes().size());
  for (std::uint32_t n = 0; n < now.nodes; ++n)
    now.nodes_lost += pool_.is_lost(NodeIndex(n)) ? 1 : 0;
  return now;
}

Result<void> Runtime::check_running() const {
  if (active_.state.load() == RunState::kFailed) {
    return Error(Errc::kUnavailable, active_.failure_text);
  }
  return {};
}

Result<void> Runtime::check_between_steps() const {
  if (auto ok = check_running(); !ok) return ok;
  if (in_step_ != nullptr) return conflict("a step runs: it has not ended");
  return {};
}

Error Runtime::moved_badly(const Error& error) {
  // kPermissionDenied: the daemon ended the session and freed its memory, so the values are lost.
  const bool lost = error.code() == Errc::kUnavailable || error.code() == Errc::kDeadline ||
                    error.code() == Errc::kPermissionDenied;
  if (!lost && (streams_ == nullptr || !streams_->failure())) return error;
  const std::string what = error.context() + ": " + std::string(errc_name(error.code()));
  engine_.call([&] { active_.fail(what, std::nullopt); });
  return Error(Errc::kUnavailable, active_.failure_text);
}

// --- plans ---

Result<Plan*> Runtime::load(std::span<const std::byte> schedule) {
  if (auto ok = check_between_steps(); !ok) return ok.error();
  pool_.use_new_nodes(TriedNodes::kAgain);
  auto plan = Plan::load(*this, schedule);
  if (!plan && plan.error().code() == Errc::kExhausted && make_room()) {
    plan = Plan::load(*this, schedule);
  }
  if (!plan) return plan.error();
  plans_.push_back(std::move(plan).value());
  return plans_.back().get();
}

/// Values that no plan will have go to flash. @return whether there were some.
bool Runtime::make_room() {
  bool moved = false;
  for (std::uint32_t i = 0; i < storages_->end() && device_.copies == 1; ++i) {
    HeldStorage* const storage = storages_->get(StorageNumber(i));
    if (storage == nullptr || storage->persistent || !storage->range) continue;
    if (in_a_plan(StorageNumber(i))) continue;
    if (!storages_->change_tier(*storage)) break;
    moved = true;
  }
  storages_->release_unused();
  return moved;
}

Result<void> Runtime::unload(Plan& plan) {
  if (running_ == &plan) {
    if (in_step_ == &plan) in_step_ = nullptr;
    auto stopped = stop_run();
    if (!stopped && active_.state.load() != RunState::kFailed) return stopped;
  }
  forget_departed();
  std::erase_if(plans_, [&](const auto& one) { return one.get() == &plan; });
  return {};
}

Result<const HomeArea*> Runtime::scratch(Nearness nearness, std::uint64_t bytes) {
  Scratch& shared = nearness == Nearness::kFar ? far_scratch_ : near_scratch_;
  if (shared.area.length_bytes >= bytes) return &shared.area;
  forget_departed();
  // What a step has made is dead; transfers that nothing waits for may still be on their way.
  if (auto ok = wait_at_rest(); !ok) return ok.error();
  HomeHeap& heap = storages_->heap(nearness);
  auto range = heap.allocate(bytes);
  if (!range) return range.error();
  engine_.call([&] {
    shared.area = heap.area(*range);
    shared.area.begin_bytes += range->begin_bytes;
    shared.area.length_bytes = range->length_bytes;
  });
  if (shared.range) heap.give_back(*shared.range);
  shared.range = *range;
  return &shared.area;
}

// --- the plan that runs ---

Result<void> Runtime::begin_step(Plan& plan) {
  HO_CHECK(in_step_ == nullptr);
  const Duration last_step(static_cast<Duration::rep>(plan.counters().last_step_ns));
  if (auto ok = repair(Border::kStep, last_step / kRepairShare); !ok) return ok;
  if (running_ != &plan) {
    forget_departed();
    if (running_ != nullptr) {
      if (auto ended = end_run(&plan); !ended) return ended;
    }
    if (auto cleared = clear_device_for(plan); !cleared) return cleared;
    if (auto begun = begin_run(plan); !begun) return begun;
  }
  in_step_ = &plan;
  return {};
}

void Runtime::end_step(Plan& plan) {
  HO_CHECK(in_step_ == &plan && running_ == &plan);
  in_step_ = nullptr;
}

Result<void> Runtime::leave_step(Plan& plan) {
  HO_CHECK(in_step_ == &plan && running_ == &plan);
  in_step_ = nullptr;
  counters_.steps_left += 1;
  return stop_run();
}

/// Leaves on the device what `plan` wants there, where it wants it. All else goes: home first where
/// that has no copy, as what stays does if the plan may read its home.
Result<void> Runtime::clear_device_for(const Plan& plan) {
  for (std::uint32_t i = 0; i < storages_->end(); ++i) {
    const StorageNumber number(i);
    HeldStorage* const storage = storages_->get(number);
    if (storage == nullptr || !storage->persistent) continue;
    const auto index = plan.index_of(number);
    if (!storage->place.on_device) {
      if (storage->place.at_home || !index) continue;
      if (plan.reads_first(*index)) return no_value(*storage);
      storage->place.at_home = true;  // the step overwrites it unread
      continue;
    }
    ValuePlace place = storage->place;
    place.at_home = !storages_->lacks_home(*storage);
    Replay::Entry entry{.stays = false, .store_first = !place.at_home};
    if (index) entry = plan.replay().entry(*index, place);
    if (entry.store_first) {
      if (auto stored = store(*storage); !stored) return stored;
    }
    if (!entry.stays) take_off(number, *storage);
  }
  return {};
}

Result<void> Runtime::begin_run(Plan& plan) {
  std::vector<ValuePlace> places(plan.names().size());
  for (std::uint32_t s = 0; s < places.size(); ++s) {
    const auto number = plan.numbers()[s];
    if (device_.hosted()) plan.replay().hosted()->set_address(StorageIndex(s), nullptr);
    if (!number) continue;
    HeldStorage& storage = storages_->at(*number);
    if (!storage.persistent) continue;
    if (auto zeroed = storages_->zero(storage); !zeroed) return moved_badly(zeroed.error());
    storage.written = true;
    places[s] = storage.place;
    if (device_.hosted()) plan.replay().hosted()->set_address(StorageIndex(s), storage.address);
  }
  std::uint64_t first_mark = 0;
  if (streams_ != nullptr) {
    first_mark = streams_->next_job_mark();
    if (auto marked = streams_->mark_job(first_mark); !marked) return moved_badly(marked.error());
  }
  plan.run_begins(first_mark);
  engine_.call([&] {
    plan.replay().restart(places, plan.steps_begun(), first_mark);
    active_.begin_run(plan.replay(), plan.names());
  });
  running_ = &plan;
  counters_.runs += 1;
  return check_running();
}

/// Runs the epilogue; what `next` leaves where it is, and never reads at home, stays as it is.
Result<void> Runtime::end_run(const Plan* next) {
  HO_CHECK(running_ != nullptr && in_step_ == nullptr);
  std::vector<std::uint8_t> keep(running_->names().size(), 0);
  engine_.call([&] {
    active_.take_in();
    for (std::uint32_t s = 0; next != nullptr && s < keep.size(); ++s) {
      const auto number = running_->numbers()[s];
      const auto index = number ? next->index_of(*number) : std::nullopt;
      if (!index) continue;
      ValuePlace place = running_->replay().place(StorageIndex(s));
      if (!place.on_device) continue;  // it is at home, or comes from there
      place.at_home = false;
      keep[s] = next->replay().entry(*index, place).store_first ? 0 : 1;
    }
    active_.begin_epilogue(engine_.mover(), keep);
  });
  engine_.ring();
  const auto finished = [&] { return active_.state.load() == RunState::kFinished; };
  if (auto ok = wait_until(finished, running_); !ok) return ok;
  return take_places();
}

/// Ends the run where it is: nothing queued is moved any more.
Result<void> Runtime::stop_run() {
  HO_CHECK(running_ != nullptr && in_step_ == nullptr);
  for (;;) {
    const std::uint32_t token = active_.changed.token();
    if (engine_.call([&] { return active_.stop(engine_.mover()); })) break;
    active_.changed.wait(token, std::chrono::milliseconds(1));
  }
  return take_places();
}

/// Ends the run: from now on the storages know where its values are.
Result<void> Runtime::take_places() {
  Plan& plan = *running_;
  HostedMemory* const hosted = plan.replay().hosted();
  std::vector<ValuePlace> places(plan.names().size());
  engine_.call([&] {
    for (std::uint32_t s = 0; s < places.size(); ++s) {
      places[s] = plan.replay().place(StorageIndex(s));
    }
    active_.end_run();
  });
  plan.run_ends();
  running_ = nullptr;
  if (auto ok = check_running(); !ok) return ok;
  for (std::uint32_t s = 0; s < places.size(); ++s) {
    const auto number = plan.numbers()[s];
    if (!number) continue;
    HeldStorage& storage = storages_->at(*number);
    storage.place = places[s];
    std::byte* const address = hosted != nullptr ? hosted->address(StorageIndex(s)) : nullptr;
    storage.address = address;
    if (address != nullptr && !storage.place.on_device) {
      // Taken for a value that has not come, or made by an op that has not ended.
      if (!plan.taken(StorageIndex(s))) {
        storage.address = nullptr;
        count_device(0, storage.bytes);
      }
      take_off(*number, storage);
    }
    if (!storage.persistent) {
      const bool lives = storage.place.on_device || storage.place.at_home || storage.place.staged;
      if (!lives) continue;
      storage.home = plan.home(StorageIndex(s));
      const std::uint64_t parity =
          (plan.steps_begun() + 1) % 2;  // parity of the step that was left
      storage.home.offset_bytes.fill(storage.home.offset_bytes[parity]);
      HomePlace& second = storage.home.second;
      second.offset_bytes.fill(second.offset_bytes[parity]);
      departed_.push_back(*number);
    }
    if (!storage.place.staged) continue;
    if (auto stored = storages_->store_staged(storage, plan.staging()); !stored) {
      return moved_badly(stored.error());
    }
  }
  return {};
}

/// What a step that was left had made is over: its memory on the device is the job's.
void Runtime::forget_departed() {
  for (const StorageNumber number : departed_) {
    HeldStorage* const storage = storages_->get(number);
    if (storage == nullptr) continue;
    storages_->take_home(*storage);
    if (storage->address != nullptr) count_device(0, storage->bytes);
    storage->place = ValuePlace{};
    storage->address = nullptr;
  }
  departed_.clear();
}

Result<void> Runtime::sync() {
  if (auto ok = check_between_steps(); !ok) return ok;
  if (running_ != nullptr) {
    if (auto ended = end_run(nullptr); !ended) return ended;
  }
  for (std::uint32_t i = 0; i < storages_->end(); ++i) {
    HeldStorage* const storage = storages_->get(StorageNumber(i));
    const bool stale = storage != nullptr && storage->persistent && storage->place.on_device &&
                       storages_->lacks_home(*storage);
    if (!stale) continue;
    if (auto stored = store(*storage); !stored) return stored;
  }
  return {};
}

}  // namespace ho::client
