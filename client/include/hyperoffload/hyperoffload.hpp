// HyperOffload client library for C++17: owners and exceptions over the C ABI, nothing else.
// SPDX-License-Identifier: Apache-2.0
#ifndef HYPEROFFLOAD_HYPEROFFLOAD_HPP_
#define HYPEROFFLOAD_HYPEROFFLOAD_HPP_

#include <hyperoffload/hyperoffload.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hyperoffload {

/// A call that failed: its status and the library's sentence about it.
class Error : public std::runtime_error {
 public:
  explicit Error(ho_status status)
      : std::runtime_error(std::string(ho_status_name(status)) + ": " + ho_last_error()),
        status_(status) {}
  ho_status status() const noexcept { return status_; }

 private:
  ho_status status_;
};

inline void check(ho_status status) {
  if (status != HO_OK) throw Error(status);
}

/// What the library logs in this process, and where lines go; see ho_set_log().
inline void set_log(ho_log_level least,
                    void (*line)(void* context, ho_log_level level, const char* text) = nullptr,
                    void* context = nullptr) {
  check(ho_set_log(least, line, context));
}

/// Bytes of one node's flash. It must not outlive its Pool. Its end gives scratch flash back, which
/// nobody else can reach; durable flash stays, until free().
class Flash {
 public:
  Flash(ho_pool* pool, std::uint64_t bytes, ho_flash_policy policy)
      : pool_(pool), durable_(policy == HO_FLASH_DURABLE) {
    check(ho_flash_allocate(pool, bytes, policy, &handle_));
  }
  /// Durable flash of an earlier job, by the name that it had.
  Flash(ho_pool* pool, const std::string& name) : pool_(pool), durable_(true) {
    check(ho_flash_open(pool, name.c_str(), &handle_));
  }
  Flash(Flash&& other) noexcept
      : pool_(other.pool_),
        durable_(other.durable_),
        handle_(std::exchange(other.handle_, nullptr)) {}
  Flash& operator=(Flash&& other) noexcept {
    if (this != &other) {
      end();
      pool_ = other.pool_;
      durable_ = other.durable_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Flash() { end(); }

  ho_flash* get() const noexcept { return handle_; }
  std::uint64_t bytes() const { return ho_flash_bytes(handle_); }
  /// What a later job opens it by. A secret.
  std::string name() const {
    char text[HO_FLASH_NAME_BYTES];
    check(ho_flash_name(pool_, handle_, text, sizeof(text)));
    return text;
  }
  /// Gives it back, durable or not; nothing else may be done with it then. Where it throws, it is
  /// as it was.
  void free() {
    check(ho_flash_free(pool_, handle_));
    handle_ = nullptr;
  }

 private:
  void end() noexcept {
    // Scratch that cannot be given back now ends with the session.
    if (durable_ || ho_flash_free(pool_, handle_) != HO_OK) ho_flash_close(handle_);
    handle_ = nullptr;
  }

  ho_pool* pool_;
  bool durable_;
  ho_flash* handle_ = nullptr;
};

/// Pool memory. It must not outlive its Pool; ending it waits for transfers that use it.
class Allocation {
 public:
  Allocation(ho_pool* pool, std::uint64_t bytes, ho_nearness which = HO_ALL_NODES) : pool_(pool) {
    check(ho_allocate_among(pool, which, bytes, &handle_));
  }
  /// Memory of the node that has `flash`, so that bytes can be staged between them.
  Allocation(ho_pool* pool, const Flash& flash, std::uint64_t bytes) : pool_(pool) {
    check(ho_allocate_beside(pool, flash.get(), bytes, &handle_));
  }
  Allocation(Allocation&& other) noexcept
      : pool_(other.pool_), handle_(std::exchange(other.handle_, nullptr)) {}
  Allocation& operator=(Allocation&& other) noexcept {
    if (this != &other) {
      ho_free(pool_, handle_);
      pool_ = other.pool_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Allocation() { ho_free(pool_, handle_); }
  ho_allocation* get() const noexcept { return handle_; }

 private:
  ho_pool* pool_;
  ho_allocation* handle_ = nullptr;
};

/// A connection to a pool. Destroy the allocations, runtimes, block stores, publishers and
/// subscribers made from it first; if one is left, the pool is never closed.
class Pool {
 public:
  struct Options {
    std::string pool;                  ///< addresses, comma-separated
    std::string name;                  ///< the job, for people
    std::string transport = "auto";    ///< as ho_connect_options::transport
    std::uint32_t op_deadline_ms = 0;  ///< 0: the library's default
    std::string ucx_module = {};       ///< empty: the one installed with the library
    std::string ofi_provider = {};     ///< these three: empty: what fits the daemon
    std::string ofi_domain = {};
    std::string ofi_interface = {};
    bool ofi_allow_emulation = false;
    std::uint32_t connections = 0;    ///< for tcp and ofi; 0: the library's default
    std::string tcp_interface = {};   ///< empty: any
    std::string ucx_devices = {};     ///< empty: all that are up
    std::string ucx_transports = {};  ///< empty: "rc"
    bool ucx_allow_emulation = false;
    std::uint32_t local_threads = 0;     ///< 0: by the cores there are
    std::string local_numa = "auto";     ///< as ho_connect_options::local_numa
    std::uint64_t link_bytes_per_s = 0;  ///< each way; 0: no limit
    std::string tls = {};                ///< as ho_connect_options::tls
    std::uint32_t repair_after_ms = 0;   ///< as ho_connect_options::repair_after_ms
    std::uint64_t wait_ms = 0;           ///< as ho_connect_options::wait_ms
  };

  explicit Pool(const Options& options) {
    ho_connect_options given{};
    given.struct_bytes = sizeof(given);
    given.pool = options.pool.c_str();
    given.name = options.name.c_str();
    given.transport = options.transport.c_str();
    given.op_deadline_ms = options.op_deadline_ms;
    given.ucx_module = options.ucx_module.c_str();
    given.ofi_provider = options.ofi_provider.c_str();
    given.ofi_domain = options.ofi_domain.c_str();
    given.ofi_interface = options.ofi_interface.c_str();
    given.ofi_allow_emulation = options.ofi_allow_emulation ? 1 : 0;
    given.connections = options.connections;
    given.tcp_interface = options.tcp_interface.c_str();
    given.ucx_devices = options.ucx_devices.c_str();
    given.ucx_transports = options.ucx_transports.c_str();
    given.ucx_allow_emulation = options.ucx_allow_emulation ? 1 : 0;
    given.local_threads = options.local_threads;
    given.local_numa = options.local_numa.c_str();
    given.link_bytes_per_s = options.link_bytes_per_s;
    given.repair_after_ms = options.repair_after_ms;
    given.tls = options.tls.c_str();
    given.wait_ms = options.wait_ms;
    check(ho_connect(&given, &handle_));
  }
  Pool(Pool&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Pool& operator=(Pool&& other) noexcept {
    if (this != &other) {
      ho_disconnect(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Pool() { ho_disconnect(handle_); }

  ho_pool* get() const noexcept { return handle_; }
  std::string transport() const { return ho_pool_transport(handle_); }
  /// What daemons have told: nodes that the job should leave.
  ho_pool_notice notice() const {
    ho_pool_notice out{};
    out.struct_bytes = sizeof(out);
    check(ho_pool_get_notice(handle_, &out));
    return out;
  }
  /// What nodes can give to jobs now.
  ho_pool_room room(ho_nearness which = HO_ALL_NODES) const {
    ho_pool_room out{};
    out.struct_bytes = sizeof(out);
    check(ho_pool_get_room(handle_, which, &out));
    return out;
  }
  Allocation allocate(std::uint64_t bytes, ho_nearness which = HO_ALL_NODES) {
    return Allocation(handle_, bytes, which);
  }
  Allocation allocate_beside(const Flash& flash, std::uint64_t bytes) {
    return Allocation(handle_, flash, bytes);
  }
  Flash allocate_flash(std::uint64_t bytes, ho_flash_policy policy) {
    return Flash(handle_, bytes, policy);
  }
  Flash open_flash(const std::string& name) { return Flash(handle_, name); }
  void register_memory(void* base, std::size_t bytes) { check(ho_register(handle_, base, bytes)); }
  void unregister_memory(void* base) { check(ho_unregister(handle_, base)); }

  /// Starts a transfer. @return its ticket, to be waited for once.
  std::uint64_t get(const Allocation& from, std::uint64_t offset, void* into, std::size_t bytes) {
    std::uint64_t ticket = 0;
    check(ho_get(handle_, from.get(), offset, into, bytes, &ticket));
    return ticket;
  }
  std::uint64_t put(const Allocation& to, std::uint64_t offset, const void* from,
                    std::size_t bytes) {
    std::uint64_t ticket = 0;
    check(ho_put(handle_, to.get(), offset, from, bytes, &ticket));
    return ticket;
  }
  std::uint64_t stage_in(const Flash& from, std::uint64_t flash_offset, const Allocation& into,
                         std::uint64_t offset, std::size_t bytes) {
    std::uint64_t ticket = 0;
    check(ho_stage_in(handle_, from.get(), flash_offset, into.get(), offset, bytes, &ticket));
    return ticket;
  }
  std::uint64_t stage_out(const Flash& to, std::uint64_t flash_offset, const Allocation& from,
                          std::uint64_t offset, std::size_t bytes) {
    std::uint64_t ticket = 0;
    check(ho_stage_out(handle_, to.get(), flash_offset, from.get(), offset, bytes, &ticket));
    return ticket;
  }
  void wait(std::uint64_t ticket) { check(ho_wait(handle_, ticket)); }
  bool test(std::uint64_t ticket) {
    int done = 0;
    check(ho_test(handle_, ticket, &done));
    return done != 0;
  }

 private:
  ho_pool* handle_ = nullptr;
};

/// What a schedule needs, before there is anything to load it for.
inline ho_schedule_needs schedule_needs(const void* schedule, std::size_t schedule_bytes) {
  ho_schedule_needs needs{};
  needs.struct_bytes = sizeof(needs);
  check(ho_schedule_info(schedule, schedule_bytes, &needs));
  return needs;
}

/// Device memory, and the storages whose values come and go there. It must not outlive its Pool;
/// its Plans end before it does.
class Runtime {
 public:
  /// A CUDA device, whose kernels the job queues on `stream`.
  struct CudaDevice {
    std::uint32_t ordinal = 0;
    void* stream = nullptr;    ///< a CUstream or cudaStream_t; null: the legacy default stream
    std::string library = {};  ///< of the driver; empty: the usual one
  };
  /// With an arena, which stays until the runtime's end. With a device, memory of it.
  Runtime(Pool& pool, void* arena, std::size_t arena_bytes,
          const std::optional<CudaDevice>& device = std::nullopt) {
    ho_device_memory memory{};
    memory.arena = arena;
    memory.arena_bytes = arena_bytes;
    open(pool, memory, device);
  }
  /// With memory that the job places itself; see ho_device_memory.
  Runtime(Pool& pool, void* (*take)(void* context, ho_storage storage, std::uint64_t bytes),
          void (*drop)(void* context, ho_storage storage, void* memory), void* context,
          std::uint32_t copies = 1, const std::optional<CudaDevice>& device = std::nullopt) {
    ho_device_memory memory{};
    memory.take = take;
    memory.drop = drop;
    memory.context = context;
    memory.copies = copies;
    open(pool, memory, device);
  }
  Runtime(Runtime&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Runtime& operator=(Runtime&& other) noexcept {
    if (this != &other) {
      ho_close(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Runtime() { ho_close(handle_); }

  ho_runtime* get() const noexcept { return handle_; }
  /// Brings the latest value of every persistent storage home; the run goes on afterwards.
  void sync() { check(ho_sync(handle_)); }

  ho_storage find(const std::string& name) const {
    ho_storage storage = 0;
    check(ho_find_storage(handle_, name.c_str(), &storage));
    return storage;
  }
  ho_storage declare(const std::string& name, std::uint64_t bytes) {
    ho_storage storage = 0;
    check(ho_declare(handle_, name.c_str(), bytes, &storage));
    return storage;
  }
  void undeclare(ho_storage storage) { check(ho_undeclare(handle_, storage)); }
  void adopt(ho_storage storage, void* memory) { check(ho_adopt(handle_, storage, memory)); }
  void forget(ho_storage storage) { check(ho_forget(handle_, storage)); }
  void* fetch(ho_storage storage) {
    void* memory = nullptr;
    check(ho_fetch(handle_, storage, &memory));
    return memory;
  }
  void peek(ho_storage storage, void* into, std::size_t bytes) {
    check(ho_peek(handle_, storage, into, bytes));
  }
  void evict(ho_storage storage) { check(ho_evict(handle_, storage)); }
  ho_storage_state state(ho_storage storage) {
    ho_storage_state state{};
    state.struct_bytes = sizeof(state);
    check(ho_get_storage(handle_, storage, &state));
    return state;
  }
  ho_runtime_counters counters() const {
    ho_runtime_counters counters{};
    counters.struct_bytes = sizeof(counters);
    check(ho_get_runtime_counters(handle_, &counters));
    return counters;
  }

 private:
  void open(Pool& pool, ho_device_memory& memory, const std::optional<CudaDevice>& device) {
    memory.struct_bytes = sizeof(memory);
    if (device) {
      memory.kind = HO_DEVICE_CUDA;
      memory.ordinal = device->ordinal;
      memory.stream = device->stream;
      memory.cuda_library = device->library.c_str();
    }
    check(ho_open(pool.get(), &memory, &handle_));
  }

  ho_runtime* handle_ = nullptr;
};

/// A schedule loaded for a runtime, which it must not outlive. The order of calls is that of
/// hyperoffload.h.
class Plan {
 public:
  Plan(Runtime& runtime, const void* schedule, std::size_t schedule_bytes) {
    check(ho_load(runtime.get(), schedule, schedule_bytes, &handle_));
  }
  Plan(Plan&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Plan& operator=(Plan&& other) noexcept {
    if (this != &other) {
      ho_unload(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Plan() { ho_unload(handle_); }

  ho_plan* get() const noexcept { return handle_; }
  void write(std::uint32_t storage, const void* data, std::size_t bytes) {
    check(ho_write(handle_, storage, data, bytes));
  }
  void read(std::uint32_t storage, void* into, std::size_t bytes) {
    check(ho_read(handle_, storage, into, bytes));
  }
  void write_range(std::uint32_t storage, std::uint64_t offset, const void* data,
                   std::size_t bytes) {
    check(ho_write_range(handle_, storage, offset, data, bytes));
  }
  void read_range(std::uint32_t storage, std::uint64_t offset, void* into, std::size_t bytes) {
    check(ho_read_range(handle_, storage, offset, into, bytes));
  }
  void step_begin() { check(ho_step_begin(handle_)); }
  void before(std::uint32_t position) { check(ho_before(handle_, position)); }
  void* operand(std::uint32_t position, std::uint32_t storage) const {
    return ho_operand(handle_, position, storage);
  }
  void after(std::uint32_t position) { check(ho_after(handle_, position)); }
  void step_end() { check(ho_step_end(handle_)); }
  void leave() { check(ho_leave(handle_)); }
  /// The number of a storage in the runtime.
  ho_storage storage(std::uint32_t storage_id) const {
    ho_storage number = 0;
    check(ho_storage_of(handle_, storage_id, &number));
    return number;
  }

  std::uint32_t position_count() const { return ho_position_count(handle_); }
  std::uint32_t position_op(std::uint32_t position) const {
    return ho_position_op(handle_, position);
  }
  std::string position_name(std::uint32_t position) const {
    return ho_position_name(handle_, position);
  }
  std::uint32_t cache_op_count() const { return ho_cache_op_count(handle_); }
  /// The plan's storages, by rising id. Their names live as long as the plan.
  std::vector<ho_storage_info> storages() const {
    std::vector<ho_storage_info> storages(ho_storage_count(handle_));
    for (std::uint32_t i = 0; i < storages.size(); ++i) {
      storages[i].struct_bytes = sizeof(storages[i]);
      check(ho_get_storage_info(handle_, i, &storages[i]));
    }
    return storages;
  }
  ho_counters counters() const {
    ho_counters counters{};
    counters.struct_bytes = sizeof(counters);
    check(ho_get_counters(handle_, &counters));
    return counters;
  }

  struct Timeline {
    std::vector<ho_span> ops;
    std::vector<ho_span> cache_ops;
  };
  Timeline timeline() const {
    Timeline timeline;
    timeline.ops.resize(position_count());
    timeline.cache_ops.resize(cache_op_count());
    check(ho_get_timeline(handle_, timeline.ops.data(), timeline.cache_ops.data()));
    return timeline;
  }
  /// For `hyperoffload analyze --op-times`; see ho_write_op_times().
  void write_op_times(const std::string& path) const {
    check(ho_write_op_times(handle_, path.c_str()));
  }

 private:
  ho_plan* handle_ = nullptr;
};

}  // namespace hyperoffload
#endif  // HYPEROFFLOAD_HYPEROFFLOAD_HPP_
