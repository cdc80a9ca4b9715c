// The C ABI: translates between hyperoffload.h and the classes. No exception leaves it.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "client/api/c_handles.hpp"
#include "client/include/hyperoffload/hyperoffload.h"
#include "common/base/json.hpp"
#include "proto/file.hpp"

namespace {

using ho::Errc;
using ho::Error;
using ho::Result;
using ho::client::Direction;
using ho::client::c_api::guarded;
using ho::client::c_api::guarded_end;
using ho::client::c_api::last_error;
using ho::client::c_api::null_argument;

constexpr bool same(ho_status status, Errc code) {
  return static_cast<int>(status) == static_cast<int>(code);
}
static_assert(same(HO_OK, Errc::kOk) && same(HO_INVALID_ARGUMENT, Errc::kInvalidArgument) &&
                  same(HO_NOT_FOUND, Errc::kNotFound) &&
                  same(HO_ALREADY_EXISTS, Errc::kAlreadyExists) &&
                  same(HO_OUT_OF_RANGE, Errc::kOutOfRange) &&
                  same(HO_PERMISSION_DENIED, Errc::kPermissionDenied) &&
                  same(HO_BUSY, Errc::kBusy) && same(HO_EXHAUSTED, Errc::kExhausted) &&
                  same(HO_UNAVAILABLE, Errc::kUnavailable) && same(HO_DEADLINE, Errc::kDeadline) &&
                  same(HO_CANCELED, Errc::kCanceled) && same(HO_CORRUPT, Errc::kCorrupt) &&
                  same(HO_UNSUPPORTED, Errc::kUnsupported) && same(HO_CONFLICT, Errc::kConflict) &&
                  same(HO_IO, Errc::kIo),
              "ho_status mirrors Errc");

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, comma);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    if (!part.empty()) parts.emplace_back(part);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

Result<ho::client::PoolOptions> read_options(const ho_connect_options& given) {
  // Fields beyond what the caller's header knew are not read.
  ho_connect_options known{};
  std::memcpy(&known, &given, std::min(given.struct_bytes, sizeof(known)));
  ho::client::PoolOptions options;
  if (known.pool == nullptr) return Error(Errc::kInvalidArgument, "options.pool is null");
  options.sessions.addresses = split(known.pool);
  options.sessions.name = known.name != nullptr ? known.name : "job";
  auto allowed = ho::client::parse_allowed(known.transport != nullptr ? known.transport : "auto");
  if (!allowed) return allowed.error();
  options.transport = std::move(*allowed);
  if (known.op_deadline_ms > 0) {
    options.op_deadline = std::chrono::milliseconds(known.op_deadline_ms);
  }
  options.link_bytes_per_s = known.link_bytes_per_s;
  const auto text = [](const char* given_text) { return given_text == nullptr ? "" : given_text; };
  auto numa = ho::client::NumaWish::parse(text(known.local_numa));
  if (!numa) return numa.error();
  options.numa = *numa;
  ho::client::DriverOptions& drivers = options.drivers;
  drivers.local_threads = known.local_threads;
  drivers.ucx.devices = text(known.ucx_devices);
  if (*text(known.ucx_transports) != 0) drivers.ucx.transports = known.ucx_transports;
  drivers.ucx.module = text(known.ucx_module);
  drivers.ucx.allow_emulation = known.ucx_allow_emulation != 0;
  drivers.ofi_provider = text(known.ofi_provider);
  drivers.ofi_domain = text(known.ofi_domain);
  drivers.ofi_interface = text(known.ofi_interface);
  drivers.ofi_connections = std::max(known.ofi_connections, 1U);
  return options;
}

