#include "tests/integration/client/steps/planned_job.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/units.hpp"
#include "proto/files/convert.hpp"

namespace ho::test {
namespace {

using schedule::Access;

void fill(std::span<std::byte> into, std::uint64_t seed) {
  Prng stream(seed);
  for (std::size_t i = 0; i < into.size(); i += 8) {
    const std::uint64_t word = stream.next();
    std::memcpy(into.data() + i, &word, std::min<std::size_t>(8, into.size() - i));
  }
}

template <typename Memory>
void give_memory(ho_device_memory& memory, Memory& from) {
  memory.take = [](void* context, ho_storage, std::uint64_t bytes) -> void* {
    return static_cast<Memory*>(context)->allocate(bytes);
  };
  memory.drop = [](void* context, ho_storage, void* dropped) {
    static_cast<Memory*>(context)->free(static_cast<std::byte*>(dropped));
  };
  memory.context = &from;
}

/// Begin and length of a random part: all of it, in one of four.
std::pair<std::size_t, std::size_t> part_of(std::size_t bytes, Prng& random) {
  if (random.below(4) == 0) return {0, bytes};
  const std::size_t begin = random.below(bytes);
  return {begin, 1 + random.below(bytes - begin)};
}

bool is_input(const Storage& storage) {
  return !storage.persistent && storage.kind == StorageKind::kInput;
}

}  // namespace

PlannedJob::PlannedJob(ho_pool* pool, const schedule::Schedule& schedule, std::uint64_t seed,
                       Device device)
    : seed_(seed), device_(device) {
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  if (device == Device::kArena) {
    arena_bytes_ = align_up(schedule.arena_bytes, 4096);
    arena_ = std::aligned_alloc(4096, arena_bytes_);
    HO_CHECK(arena_ != nullptr);
    std::memset(arena_, 0xa5, arena_bytes_);
    memory.arena = arena_;
    memory.arena_bytes = arena_bytes_;
  } else {
    give_memory(memory, host_);
  }
  if (keep(ho_open(pool, &memory, &runtime_)) == HO_OK) (void)add(schedule);
}

PlannedJob::PlannedJob(ho_pool* pool, const schedule::Schedule& schedule, std::uint64_t seed,
                       CudaDevice& accelerator, Device device)
    : seed_(seed), device_(device), accelerator_(&accelerator) {
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  arena_bytes_ = align_up(schedule.arena_bytes, 4096);
  if (device == Device::kArena) {
    arena_ = accelerator.allocate(arena_bytes_);
    memory.arena = arena_;
    memory.arena_bytes = arena_bytes_;
  } else {
    // At most an arena's bytes lie on the device, but with holes.
    heap_ = std::make_unique<DeviceHeap>(accelerator, 4 * arena_bytes_);
    give_memory(memory, *heap_);
  }
  memory.kind = HO_DEVICE_CUDA;
  memory.stream = accelerator.stream();
  memory.cuda_library = accelerator.library().c_str();
  if (keep(ho_open(pool, &memory, &runtime_)) == HO_OK) (void)add(schedule);
}

PlannedJob::~PlannedJob() {
  ho_close(runtime_);
  if (accelerator_ == nullptr) {
    std::free(arena_);
    return;
  }
  accelerator_->synchronize();
  if (arena_ != nullptr) accelerator_->free(static_cast<std::byte*>(arena_));
}

std::byte* PlannedJob::allocate(std::uint64_t bytes) {
  return heap_ ? heap_->allocate(bytes) : host_.allocate(bytes);
}

void PlannedJob::free(void* memory) {
  auto* const bytes = static_cast<std::byte*>(memory);
  heap_ ? heap_->free(bytes) : host_.free(bytes);
}

std::uint64_t PlannedJob::peak_bytes() const {
  return heap_ ? heap_->peak_bytes() : host_.peak_bytes();
}

/// Fails if a kernel on the accelerator saw a wrong byte.
void PlannedJob::look_at_accelerator() {
  if (accelerator_ == nullptr) return;
  if (const std::string found = accelerator_->check(); !found.empty()) fail(found);
}

std::size_t PlannedJob::add(const schedule::Schedule& schedule) {
  plans_.push_back({});
  Loaded& loaded = plans_.back();
  loaded.schedule = schedule;
  const std::string encoded = encode_schedule(schedule);
  (void)keep(ho_load(runtime_, encoded.data(), encoded.size(), &loaded.plan));
  for (std::size_t s = 0; s < schedule.storages.size(); ++s) {
    const Storage& storage = schedule.storages[s];
    loaded.values.emplace_back(storage.persistent ? 0 : storage.bytes);
    if (storage.persistent && persistent_.count(storage.name) == 0) {
      auto& value = persistent_[storage.name];
      value.resize(storage.bytes);
      if (!supplied_) fill(value, seed_ + persistent_.size());  // else it is zeros
    }
  }
  loaded.last.assign(schedule.storages.size(), 0);
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    for (const auto& operand : schedule.positions[p].operands) {
      loaded.last[operand.storage.value()] = p;
    }
  }
  return plans_.size() - 1;
}

