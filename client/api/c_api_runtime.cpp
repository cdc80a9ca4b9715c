// The C ABI of runtimes, plans and storages. No exception leaves it.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/api/c_handles.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"

namespace {

using namespace ho;
using namespace ho::client;
using namespace ho::client::c_api;

std::span<const std::byte> bytes_of(const void* data, std::size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}

/// @return kAlreadyExists: a runtime that is open has some of this memory.
Result<void> claim_arena(ho_pool& pool, const DeviceMemory& memory) {
  const std::lock_guard guard(pool.mutex);
  if (!memory.arena.empty()) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.arena.data());
    const std::uintptr_t end = begin + memory.arena.size();
    const auto after = pool.arenas.lower_bound(end);
    if (after != pool.arenas.begin() && std::prev(after)->second > begin) {
      return Error(Errc::kAlreadyExists, "the arena overlaps that of a runtime that is open");
    }
    pool.arenas[begin] = end;
  }
  pool.runtimes += 1;
  return {};
}

void release_arena(ho_pool& pool, std::uintptr_t begin) {
  const std::lock_guard guard(pool.mutex);
  pool.arenas.erase(begin);
  pool.runtimes -= 1;
}

/// Runs `work(plan)` for a plan, unless the handle is null.
template <typename Work>
ho_status with(ho_plan* plan, const Work& work) {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr) return null_argument();
    return work(*plan->plan);
  });
}

template <typename Work>
ho_status with(ho_runtime* runtime, const Work& work) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr) return null_argument();
    return work(*runtime->runtime);
  });
}

Result<DeviceOptions> device_options(const ho_device_memory& memory) {
  DeviceOptions options;
  switch (memory.kind) {
    case HO_DEVICE_HOST: return options;
    case HO_DEVICE_CUDA: break;
    default: return Error(Errc::kInvalidArgument, "no such kind of device memory");
  }
  options.kind = DeviceOptions::Kind::kCuda;
  options.ordinal = memory.ordinal;
  options.stream = memory.stream;
  if (memory.cuda_library != nullptr) options.library = memory.cuda_library;
  return options;
}

}  // namespace

extern "C" {

ho_status ho_open(ho_pool* pool, const ho_device_memory* memory, ho_runtime** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || memory == nullptr || out == nullptr) return null_argument();
    const auto known = take_in(*memory);
    if (!known) return known.error();
    if (auto fine = check_memory(known->arena, known->arena_bytes); !fine) return fine;
    DeviceMemory device;
    if (known->arena != nullptr) {
      device.arena = {static_cast<std::byte*>(known->arena), known->arena_bytes};
    }
    device.take = known->take;
    device.drop = known->drop;
    device.context = known->context;
    device.copies = known->copies == 0 ? 1 : known->copies;
    auto options = device_options(*known);
    if (!options) return options.error();
    device.device = std::move(options).value();
    auto made = std::make_unique<ho_runtime>();
    made->pool = pool;
    made->arena = reinterpret_cast<std::uintptr_t>(device.arena.data());
    if (auto ok = claim_arena(*pool, device); !ok) return ok;
    auto runtime = Runtime::open(*pool->pool, device);
    if (!runtime) {
      release_arena(*pool, made->arena);
      return runtime.error();
    }
    made->runtime = std::move(runtime).value();
    *out = made.release();
    return {};
  });
}

void ho_close(ho_runtime* runtime) {
  if (runtime == nullptr) return;
  guarded_end("ho_close", [&] {
    const std::unique_ptr<ho_runtime> ended(runtime);
    ended->runtime.reset();
    release_arena(*ended->pool, ended->arena);
  });
}

ho_status ho_schedule_info(const void* schedule, size_t schedule_bytes, ho_schedule_needs* out) {
  return guarded([&]() -> Result<void> {
    if (schedule == nullptr || out == nullptr) return null_argument();
    const auto read = decode_schedule(bytes_of(schedule, schedule_bytes));
    if (!read) return read.error();
    ho_schedule_needs needs{};
    needs.arena_bytes = read->arena_bytes;
    needs.device_budget_bytes = read->device_budget_bytes;
    needs.align_bytes = read->align_bytes;
    needs.local_ddr_bytes = read->local_ddr_bytes;
    needs.remote_ddr_bytes = read->remote_ddr_bytes;
    needs.flash_bytes = read->flash_bytes;
    for (const Storage& storage : read->storages) {
      const bool input = !storage.persistent && storage.kind == StorageKind::kInput;
      needs.persistent_bytes += storage.persistent ? storage.bytes : 0;
      needs.input_bytes += input ? storage.bytes : 0;
    }
    needs.step_ns = read->prediction.step_ns;
    needs.stall_ns = read->prediction.stall_ns;
    needs.positions = static_cast<std::uint32_t>(read->positions.size());
    needs.cache_ops = static_cast<std::uint32_t>(read->cache_ops.size());
    needs.storages = static_cast<std::uint32_t>(read->storages.size());
    return give_out(needs, out);
  });
}