Result<std::uint64_t> start(ho_pool* pool, Direction direction, ho_allocation* allocation,
                            std::uint64_t offset, void* memory, std::size_t bytes) {
  if (pool == nullptr || allocation == nullptr || memory == nullptr || bytes == 0) {
    return Error(Errc::kInvalidArgument, "a null argument, or no bytes");
  }
  const auto& map = allocation->arena->map;
  if (offset > map.bytes() || bytes > map.bytes() - offset) {
    return Error(Errc::kOutOfRange, "offset + bytes leaves the allocation");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto after = pool->registered.upper_bound(address);
  if (after == pool->registered.begin()) {
    return Error(Errc::kInvalidArgument, "the memory is not registered");
  }
  const auto& [base, registered] = *--after;
  if (address - base > registered.bytes || bytes > registered.bytes - (address - base)) {
    return Error(Errc::kInvalidArgument, "the memory is not registered");
  }
  ho::client::Transfer transfer;
  transfer.direction = direction;
  transfer.arena = &map;
  transfer.arena_offset_bytes = offset;
  transfer.memory = static_cast<std::byte*>(memory);
  transfer.bytes = bytes;
  transfer.local = registered.handles;
  transfer.urgency = bytes <= ho::client::kSmallTransferBytes ? ho::client::Urgency::kPlainSmall
                                                              : ho::client::Urgency::kPlain;
  return pool->pool->engine().start(transfer);
}

ho_status start_into(ho_pool* pool, Direction direction, ho_allocation* allocation,
                     std::uint64_t offset, void* memory, std::size_t bytes, std::uint64_t* ticket) {
  return guarded([&]() -> Result<void> {
    if (ticket == nullptr) return Error(Errc::kInvalidArgument, "ticket is null");
    const auto started = start(pool, direction, allocation, offset, memory, bytes);
    if (!started) return started.error();
    *ticket = *started;
    return {};
  });
}

}  // namespace

extern "C" {

const char* ho_version(void) { return HO_VERSION; }

const char* ho_status_name(ho_status status) {
  if (status < HO_OK || status > HO_IO) return "unknown";
  return ho::errc_name(static_cast<Errc>(status)).data();  // literals: zero-terminated
}

const char* ho_last_error(void) { return last_error().c_str(); }

ho_status ho_connect(const ho_connect_options* options, ho_pool** out) {
  return guarded([&]() -> Result<void> {
    if (options == nullptr || out == nullptr) return null_argument();
    const auto read = read_options(*options);
    if (!read) return read.error();
    auto pool = ho::client::Pool::connect(*read);
    if (!pool) return pool.error();
    *out = new ho_pool{std::move(pool).value(), {}};
    return {};
  });
}

void ho_disconnect(ho_pool* pool) {
  if (pool == nullptr) return;
  guarded_end("ho_disconnect", [&] {
    for (const auto& [base, registered] : pool->registered) {
      pool->pool->unregister_memory(registered.handles);
    }
  });
  guarded_end("ho_disconnect", [&] { delete pool; });
}

const char* ho_pool_transport(const ho_pool* pool) {
  return pool == nullptr ? "" : pool->pool->transport_name().c_str();
}

ho_status ho_allocate(ho_pool* pool, uint64_t bytes, ho_allocation** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || out == nullptr) return null_argument();
    if (bytes == 0) return Error(Errc::kInvalidArgument, "an allocation of 0 bytes");
    auto arena = pool->pool->allocate(bytes, {});
    if (!arena) return arena.error();
    *out = new ho_allocation{std::move(arena).value()};
    return {};
  });
}

void ho_free(ho_pool* pool, ho_allocation* allocation) {
  if (pool == nullptr || allocation == nullptr) return;
  guarded_end("ho_free", [&] { pool->pool->release(std::move(allocation->arena)); });
  delete allocation;
}

ho_status ho_register(ho_pool* pool, void* base, size_t bytes) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || base == nullptr || bytes == 0) return null_argument();
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    const auto after = pool->registered.lower_bound(address);
    const bool meets_next = after != pool->registered.end() && after->first - address < bytes;
    const bool meets_previous = after != pool->registered.begin() &&
                                address - std::prev(after)->first < std::prev(after)->second.bytes;
    if (meets_next || meets_previous) {
      return Error(Errc::kAlreadyExists, "the memory overlaps memory already registered");
    }
    const auto handles = pool->pool->register_memory({static_cast<std::byte*>(base), bytes});
    if (!handles) return handles.error();
    pool->registered[address] = {bytes, *handles};
    return {};
  });
}

