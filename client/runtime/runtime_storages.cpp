// One storage of a runtime at a time: its value between steps, and the calls for device memory that
// the job places.
#include <algorithm>
#include <string>
#include <utility>

#include "client/runtime/runtime.hpp"
#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"

namespace ho::client {
Error Runtime::no_value(const HeldStorage& storage) {
  return conflict(storage.name +
                  " has no value: the job freed its last copy, or left a step that "
                  "would have overwritten it");
}

Result<HeldStorage*> Runtime::find_held(StorageNumber number) {
  HeldStorage* const storage = storages_->get(number);
  if (storage != nullptr) return storage;
  return Error(Errc::kNotFound, "no storage with number " + std::to_string(number.value()));
}

Result<void> Runtime::store(HeldStorage& storage) {
  if (running_ == nullptr) replace_both_homes(storage);
  if (auto stored = storages_->store(storage); !stored) return moved_badly(stored.error());
  counters_.stored_bytes += storage.bytes;
  return {};
}

Result<void> Runtime::fetch_to_device(HeldStorage& storage, ValueRange range) {
  if (auto ok = storages_->fetch(storage, range); !ok) return moved_badly(ok.error());
  counters_.fetched_bytes += range.length_bytes;
  return {};
}

/// The storage leaves the device; its value is at home, or has none.
void Runtime::take_off(StorageNumber number, HeldStorage& storage) {
  storage.place.on_device = false;
  if (storage.address == nullptr) return;
  std::byte* const address = std::exchange(storage.address, nullptr);
  count_device(0, storage.bytes);
  drop(number, address);
}

/// Brings `storage` up to what the plan that runs, if it knows it, has done with it, once nothing
/// of it moves any more.
Result<void> Runtime::settle(StorageNumber number, HeldStorage& storage) {
  const auto index = running_ != nullptr ? running_->index_of(number) : std::nullopt;
  if (!index) return {};
  if (storage.home.flash) {
    // Copies in staging slots are the plan's own affair: only the end of its run settles them.
    return end_run(nullptr);
  }
  const auto at_rest = [&] {
    return engine_.call([&] {
      active_.take_in();
      if (!active_.replay()->at_rest(*index) || !active_.replay()->settled()) return false;
      storage.place = active_.replay()->place(*index);
      return true;
    });
  };
  if (auto ok = wait_until(at_rest, running_); !ok) return ok;
  if (HostedMemory* const hosted = running_->replay().hosted()) {
    storage.address = hosted->address(*index);
  }
  return {};
}

/// `storage` is settled; its home has the latest value afterwards.
Result<void> Runtime::bring_home(StorageNumber number, HeldStorage& storage) {
  if (!storage.place.on_device) {
    if (!storage.place.at_home) return no_value(storage);
  } else if (storages_->lacks_home(storage)) {  // also where the only home that has it is lost
    if (auto stored = store(storage); !stored) return stored;
  }
  tell_home(number, storage);
  return {};
}

/// The plan that runs, if it knows the storage, learns which of its homes have the value.
void Runtime::tell_home(StorageNumber number, const HeldStorage& storage) {
  const auto index = running_ != nullptr ? running_->index_of(number) : std::nullopt;
  if (!index) return;
  engine_.call([&] { active_.replay()->set_at_home(*index, storage.place.stale_homes); });
}

Result<void> Runtime::read(StorageNumber number, std::uint64_t offset_bytes,
                           std::span<std::byte> into) {
  if (auto ok = check_between_steps(); !ok) return ok;
  auto storage = find_held(number);
  if (!storage) return storage.error();
  HeldStorage& held = **storage;
  if (auto settled = settle(number, held); !settled) return settled;
  if (auto home = bring_home(number, held); !home) return home;
  if (auto got = storages_->read(held, offset_bytes, into); !got) return moved_badly(got.error());
  return {};
}

Result<void> Runtime::write(StorageNumber number, std::uint64_t offset_bytes,
                            std::span<const std::byte> data) {
  if (auto ok = check_between_steps(); !ok) return ok;
  auto storage = find_held(number);
  if (!storage) return storage.error();
  HeldStorage& held = **storage;
  if (auto settled = settle(number, held); !settled) return settled;
  if (data.size() < held.bytes) {
    // The rest of the value has to be where the part goes.
    if (auto home = bring_home(number, held); !home) return home;
  }
  const bool on_device = held.place.on_device;
  if (auto put = storages_->write(held, offset_bytes, data); !put) return moved_badly(put.error());
  if (on_device) {
    if (auto ok = fetch_to_device(held, {offset_bytes, data.size()}); !ok) return ok;
  }
  tell_home(number, held);
  return {};
}

std::byte* Runtime::take(StorageNumber number, std::uint64_t bytes) {
  return static_cast<std::byte*>(device_.take(device_.context, number.value(), bytes));
}

void Runtime::drop(StorageNumber number, std::byte* address) {
  device_.drop(device_.context, number.value(), address);
}

void Runtime::count_device(std::uint64_t placed_bytes, std::uint64_t released_bytes) {
  HO_CHECK(counters_.device_bytes + placed_bytes >= released_bytes);
  counters_.device_bytes += placed_bytes;
  counters_.device_bytes -= released_bytes;
  counters_.peak_device_bytes = std::max(counters_.peak_device_bytes, counters_.device_bytes);
}

Result<void> Runtime::check_hosted() {
  if (auto ok = check_running(); !ok) return ok;
  if (device_.hosted()) return {};
  return Error(Errc::kUnsupported, "the device memory is an arena, in which plans place storages");
}

Result<HeldStorage*> Runtime::find_hosted(StorageNumber number) {
  if (auto ok = check_hosted(); !ok) return ok.error();
  auto storage = find_held(number);
  if (!storage || running_ == nullptr || !running_->index_of(number)) return storage;
  if (in_step_ != nullptr) {
    return conflict((*storage)->name + " is the plan's until the step ends: leave the step first");
  }
  if (auto stopped = stop_run(); !stopped) return stopped.error();
  return storage;
}

Result<StorageNumber> Runtime::declare(std::string name, std::uint64_t bytes) {
  if (auto ok = check_hosted(); !ok) return ok.error();
  if (bytes == 0 || bytes > kBytesMax) {
    return Error(Errc::kInvalidArgument, "a storage of " + std::to_string(bytes) + " bytes");
  }
  if (!name.empty() && storages_->find(name)) {
    return Error(Errc::kAlreadyExists, "there is a storage named " + name);
  }
  HeldStorage storage;
  storage.persistent = !name.empty();
  storage.name = std::move(name);
  storage.bytes = bytes;
  return storages_->add(std::move(storage));
}

Result<void> Runtime::undeclare(StorageNumber number) {
  if (auto ok = check_hosted(); !ok) return ok;
  if (auto ok = check_between_steps(); !ok) return ok;
  auto storage = find_held(number);
  if (!storage) return storage.error();
  if (in_a_plan(number)) {
    return conflict((*storage)->name + " belongs to a plan that is loaded");
  }
  if ((*storage)->address != nullptr) count_device(0, (*storage)->bytes);
  storages_->remove(number);
  return {};
}

bool Runtime::in_a_plan(StorageNumber number) const {
  return std::any_of(plans_.begin(), plans_.end(),
                     [&](const auto& plan) { return plan->index_of(number).has_value(); });
}

std::optional<StorageNumber> Runtime::find(std::string_view name) const {
  return storages_->find(name);
}

Result<void*> Runtime::fetch(StorageNumber number) {
  auto storage = find_hosted(number);
  if (!storage) return storage.error();
  HeldStorage& held = **storage;
  if (held.place.on_device) return static_cast<void*>(held.address);
  if (!held.place.at_home) return no_value(held);
  std::byte* const memory = take(number, held.bytes);
  if (memory == nullptr) {
    return Error(Errc::kExhausted, "take() gave no memory for " + held.name + " (" +
                                       std::to_string(held.bytes) + " bytes)");
  }
  held.address = memory;
  count_device(held.bytes, 0);
  auto fetched = fetch_to_device(held, {0, held.bytes});
  if (!fetched) {
    take_off(number, held);
    return fetched.error();
  }
  return static_cast<void*>(memory);
}

ValuePlace Runtime::place_now(StorageIndex storage) {
  ValuePlace place;
  engine_.call([&] {
    active_.take_in();
    place = active_.replay()->place(storage);
  });
  return place;
}

Result<void> Runtime::peek(StorageNumber number, std::span<std::byte> into) {
  if (auto ok = check_hosted(); !ok) return ok;
  auto storage = find_held(number);
  if (!storage) return storage.error();
  const std::string& name = (*storage)->name;
  const auto index = in_step_ != nullptr ? in_step_->index_of(number) : std::nullopt;
  if (!index) return conflict("no step runs whose plan places " + name + " by callbacks");
  if (in_step_->in_op()) return conflict("an op of the step runs: peek at " + name + " after it");
  if (into.size() != (*storage)->bytes) {
    return Error(Errc::kInvalidArgument, name + " has " + std::to_string((*storage)->bytes) +
                                             " bytes, room for " + std::to_string(into.size()));
  }
  // What fills the storage's own memory has to end: it would write there while the job reads.
  const bool own = in_step_->replay().hosted()->address(*index) == into.data();
  const auto filled = [&] {
    return engine_.call([&] {
      active_.take_in();
      return !active_.replay()->arriving(*index);
    });
  };
  if (auto ok = own ? wait_until(filled, nullptr) : Result<void>(); !ok) return ok;
  HeldStorage seen;
  seen.name = name;
  seen.bytes = into.size();
  seen.address = into.data();
  for (seen.place = place_now(*index); !seen.place.on_device;) {
    const ValuePlace before = seen.place;
    if (before.at_home) {
      seen.home = (*storage)->persistent ? (*storage)->home : in_step_->home(*index);
      const std::uint64_t parity = (in_step_->steps_begun() + 1) % 2;
      seen.home.offset_bytes.fill(seen.home.offset_bytes[parity]);
      seen.home.second.offset_bytes.fill(seen.home.second.offset_bytes[parity]);
    } else if (before.staged) {
      seen.home = StorageHome{};
      seen.home.area = &in_step_->staging();
      seen.home.offset_bytes.fill(before.staged_offset_bytes);
      seen.place.at_home = true;
    } else {
      break;
    }
    if (auto got = storages_->fetch(seen, {0, seen.bytes}); !got) return moved_badly(got.error());
    // Once the value has left, a place that the plan shares may get another storage's bytes.
    seen.place = place_now(*index);
    if (before.at_home ? (*storage)->persistent || seen.place.at_home : seen.place.staged)
      return {};
  }
  if (!seen.place.on_device) return conflict(name + " has no value: the step has not written it");
  const std::byte* const memory = in_step_->replay().hosted()->address(*index);
  HO_CHECK(memory != nullptr);
  if (streams_ != nullptr) {
    if (memory != into.data()) {
      return Error(Errc::kUnsupported, name + " is on the accelerator: copy it from there");
    }
    // Its prefetch may be queued and not ended.
    if (auto ok = streams_->hold_job(streams_->everything()); !ok) return moved_badly(ok.error());
    return {};
  }
  if (memory != into.data()) std::copy_n(memory, into.size(), into.begin());
  return {};
}

Result<void> Runtime::evict(StorageNumber number) {
  // A job with plans repairs before steps.
  if (auto ok = plans_.empty() ? repair(Border::kOnDemand, {}) : Result<void>(); !ok) return ok;
  auto storage = find_hosted(number);
  if (!storage) return storage.error();
  HeldStorage& held = **storage;
  if (!held.place.on_device) return {};
  if (storages_->lacks_home(held)) {
    // A home that the plan gave it for a part of the step may be another's now.
    const bool departed = std::find(departed_.begin(), departed_.end(), number) != departed_.end();
    if (departed && !held.range && !held.doubled && !held.extent) held.home = StorageHome{};
    if (auto stored = store(held); !stored) return stored;
  }
  take_off(number, held);
  return {};
}

bool Runtime::may_have_home(StorageNumber number) const {
  const HeldStorage* const storage = storages_->get(number);
  if (storage == nullptr) return true;
  const auto nodes = pool_.nodes_of(Nearness::kAny);
  const std::uint64_t bytes = storage->bytes;
  // Each of two homes lies whole on one node; where nodes are lost, one has to do.
  if (device_.copies > 1)
    return pool_.may_fit({.ddr_bytes = bytes, .ddr_whole_bytes = bytes}, nodes);
  return pool_.may_fit({.ddr_bytes = bytes}, nodes) ||
         pool_.may_fit({.flash_whole_bytes = bytes}, pool_.candidates(Nearness::kNear));
}

Result<void> Runtime::adopt(StorageNumber number, void* address) {
  if (auto ok = check_hosted(); !ok) return ok;
  if (address == nullptr) return Error(Errc::kInvalidArgument, "the address is null");
  const auto index = in_step_ != nullptr ? in_step_->index_of(number) : std::nullopt;
  if (index) {
    if (!in_step_->writes_now(*index)) {
      return conflict(in_step_->names()[index->value()] +
                      " is not made by the op that runs now: leave the step first");
    }
    in_step_->set_address(*index, static_cast<std::byte*>(address), Plan::Origin::kJob);
    return {};
  }
  auto storage = find_hosted(number);
  if (!storage) return storage.error();
  HeldStorage& held = **storage;
  count_device(held.bytes, held.address != nullptr ? held.bytes : 0);
  held.address = static_cast<std::byte*>(address);
  held.place = ValuePlace{};
  held.place.on_device = true;
  held.written = true;
  return {};
}

Result<void> Runtime::forget(StorageNumber number) {
  if (auto ok = check_hosted(); !ok) return ok;
  const auto index = in_step_ != nullptr ? in_step_->index_of(number) : std::nullopt;
  const HeldStorage* const known = storages_->get(number);
  // What a step has made and needs no more is the job's anyhow.
  if (index && known != nullptr && !known->persistent && !in_step_->uses_later(*index)) return {};
  auto storage = find_hosted(number);
  if (!storage) return storage.error();
  HeldStorage& held = **storage;
  if (held.address != nullptr) count_device(0, held.bytes);
  held.address = nullptr;
  held.place.on_device = false;
  return {};
}

Result<ho_storage_state> Runtime::state(StorageNumber number) {
  if (auto ok = check_between_steps(); !ok) return ok.error();
  auto storage = find_held(number);
  if (!storage) return storage.error();
  HeldStorage& held = **storage;
  if (auto settled = settle(number, held); !settled) return settled.error();
  return ho_storage_state{sizeof(ho_storage_state), held.bytes, held.address,
                          held.place.on_device ? 1U : 0U, held.place.at_home ? 1U : 0U};
}

}  // namespace ho::client
