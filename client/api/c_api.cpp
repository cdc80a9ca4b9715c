// The C ABI: translates between hyperoffload.h and the classes. No exception leaves it.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "client/api/c_handles.hpp"
#include "client/include/hyperoffload/hyperoffload.h"
#include "common/text/split_text.hpp"
#include "common/transport/driver_names.hpp"

namespace {

using namespace ho;
using namespace ho::client;
using namespace ho::client::c_api;

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

constexpr std::size_t kJobNameBytesMax = 255;  // the daemons' limit

std::vector<std::string> addresses_in(std::string_view text) {
  std::vector<std::string> addresses;
  for (std::string_view part : split_text(text, ',')) {
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    if (!part.empty()) addresses.emplace_back(part);
  }
  return addresses;
}

Result<PoolOptions> read_options(const ho_connect_options& known) {
  PoolOptions options;
  if (known.pool == nullptr) return Error(Errc::kInvalidArgument, "options.pool is null");
  options.sessions.addresses = addresses_in(known.pool);
  auto name =
      utf8_text(known.name != nullptr ? known.name : "job", "options.name", kJobNameBytesMax);
  if (!name) return name.error();
  options.sessions.name = std::move(*name);
  auto allowed =
      transport::parse_driver_names(known.transport != nullptr ? known.transport : "auto");
  if (!allowed) return allowed.error();
  options.transport = std::move(*allowed);
  if (known.op_deadline_ms > 0) {
    options.op_deadline = std::chrono::milliseconds(known.op_deadline_ms);
  }
  options.link_bytes_per_s = known.link_bytes_per_s;
  if (known.repair_after_ms > 0) {
    options.repair_after = std::chrono::milliseconds(known.repair_after_ms);
  }
  const auto text = [](const char* given_text) { return given_text == nullptr ? "" : given_text; };
  auto numa = NumaWish::parse(text(known.local_numa));
  if (!numa) return numa.error();
  options.numa = *numa;
  DriverOptions& drivers = options.drivers;
  drivers.local_threads = known.local_threads;
  transport::UcxDevices& ucx = drivers.ucx.devices;
  ucx.devices = text(known.ucx_devices);
  if (*text(known.ucx_transports) != 0) ucx.transports = known.ucx_transports;
  ucx.module = text(known.ucx_module);
  ucx.allow_emulation = known.ucx_allow_emulation != 0;
  drivers.ofi.provider = text(known.ofi_provider);
  drivers.ofi.domain = text(known.ofi_domain);
  drivers.ofi.allow_emulation = known.ofi_allow_emulation != 0;
  drivers.ofi.connections = drivers.tcp.connections = std::max(known.connections, 1U);
  drivers.ofi_interface = text(known.ofi_interface);
  drivers.tcp_interface = text(known.tcp_interface);
  options.sessions.tls_folder = drivers.tcp.tls_folder = text(known.tls);
  if (auto fine = check_options(drivers); !fine) return fine.error();
  return options;
}

std::chrono::milliseconds wait_of(const ho_connect_options& known) {
  constexpr std::uint64_t kYearMs = 365ULL * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::min(known.wait_ms, kYearMs));
}