ho_status ho_unregister(ho_pool* pool, void* base) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || base == nullptr) return null_argument();
    const auto at = pool->registered.find(reinterpret_cast<std::uintptr_t>(base));
    if (at == pool->registered.end()) {
      return Error(Errc::kNotFound, "no memory registered at this address");
    }
    pool->pool->unregister_memory(at->second.handles);
    pool->registered.erase(at);
    return {};
  });
}

ho_status ho_get(ho_pool* pool, ho_allocation* from, uint64_t offset, void* into, size_t bytes,
                 uint64_t* ticket) {
  return start_into(pool, Direction::kGet, from, offset, into, bytes, ticket);
}

ho_status ho_put(ho_pool* pool, ho_allocation* to, uint64_t offset, const void* from, size_t bytes,
                 uint64_t* ticket) {
  return start_into(pool, Direction::kPut, to, offset, const_cast<void*>(from), bytes, ticket);
}

ho_status ho_wait(ho_pool* pool, uint64_t ticket) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr) return null_argument();
    return pool->pool->engine().wait(ticket);
  });
}

ho_status ho_test(ho_pool* pool, uint64_t ticket, int* done) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || done == nullptr) return null_argument();
    const auto tested = pool->pool->engine().test(ticket);
    if (!tested) return tested.error();
    *done = *tested ? 1 : 0;
    return {};
  });
}

ho_status ho_load(ho_pool* pool, const void* schedule, size_t schedule_bytes, void* arena,
                  size_t arena_bytes, ho_runtime** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || schedule == nullptr || arena == nullptr || out == nullptr) {
      return null_argument();
    }
    auto loaded = ho::client::Runtime::load(
        *pool->pool, {static_cast<const std::byte*>(schedule), schedule_bytes},
        {static_cast<std::byte*>(arena), arena_bytes});
    if (!loaded) return loaded.error();
    *out = new ho_runtime{std::move(loaded).value()};
    return {};
  });
}

void ho_unload(ho_runtime* runtime) {
  guarded_end("ho_unload", [&] { delete runtime; });
}

ho_status ho_write(ho_runtime* runtime, uint32_t storage_id, const void* data, size_t bytes) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr || data == nullptr) return null_argument();
    return runtime->runtime->write(storage_id, {static_cast<const std::byte*>(data), bytes});
  });
}

ho_status ho_read(ho_runtime* runtime, uint32_t storage_id, void* into, size_t bytes) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr || into == nullptr) return null_argument();
    return runtime->runtime->read(storage_id, {static_cast<std::byte*>(into), bytes});
  });
}

ho_status ho_step_begin(ho_runtime* runtime) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr) return null_argument();
    return runtime->runtime->step_begin();
  });
}

ho_status ho_before(ho_runtime* runtime, uint32_t position) {
  if (runtime != nullptr && runtime->runtime->try_before(position)) return HO_OK;
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr) return null_argument();
    return runtime->runtime->before_slow(position);
  });
}

void* ho_operand(const ho_runtime* runtime, uint32_t position, uint32_t storage_id) {
  return runtime == nullptr ? nullptr : runtime->runtime->operand(position, storage_id);
}

ho_status ho_after(ho_runtime* runtime, uint32_t position) {
  if (runtime != nullptr && runtime->runtime->try_after(position)) return HO_OK;
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr) return null_argument();
    return runtime->runtime->after_error(position);
  });
}

ho_status ho_step_end(ho_runtime* runtime) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr) return null_argument();
    return runtime->runtime->step_end();
  });
}

ho_status ho_finish(ho_runtime* runtime) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr) return null_argument();
    return runtime->runtime->finish();
  });
}

uint32_t ho_position_count(const ho_runtime* runtime) {
  return runtime == nullptr ? 0 : runtime->runtime->position_count();
}