ho_status PlannedJob::unload(std::size_t which) {
  return keep(ho_unload(std::exchange(plans_[which].plan, nullptr)));
}

ho_status PlannedJob::keep(ho_status status) {
  if (status != HO_OK && error_.empty()) {
    error_ = std::string(ho_status_name(status)) + ": " + ho_last_error();
  }
  return status;
}

void PlannedJob::fail(const std::string& what) {
  if (wrong_.empty()) wrong_ = what;
}

std::vector<std::byte>& PlannedJob::value(Loaded& loaded, std::uint32_t storage) {
  const Storage& known = loaded.schedule.storages[storage];
  return known.persistent ? persistent_.at(known.name) : loaded.values[storage];
}

/// Call before any other use of values.
ho_status PlannedJob::supply_once() { return supplied_ ? HO_OK : supply_persistent(); }

ho_status PlannedJob::supply_persistent() {
  supplied_ = true;
  for (Loaded& loaded : plans_) {
    if (loaded.plan == nullptr) continue;
    for (std::uint32_t s = 0; s < loaded.schedule.storages.size(); ++s) {
      const Storage& storage = loaded.schedule.storages[s];
      if (!storage.persistent) continue;
      const auto& bytes = value(loaded, s);
      const auto status = keep(ho_write(loaded.plan, storage.id, bytes.data(), bytes.size()));
      if (status != HO_OK) return status;
    }
  }
  return HO_OK;
}

ho_status PlannedJob::supply_inputs(Loaded& loaded) {
  for (std::uint32_t s = 0; s < loaded.schedule.storages.size(); ++s) {
    const Storage& storage = loaded.schedule.storages[s];
    if (!is_input(storage)) continue;
    std::vector<std::byte>& bytes = value(loaded, s);
    fill(bytes, seed_ + 1000 * step_ + s);
    const auto status = keep(ho_write(loaded.plan, storage.id, bytes.data(), bytes.size()));
    if (status != HO_OK) return status;
  }
  return HO_OK;
}

ho_status PlannedJob::begin_step(std::size_t which) {
  Loaded& loaded = plans_[which];
  if (loaded.plan == nullptr) return HO_INVALID_ARGUMENT;
  if (const auto status = supply_once(); status != HO_OK) return status;
  if (const auto status = supply_inputs(loaded); status != HO_OK) return status;
  const auto status = keep(ho_step_begin(loaded.plan));
  heap_ ? heap_->forget_peak() : host_.forget_peak();
  return status;
}

ho_status PlannedJob::run(std::uint64_t steps, std::size_t which) {
  const auto status = queue(steps, which);
  if (status == HO_OK) look_at_accelerator();
  return status;
}

ho_status PlannedJob::queue(std::uint64_t steps, std::size_t which) {
  Loaded& loaded = plans_[which];
  for (std::uint64_t i = 0; i < steps; ++i) {
    if (const auto status = begin_step(which); status != HO_OK) return status;
    for (std::uint32_t p = 0; p < ho_position_count(loaded.plan); ++p) {
      if (const auto status = run_position(loaded, p); status != HO_OK) return status;
    }
    if (const auto status = end_step(which); status != HO_OK) return status;
  }
  return HO_OK;
}

ho_status PlannedJob::run_next(std::uint32_t position, std::size_t which) {
  return run_position(plans_[which], position);
}

ho_status PlannedJob::end_step(std::size_t which) {
  const auto status = keep(ho_step_end(plans_[which].plan));
  if (status == HO_OK) step_ += 1;
  return status;
}

ho_status PlannedJob::run_and_leave(std::uint32_t positions, std::size_t which) {
  Loaded& loaded = plans_[which];
  const auto before = persistent_;
  if (const auto status = begin_step(which); status != HO_OK) return status;
  for (std::uint32_t p = 0; p < positions; ++p) {
    if (const auto status = run_position(loaded, p); status != HO_OK) return status;
  }
  step_ += 1;
  if (const auto status = keep(ho_leave(loaded.plan)); status != HO_OK) return status;
  look_at_accelerator();
  if (device_ == Device::kHosted) {
    if (const auto status = free_departed(loaded); status != HO_OK) return status;
  }
  persistent_ = before;
  return supply_persistent();
}