Result<std::uint64_t> start(ho_pool* pool, Direction direction, ho_allocation* allocation,
                            std::uint64_t offset, void* memory, std::size_t bytes) {
  if (pool == nullptr || allocation == nullptr || memory == nullptr || bytes == 0) {
    return Error(Errc::kInvalidArgument, "a null argument, or no bytes");
  }
  if (auto own = check_owner(pool, *allocation); !own) return own.error();
  const std::lock_guard stays(allocation->memory->mutex());
  const auto& map = allocation->memory->map();
  if (offset > map.bytes() || bytes > map.bytes() - offset) {
    return Error(Errc::kOutOfRange, "offset + bytes leaves the allocation");
  }
  const auto handles = pool->handles_of(memory, bytes);
  if (!handles) return Error(Errc::kInvalidArgument, "the memory is not registered");
  Transfer transfer;
  transfer.direction = direction;
  transfer.arena = &map;
  transfer.arena_offset_bytes = offset;
  transfer.memory = static_cast<std::byte*>(memory);
  transfer.bytes = bytes;
  transfer.local = *handles;
  transfer.urgency = bytes <= kSmallTransferBytes ? Urgency::kFirst : Urgency::kPlain;
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

Result<Nearness> nearness_of(ho_nearness which) {
  switch (which) {
    case HO_ALL_NODES: return Nearness::kAny;
    case HO_NEAR_NODES: return Nearness::kNear;
    case HO_FAR_NODES: return Nearness::kFar;
  }
  return Error(Errc::kInvalidArgument, "an unknown ho_nearness");
}

ho_pool_room room_of(Pool& pool, Nearness nearness) {
  ho_pool_room sum{};
  const auto nodes = pool.nodes_of(nearness);
  const auto rooms = pool.rooms(nodes);
  for (const auto& room : rooms.ddr) {
    sum.nodes += 1;
    sum.ddr_bytes += room.free_bytes / room.segment_bytes * room.segment_bytes;
  }
  sum.failure_domains = static_cast<std::uint32_t>(pool.failure_domains().count(nodes));
  for (const auto& room : rooms.flash) sum.flash_bytes += room.free_bytes;
  return sum;
}

Result<std::unique_ptr<Arena>> allocate_among(Pool& pool, Nearness nearness, std::uint64_t bytes) {
  if (nearness != Nearness::kAny && pool.nodes_of(nearness).empty()) {
    return Error(Errc::kNotFound, std::string("the pool has no node that is ") +
                                      (nearness == Nearness::kNear ? "near" : "far"));
  }
  Pool::Where where;
  where.nearness = nearness;
  return pool.allocate(bytes, where);
}

}  // namespace

extern "C" {

const char* ho_version(void) { return HO_VERSION; }

const char* ho_status_name(ho_status status) {
  if (status < HO_OK || status > HO_IO) return "unknown";
  return errc_name(static_cast<Errc>(status)).data();  // literals: zero-terminated
}

const char* ho_last_error(void) { return last_error().c_str(); }

ho_status ho_connect(const ho_connect_options* options, ho_pool** out) {
  return guarded([&]() -> Result<void> {
    if (options == nullptr || out == nullptr) return null_argument();
    const auto known = take_in(*options);
    if (!known) return known.error();
    const auto read = read_options(*known);
    if (!read) return read.error();
    const auto level = log_level_of_environment();
    if (!level) return level.error();
    if (*level) set_log_level(**level);
    auto pool = Pool::connect(*read);
    if (!pool) return pool.error();
    auto made = std::make_unique<ho_pool>();
    made->pool = std::move(pool).value();
    made->wait = wait_of(*known);
    *out = made.release();
    return {};
  });
}

ho_status ho_disconnect(ho_pool* pool) {
  if (pool == nullptr) return HO_OK;
  return guarded([&]() -> Result<void> {
    {
      const std::lock_guard guard(pool->mutex);
      std::string open;
      const auto name = [&open](std::size_t count, const char* what) {
        if (count == 0) return;
        open += (open.empty() ? "" : ", ") + std::to_string(count) + ' ' + what;
      };
      name(pool->runtimes, "runtimes");
      name(pool->blocks.size(), "block stores");
      name(pool->objects, "publishers and subscribers");
      name(pool->allocations, "allocations");
      if (!open.empty()) return Error(Errc::kConflict, "the pool still has " + open);
    }
    for (const auto& [base, registered] : pool->registered) {
      pool->pool->unregister_memory(registered.handles);
    }
    delete pool;
    return {};
  });
}

const char* ho_pool_transport(const ho_pool* pool) {
  return pool == nullptr ? "" : pool->pool->transport_name().c_str();
}

ho_status ho_pool_get_room(ho_pool* pool, ho_nearness which, ho_pool_room* out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || out == nullptr) return null_argument();
    const auto nearness = nearness_of(which);
    if (!nearness) return nearness.error();
    return give_out(room_of(*pool->pool, *nearness), out);
  });
}