ho_status ho_load(ho_runtime* runtime, const void* schedule, size_t schedule_bytes, ho_plan** out) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr || schedule == nullptr || out == nullptr) return null_argument();
    auto handle = std::make_unique<ho_plan>();
    Runtime& it = *runtime->runtime;
    const auto encoded = bytes_of(schedule, schedule_bytes);
    auto loaded = wait_for_memory(
        *runtime->pool, [&] { return it.load(encoded); },
        [&] { return may_fit_anywhere(*runtime->pool, Plan::need_of(encoded)); });
    if (!loaded) return loaded.error();
    handle->plan = *loaded;
    handle->runtime = runtime;
    runtime->plans.push_back(std::move(handle));
    *out = runtime->plans.back().get();
    return {};
  });
}

ho_status ho_unload(ho_plan* plan) {
  if (plan == nullptr) return HO_OK;
  return guarded([&]() -> Result<void> {
    ho_runtime& runtime = *plan->runtime;
    auto ended = runtime.runtime->unload(*plan->plan);
    std::erase_if(runtime.plans, [&](const auto& one) { return one.get() == plan; });
    return ended;
  });
}

uint32_t ho_position_count(const ho_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->position_count();
}

uint32_t ho_position_op(const ho_plan* plan, uint32_t position) {
  const auto* const op = plan == nullptr ? nullptr : plan->plan->op_at(position);
  return op == nullptr ? 0 : op->id;
}

const char* ho_position_name(const ho_plan* plan, uint32_t position) {
  const auto* const op = plan == nullptr ? nullptr : plan->plan->op_at(position);
  return op == nullptr ? "" : op->name.c_str();
}

uint32_t ho_cache_op_count(const ho_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->cache_op_count();
}

uint32_t ho_storage_count(const ho_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->storage_count();
}

ho_status ho_get_storage_info(const ho_plan* plan, uint32_t index, ho_storage_info* out) {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr || out == nullptr) return null_argument();
    const auto info = plan->plan->storage_info(index);
    if (!info) return info.error();
    return give_out(*info, out);
  });
}

ho_status ho_write(ho_plan* plan, uint32_t storage_id, const void* data, size_t bytes) {
  return with(plan, [&](Plan& it) -> Result<void> {
    if (data == nullptr) return null_argument();
    return it.write(storage_id, std::nullopt, bytes_of(data, bytes));
  });
}

ho_status ho_write_range(ho_plan* plan, uint32_t storage_id, uint64_t offset, const void* data,
                         size_t bytes) {
  return with(plan, [&](Plan& it) -> Result<void> {
    if (data == nullptr) return null_argument();
    return it.write(storage_id, offset, bytes_of(data, bytes));
  });
}

ho_status ho_read(ho_plan* plan, uint32_t storage_id, void* into, size_t bytes) {
  return with(plan, [&](Plan& it) -> Result<void> {
    if (into == nullptr) return null_argument();
    return it.read(storage_id, std::nullopt, {static_cast<std::byte*>(into), bytes});
  });
}

ho_status ho_read_range(ho_plan* plan, uint32_t storage_id, uint64_t offset, void* into,
                        size_t bytes) {
  return with(plan, [&](Plan& it) -> Result<void> {
    if (into == nullptr) return null_argument();
    return it.read(storage_id, offset, {static_cast<std::byte*>(into), bytes});
  });
}

ho_status ho_sync(ho_runtime* runtime) {
  return with(runtime, [](Runtime& it) { return it.sync(); });
}

ho_status ho_step_begin(ho_plan* plan) {
  return with(plan, [](Plan& it) { return it.step_begin(); });
}

ho_status ho_before(ho_plan* plan, uint32_t position) {
  if (plan != nullptr && plan->plan->try_before(position)) return HO_OK;
  return with(plan, [&](Plan& it) { return it.before_slow(position); });
}

void* ho_operand(const ho_plan* plan, uint32_t position, uint32_t storage_id) {
  return plan == nullptr ? nullptr : plan->plan->operand(position, storage_id);
}

ho_status ho_after(ho_plan* plan, uint32_t position) {
  if (plan != nullptr && plan->plan->try_after(position)) return HO_OK;
  return with(plan, [&](Plan& it) { return it.after_slow(position); });
}

ho_status ho_step_end(ho_plan* plan) {
  return with(plan, [](Plan& it) { return it.step_end(); });
}

ho_status ho_leave(ho_plan* plan) {
  return with(plan, [](Plan& it) { return it.leave(); });
}