/// Frees the device memory of the step that was left: the job owns it.
ho_status PlannedJob::free_departed(Loaded& loaded) {
  for (const Storage& storage : loaded.schedule.storages) {
    if (storage.persistent) continue;
    ho_storage number = 0;
    ho_storage_state state{};
    state.struct_bytes = sizeof(state);
    if (const auto status = keep(ho_storage_of(loaded.plan, storage.id, &number));
        status != HO_OK) {
      return status;
    }
    if (const auto status = keep(ho_get_storage(runtime_, number, &state)); status != HO_OK) {
      return status;
    }
    if (state.memory == nullptr) continue;
    if (const auto status = keep(ho_forget(runtime_, number)); status != HO_OK) return status;
    free(state.memory);
  }
  return HO_OK;
}

ho_status PlannedJob::run_position(Loaded& loaded, std::uint32_t position) {
  if (const auto status = keep(ho_before(loaded.plan, position)); status != HO_OK) return status;
  if (device_ == Device::kHosted) {
    if (const auto status = place_outputs(loaded, position); status != HO_OK) return status;
  }
  run_op(loaded, position);
  std::vector<void*> over;
  for (const auto& operand : loaded.schedule.positions[position].operands) {
    const std::uint32_t s = operand.storage.value();
    const Storage& storage = loaded.schedule.storages[s];
    if (storage.persistent || loaded.last[s] != position) continue;
    over.push_back(ho_operand(loaded.plan, position, storage.id));
  }
  if (device_ == Device::kHosted) {
    for (void* memory : over) free(memory);
    if (peak_bytes() > loaded.schedule.arena_bytes) fail("more live bytes than planned");
  }
  return keep(ho_after(loaded.plan, position));
}

ho_status PlannedJob::peek_at_all(std::uint32_t next, std::size_t which) {
  Loaded& loaded = plans_[which];
  const auto& positions = loaded.schedule.positions;
  for (std::uint32_t s = 0; s < loaded.schedule.storages.size(); ++s) {
    const Storage& storage = loaded.schedule.storages[s];
    const auto access_in = [&](std::uint32_t begin, std::uint32_t end) -> const Access* {
      for (std::uint32_t p = begin; p < end; ++p) {
        for (const auto& operand : positions[p].operands) {
          if (operand.storage.value() == s) return &operand.access;
        }
      }
      return nullptr;
    };
    const bool made = storage.persistent || is_input(storage) || access_in(0, next) != nullptr;
    const Access* const needed = access_in(next, static_cast<std::uint32_t>(positions.size()));
    if (!made || (needed == nullptr ? !storage.persistent : *needed == Access::kWrite)) continue;
    ho_storage number = 0;
    std::vector<std::byte> found(storage.bytes);
    auto status = keep(ho_storage_of(loaded.plan, storage.id, &number));
    if (status == HO_OK) status = keep(ho_peek(runtime_, number, found.data(), found.size()));
    if (status != HO_OK) return status;
    if (found != value(loaded, s)) {
      fail(storage.name + " before position " + std::to_string(next) + ", at a glance");
    }
  }
  return HO_OK;
}

/// Gives memory to new outputs, and at times to storages that the op overwrites completely.
ho_status PlannedJob::place_outputs(Loaded& loaded, std::uint32_t position) {
  for (const auto& operand : loaded.schedule.positions[position].operands) {
    if (operand.access == Access::kRead) continue;
    const std::uint32_t s = operand.storage.value();
    const Storage& storage = loaded.schedule.storages[s];
    void* const there = ho_operand(loaded.plan, position, storage.id);
    const bool moves = operand.access == Access::kWrite && (step_ + s) % 3 == 0;
    if (there != nullptr && !moves) continue;
    ho_storage number = 0;
    if (const auto status = keep(ho_storage_of(loaded.plan, storage.id, &number));
        status != HO_OK) {
      return status;
    }
    if (there != nullptr) free(there);
    const auto status = keep(ho_adopt(runtime_, number, allocate(storage.bytes)));
    if (status != HO_OK) return status;
  }
  return HO_OK;
}