uint32_t ho_position_op(const ho_runtime* runtime, uint32_t position) {
  return runtime == nullptr ? 0 : runtime->runtime->position_op(position);
}

uint32_t ho_cache_op_count(const ho_runtime* runtime) {
  return runtime == nullptr ? 0 : runtime->runtime->cache_op_count();
}

ho_status ho_get_counters(const ho_runtime* runtime, ho_counters* out) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr || out == nullptr) return null_argument();
    if (out->struct_bytes < sizeof(ho_counters::struct_bytes) + sizeof(ho_counters::steps)) {
      return Error(Errc::kInvalidArgument, "struct_bytes is not set to sizeof(ho_counters)");
    }
    const auto now = runtime->runtime->counters();
    ho_counters filled{};
    filled.struct_bytes = std::min(out->struct_bytes, sizeof(filled));
    filled.steps = now.steps;
    filled.stall_ns = now.stall_ns;
    filled.prefetch_bytes = now.prefetch_bytes;
    filled.store_bytes = now.store_bytes;
    filled.last_step_ns = now.last_step_ns;
    filled.last_step_stall_ns = now.last_step_stall_ns;
    filled.last_step_prefetch_bytes = now.last_step_prefetch_bytes;
    filled.last_step_store_bytes = now.last_step_store_bytes;
    filled.peak_device_bytes = now.peak_device_bytes;
    filled.stage_in_bytes = now.stage_in_bytes;
    filled.stage_out_bytes = now.stage_out_bytes;
    filled.last_step_stage_in_bytes = now.last_step_stage_in_bytes;
    filled.last_step_stage_out_bytes = now.last_step_stage_out_bytes;
    std::memcpy(out, &filled, filled.struct_bytes);
    return {};
  });
}

ho_status ho_get_timeline(const ho_runtime* runtime, ho_span* ops, ho_span* cache_ops) {
  static_assert(sizeof(ho_span) == sizeof(ho::client::TimelineSpan));
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr) return null_argument();
    auto& loaded = *runtime->runtime;
    std::vector<ho::client::TimelineSpan> op_spans(loaded.position_count());
    std::vector<ho::client::TimelineSpan> cache_spans(loaded.cache_op_count());
    if (auto ok = loaded.timeline(op_spans, cache_spans); !ok) return ok;
    const auto copy = [](const ho::client::TimelineSpan& span) {
      return ho_span{span.start_ns, span.end_ns, span.stall_ns, span.bytes, span.queued_ns};
    };
    if (ops != nullptr) std::transform(op_spans.begin(), op_spans.end(), ops, copy);
    if (cache_ops != nullptr)
      std::transform(cache_spans.begin(), cache_spans.end(), cache_ops, copy);
    return {};
  });
}

ho_status ho_write_op_times(const ho_runtime* runtime, const char* path) {
  return guarded([&]() -> Result<void> {
    if (runtime == nullptr || path == nullptr) return null_argument();
    auto& loaded = *runtime->runtime;
    std::vector<ho::client::TimelineSpan> ops(loaded.position_count());
    std::vector<ho::client::TimelineSpan> cache_ops(loaded.cache_op_count());
    if (auto ok = loaded.timeline(ops, cache_ops); !ok) return ok;
    std::map<std::uint32_t, std::uint64_t> shortest;
    for (std::uint32_t p = 0; p < ops.size(); ++p) {
      const std::uint64_t took_ns = ops[p].end_ns - std::min(ops[p].start_ns, ops[p].end_ns);
      const auto [at, first] = shortest.emplace(loaded.position_op(p), took_ns);
      if (!first) at->second = std::min(at->second, took_ns);
    }
    ho::JsonWriter json;
    json.begin_object().field("version", 1U).key("ops").begin_array();
    for (const auto& [id, took_ns] : shortest) {
      json.begin_object().field("id", id).field("durationNs", std::to_string(took_ns)).end();
    }
    json.end().end();
    return ho::write_whole_file(path, std::move(json).text() + "\n");
  });
}

}  // extern "C"