ho_status ho_storage_of(const ho_plan* plan, uint32_t storage_id, ho_storage* out) {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr || out == nullptr) return null_argument();
    const auto number = plan->plan->number_of(storage_id);
    if (!number) return number.error();
    *out = number->value();
    return {};
  });
}

ho_status ho_find_storage(const ho_runtime* runtime, const char* name, ho_storage* out) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr || name == nullptr || out == nullptr) return null_argument();
    const auto number = runtime->runtime->find(name);
    if (!number) return Error(Errc::kNotFound, "no storage is named " + std::string(name));
    *out = number->value();
    return {};
  });
}

ho_status ho_declare(ho_runtime* runtime, const char* name, uint64_t bytes, ho_storage* out) {
  return with(runtime, [&](Runtime& it) -> Result<void> {
    if (out == nullptr) return null_argument();
    const auto number = it.declare(name == nullptr ? "" : name, bytes);
    if (!number) return number.error();
    *out = number->value();
    return {};
  });
}

ho_status ho_undeclare(ho_runtime* runtime, ho_storage storage) {
  return with(runtime, [&](Runtime& it) { return it.undeclare(StorageNumber(storage)); });
}

ho_status ho_adopt(ho_runtime* runtime, ho_storage storage, void* memory) {
  return with(runtime, [&](Runtime& it) { return it.adopt(StorageNumber(storage), memory); });
}

ho_status ho_forget(ho_runtime* runtime, ho_storage storage) {
  return with(runtime, [&](Runtime& it) { return it.forget(StorageNumber(storage)); });
}

ho_status ho_fetch(ho_runtime* runtime, ho_storage storage, void** memory) {
  return with(runtime, [&](Runtime& it) -> Result<void> {
    const auto fetched = it.fetch(StorageNumber(storage));
    if (!fetched) return fetched.error();
    if (memory != nullptr) *memory = *fetched;
    return {};
  });
}

ho_status ho_peek(ho_runtime* runtime, ho_storage storage, void* into, size_t bytes) {
  return with(runtime, [&](Runtime& it) -> Result<void> {
    if (into == nullptr) return Error(Errc::kInvalidArgument, "no memory to copy the value to");
    return it.peek(StorageNumber(storage), {static_cast<std::byte*>(into), bytes});
  });
}

ho_status ho_evict(ho_runtime* runtime, ho_storage storage) {
  return with(runtime, [&](Runtime& it) {
    const StorageNumber number(storage);
    return wait_for_memory(
        *runtime->pool, [&] { return it.evict(number); }, [&] { return it.may_have_home(number); });
  });
}

ho_status ho_get_storage(ho_runtime* runtime, ho_storage storage, ho_storage_state* out) {
  return with(runtime, [&](Runtime& it) -> Result<void> {
    if (out == nullptr) return null_argument();
    const auto state = it.state(StorageNumber(storage));
    if (!state) return state.error();
    return give_out(*state, out);
  });
}

ho_status ho_get_counters(const ho_plan* plan, ho_counters* out) {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr || out == nullptr) return null_argument();
    return give_out(plan->plan->counters(), out);
  });
}

ho_status ho_get_runtime_counters(const ho_runtime* runtime, ho_runtime_counters* out) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr || out == nullptr) return null_argument();
    return give_out(runtime->runtime->counters(), out);
  });
}

ho_status ho_get_timeline(const ho_plan* plan, ho_span* ops, ho_span* cache_ops) {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr) return null_argument();
    const auto measured = plan->plan->timeline();
    if (!measured) return measured.error();
    if (ops != nullptr) std::copy(measured->ops.begin(), measured->ops.end(), ops);
    if (cache_ops != nullptr) {
      std::copy(measured->cache_ops.begin(), measured->cache_ops.end(), cache_ops);
    }
    return {};
  });
}

ho_status ho_write_op_times(const ho_plan* plan, const char* path) {
  return guarded([&]() -> Result<void> {
    if (plan == nullptr || path == nullptr) return null_argument();
    const auto measured = plan->plan->timeline();
    if (!measured) return measured.error();
    std::map<std::uint32_t, std::uint64_t> shortest;
    for (std::uint32_t p = 0; p < measured->ops.size(); ++p) {
      const ho_span& op = measured->ops[p];
      const std::uint64_t took_ns = op.end_ns - std::min(op.start_ns, op.end_ns);
      const auto [at, first] = shortest.emplace(plan->plan->op_at(p)->id, took_ns);
      if (!first) at->second = std::min(at->second, took_ns);
    }
    JsonWriter json;
    json.begin_object().field("version", 1U).key("ops").begin_array();
    for (const auto& [id, took_ns] : shortest) {
      json.begin_object().field("id", id).field("durationNs", std::to_string(took_ns)).end();
    }
    json.end().end();
    return write_whole_file(path, std::move(json).text() + "\n");
  });
}

}  // extern "C"