ho_status ho_pool_get_notice(const ho_pool* pool, ho_pool_notice* out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || out == nullptr) return null_argument();
    const auto notice = pool->pool->notice();
    ho_pool_notice filled{};
    filled.drained_nodes = notice.drained;
    filled.ending_nodes = notice.ending;
    // Not 0: it has not ended yet, or the job would have lost it.
    if (notice.ending > 0) filled.ending_ms = std::max<std::uint64_t>(notice.left_ms, 1);
    filled.changes = notice.changes;
    return give_out(filled, out);
  });
}

ho_status ho_allocate(ho_pool* pool, uint64_t bytes, ho_allocation** out) {
  return ho_allocate_among(pool, HO_ALL_NODES, bytes, out);
}

ho_status ho_allocate_among(ho_pool* pool, ho_nearness which, uint64_t bytes, ho_allocation** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || out == nullptr) return null_argument();
    if (bytes == 0) return Error(Errc::kInvalidArgument, "an allocation of 0 bytes");
    const auto nearness = nearness_of(which);
    if (!nearness) return nearness.error();
    auto arena = wait_for_any_node(
        *pool, [&] { return allocate_among(*pool->pool, *nearness, bytes); },
        [&] {
          return pool->pool->may_fit({.ddr_bytes = bytes}, pool->pool->candidates(*nearness));
        });
    if (!arena && arena.error().code() == Errc::kExhausted && pool->pool->is_silent()) {
      return Error(Errc::kDeadline, "no node answers: " + arena.error().context());
    }
    if (!arena) return arena.error();
    *out =
        new ho_allocation{pool, std::make_unique<PlainMemory>(*pool->pool, std::move(arena).value(),
                                                              PlainMemory::Drained::kLeaves)};
    const std::lock_guard guard(pool->mutex);
    pool->allocations += 1;
    return {};
  });
}

void ho_free(ho_pool* pool, ho_allocation* allocation) {
  if (pool == nullptr || allocation == nullptr || allocation->pool != pool) return;
  {
    const std::lock_guard guard(pool->mutex);
    pool->allocations -= 1;
  }
  guarded_end("ho_free", [&] { allocation->memory.reset(); });
  delete allocation;
}

ho_status ho_register(ho_pool* pool, void* base, size_t bytes) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || base == nullptr) return null_argument();
    if (bytes == 0) return Error(Errc::kInvalidArgument, "memory of 0 bytes");
    if (auto fine = check_memory(base, bytes); !fine) return fine;
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    {
      const std::lock_guard guard(pool->mutex);
      const auto after = pool->registered.lower_bound(address);
      const bool meets_next = after != pool->registered.end() && after->first - address < bytes;
      const bool meets_previous =
          after != pool->registered.begin() &&
          address - std::prev(after)->first < std::prev(after)->second.bytes;
      if (meets_next || meets_previous) {
        return Error(Errc::kAlreadyExists, "the memory overlaps memory already registered");
      }
    }
    const auto handles = pool->pool->register_memory({static_cast<std::byte*>(base), bytes});
    if (!handles) return handles.error();
    const std::lock_guard guard(pool->mutex);
    pool->registered[address] = {bytes, *handles};
    return {};
  });
}

ho_status ho_unregister(ho_pool* pool, void* base) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || base == nullptr) return null_argument();
    LocalHandles handles;
    {
      const std::lock_guard guard(pool->mutex);
      const auto at = pool->registered.find(reinterpret_cast<std::uintptr_t>(base));
      if (at == pool->registered.end()) {
        return Error(Errc::kNotFound, "no memory registered at this address");
      }
      if (at->second.objects > 0) {
        return Error(Errc::kConflict, "publishers or subscribers that are open use the memory");
      }
      for (Blocks* const blocks : pool->blocks) {
        if (!blocks->uses_memory(at->second.handles)) continue;
        return Error(Errc::kConflict, "blocks that are not drained use the memory");
      }
      handles = at->second.handles;
      pool->registered.erase(at);
    }
    pool->pool->unregister_memory(handles);
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

}  // extern "C"