void PlannedJob::run_op(Loaded& loaded, std::uint32_t position) {
  std::uint64_t seed = (std::uint64_t{position} << 32U) + step_;
  const auto at = [&](std::uint32_t storage) {
    auto* const bytes = static_cast<std::byte*>(
        ho_operand(loaded.plan, position, loaded.schedule.storages[storage].id));
    return std::span<std::byte>(bytes, value(loaded, storage).size());
  };
  for (const auto& operand : loaded.schedule.positions[position].operands) {
    const std::uint32_t storage = operand.storage.value();
    if (operand.access == Access::kWrite) continue;
    const auto here = at(storage);
    const auto& expected = value(loaded, storage);
    const std::string what = loaded.schedule.storages[storage].name + " at position " +
                             std::to_string(position) + " of step " + std::to_string(step_);
    if (accelerator_ != nullptr) {
      accelerator_->expect(here.data(), expected, what);
    } else if (here.data() == nullptr || !std::equal(here.begin(), here.end(), expected.begin())) {
      fail(what);
    }
    seed ^= checksum64(expected) + storage;
  }
  for (const auto& operand : loaded.schedule.positions[position].operands) {
    if (operand.access == Access::kRead) continue;
    const std::uint32_t storage = operand.storage.value();
    auto& made = value(loaded, storage);
    fill(made, seed + storage);
    const auto here = at(storage);
    if (accelerator_ != nullptr) {
      accelerator_->write(here.data(), made);
    } else if (here.data() != nullptr) {
      std::copy(made.begin(), made.end(), here.begin());
    }
  }
}

ho_status PlannedJob::compare(Loaded& loaded, std::uint32_t storage) {
  const Storage& known = loaded.schedule.storages[storage];
  const auto& expected = value(loaded, storage);
  std::vector<std::byte> found(expected.size());
  const auto status = keep(ho_read(loaded.plan, known.id, found.data(), found.size()));
  if (status != HO_OK) return status;
  if (found != expected) fail(known.name + " after step " + std::to_string(step_));
  return HO_OK;
}

/// Reads a random part of a persistent storage.
ho_status PlannedJob::compare_part(Loaded& loaded, std::uint32_t storage, Prng& random) {
  const Storage& known = loaded.schedule.storages[storage];
  const auto& expected = value(loaded, storage);
  const auto [begin, bytes] = part_of(expected.size(), random);
  std::vector<std::byte> found(bytes);
  const auto status = keep(ho_read_range(loaded.plan, known.id, begin, found.data(), bytes));
  if (status != HO_OK) return status;
  const auto from = expected.begin() + static_cast<std::ptrdiff_t>(begin);
  if (!std::equal(found.begin(), found.end(), from)) {
    fail("a part of " + known.name + " after step " + std::to_string(step_));
  }
  return HO_OK;
}

ho_status PlannedJob::sync_and_compare() {
  if (const auto status = supply_once(); status != HO_OK) return status;
  if (const auto status = keep(ho_sync(runtime_)); status != HO_OK) return status;
  for (Loaded& loaded : plans_) {
    if (loaded.plan == nullptr) continue;
    for (std::uint32_t s = 0; s < loaded.schedule.storages.size(); ++s) {
      if (!loaded.schedule.storages[s].persistent) continue;
      if (const auto status = compare(loaded, s); status != HO_OK) return status;
    }
  }
  return HO_OK;
}

ho_status PlannedJob::compare_some(Prng& random) {
  if (const auto status = supply_once(); status != HO_OK) return status;
  for (Loaded& loaded : plans_) {
    if (loaded.plan == nullptr) continue;
    for (std::uint32_t s = 0; s < loaded.schedule.storages.size(); ++s) {
      if (!loaded.schedule.storages[s].persistent || random.below(3) > 0) continue;
      const auto status = compare_part(loaded, s, random);
      if (status != HO_OK) return status;
    }
  }
  return HO_OK;
}

ho_status PlannedJob::write_some(Prng& random) {
  if (const auto status = supply_once(); status != HO_OK) return status;
  for (Loaded& loaded : plans_) {
    if (loaded.plan == nullptr) continue;
    for (std::uint32_t s = 0; s < loaded.schedule.storages.size(); ++s) {
      const Storage& storage = loaded.schedule.storages[s];
      if (!storage.persistent || random.below(3) > 0) continue;
      auto& all = value(loaded, s);
      const auto [begin, bytes] = part_of(all.size(), random);
      const auto part = std::span(all).subspan(begin, bytes);
      fill(part, random.next());
      const auto status =
          keep(ho_write_range(loaded.plan, storage.id, begin, part.data(), part.size()));
      if (status != HO_OK) return status;
    }
  }
  return HO_OK;
}

ho_counters PlannedJob::counters(std::size_t which) const {
  ho_counters counters{};
  counters.struct_bytes = sizeof(counters);
  HO_CHECK(ho_get_counters(plans_[which].plan, &counters) == HO_OK);
  return counters;
}

}  // namespace ho::test
