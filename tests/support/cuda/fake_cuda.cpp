// A stand-in for NVIDIA's driver on the processor: the part of its ABI that the library and the
// tests use. Streams are threads that take their time; device memory is a file whose address range
// nobody may touch. It keeps a list of uses that a real device would not order, or that would use
// memory which is not there. Vector clocks find races between streams, also those that do not
// happen. Length: one ABI, one file; it is a shared library of its own.
#include "tests/support/cuda/fake_cuda.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kNoMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kNotReady = 600;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kDevices = 1;
constexpr std::size_t kDeviceBytes = std::size_t{512} << 20U;
constexpr std::size_t kAlign = 256;

/// Per stream: operations known to have ended, or to end before.
using Clock = std::map<int, std::uint64_t>;

void join(Clock& into, const Clock& other) {
  for (const auto& [stream, count] : other) into[stream] = std::max(into[stream], count);
}

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  [[nodiscard]] bool overlaps(const Range& other) const {
    return begin < other.end && other.begin < end;
  }
  [[nodiscard]] bool holds(const Range& other) const {
    return begin <= other.begin && other.end <= end;
  }
};

struct Access {
  Range range;
  bool writes = false;
  int stream = 0;
  std::uint64_t count = 0;  ///< its operation's, in the stream
  std::string what;
};

struct Done {
  bool done = false;
};

struct Operation {
  enum class Kind { kCopyIn, kCopyOut, kMark, kWait } kind = Kind::kMark;
  std::uint64_t count = 0;
  std::uintptr_t device = 0;
  void* host = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<Done> flag;        ///< set by a mark or a kernel, awaited by a wait
  std::shared_ptr<std::byte[]> own;  ///< a kernel's bytes; null for a copy
};

struct FakeStream {
  int number = 0;
  Clock clock;
  std::deque<Operation> queue;
  std::uint64_t ended = 0;
  std::uint64_t waited_bytes_max = 0;  ///< the most that one copy let pass
  bool busy = false;
  bool ending = false;
  std::thread thread;
};

/// Copies of one direction run one after the other, whatever their streams, in the order in which
/// they reach the head of these.
struct CopyEngine {
  std::uint64_t asked = 0;
  std::uint64_t served = 0;
  std::uint64_t bytes = 0;  ///< that copies have moved
};

struct FakeEvent {
  bool recorded = false;
  std::shared_ptr<Done> flag;
  int stream = 0;
  Clock clock;  ///< all that it stands for
};

thread_local void* current_context = nullptr;
thread_local std::vector<void*> pushed_contexts;

class Driver {
 public:
  static Driver& get() {
    static Driver* const driver = new Driver;  // never ended: streams may outlive main()
    return *driver;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> violations;
  std::string told;
  bool ready = false;
  int retained = 0;
  int failure = 0;
  bool paused = false;
  std::uint32_t delay_us_max = 0;
  std::mt19937_64 random{1};
  std::map<std::uintptr_t, std::size_t> allocations;
  std::map<std::uintptr_t, std::size_t> registered;
  std::map<void*, std::unique_ptr<FakeStream>> streams;
  std::set<FakeEvent*> events;
  std::vector<Access> accesses;  ///< all whose end the host does not know
  Clock host;                    ///< what it does know
  std::uint64_t orphaned = 0;
  std::uint64_t cut = 0;
  CopyEngine engines[2];
  int next_stream = 1;
  int memory = -1;
  int scratch = -1;
  std::uintptr_t base = 0;

  void violate(const std::string& what) {
    if (violations.size() < 20) violations.push_back(what);
  }

  [[nodiscard]] FakeStream* find(void* handle) {
    if (handle == nullptr && streams.count(nullptr) == 0) add(StreamName::kLegacy);
    const auto at = streams.find(handle);
    return at == streams.end() ? nullptr : at->second.get();
  }

  enum class StreamName { kLegacy, kOwn };
  FakeStream* add(StreamName name) {
    auto made = std::make_unique<FakeStream>();
    FakeStream* const stream = made.get();
    stream->number = next_stream++;
    streams[name == StreamName::kOwn ? stream : nullptr] = std::move(made);
    stream->thread = std::thread([this, stream] { run(*stream); });
    return stream;
  }

  /// With the mutex held: the checks that every call of a context makes.
  [[nodiscard]] int enter(const char* call) {
    if (current_context == nullptr) {
      violate(std::string(call) + " on a thread without a context");
      return kInvalidContext;
    }
    return failure;
  }

  /// With the mutex held: queues an operation and its accesses.
  void queue(FakeStream& stream, Operation operation, const std::vector<Access>& touched) {
    join(stream.clock, host);
    operation.count = ++stream.clock[stream.number];
    std::erase_if(accesses, [&](const Access& old) {
      // An operation after an access is after all earlier ones of its stream: one that reaches as
      // far stands for them.
      const bool covered = std::ranges::any_of(touched, [&](const Access& access) {
        return old.stream == stream.number && access.range.holds(old.range) &&
               (access.writes || !old.writes);
      });
      return covered || old.count <= host[old.stream];
    });
    for (Access access : touched) {
      access.stream = stream.number;
      access.count = operation.count;
      for (const Access& old : accesses) {
        const bool conflict = (old.writes || access.writes) && old.range.overlaps(access.range);
        if (!conflict || old.stream == stream.number) continue;
        if (old.count <= stream.clock[old.stream]) continue;
        violate(access.what + " is not ordered after " + old.what + " of another stream");
      }
      accesses.push_back(std::move(access));
    }
    stream.queue.push_back(std::move(operation));
    changed.notify_all();
  }

  /// With the mutex held: whether copies may use this host memory.
  [[nodiscard]] bool is_registered(const void* host_memory, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(host_memory);
    auto at = registered.upper_bound(begin);
    if (at == registered.begin()) return false;
    --at;
    return begin + bytes <= at->first + at->second;
  }

  [[nodiscard]] bool is_device(std::uintptr_t begin, std::size_t bytes) const {
    auto at = allocations.upper_bound(begin);
    if (at == allocations.begin()) return false;
    --at;
    return begin + bytes <= at->first + at->second;
  }

  /// With the mutex held: whether an operation that has not ended touches the range.
  [[nodiscard]] bool in_use(const Range& range) {
    for (const auto& [handle, stream] : streams) {
      for (const Access& access : accesses) {
        if (access.stream == stream->number && access.count > stream->ended &&
            access.range.overlaps(range)) {
          return true;
        }
      }
    }
    return false;
  }

  /// Whether host memory is there to its end: a file that it maps may have been cut short.
  [[nodiscard]] bool is_there(const void* host_memory, std::size_t bytes) const {
    const auto* const last = static_cast<const std::byte*>(host_memory) + bytes - 1;
    return ::pwrite(scratch, host_memory, 1, 0) == 1 && ::pwrite(scratch, last, 1, 0) == 1;
  }

  /// Queues a kernel. A write takes the bytes at `bytes_of`; a read leaves them there, and is
  /// waited for.
  int kernel(Operation::Kind kind, std::uintptr_t device, void* bytes_of, std::size_t bytes,
             void* handle) {
    std::unique_lock lock(mutex);
    if (const int code = enter("a kernel"); code != kSuccess) return code;
    FakeStream* const stream = find(handle);
    if (stream == nullptr || bytes == 0) return kInvalidValue;
    if (!is_device(device, bytes)) {
      violate("a kernel uses bytes that are not allocated on the device");
      return kInvalidValue;
    }
    const bool writes = kind == Operation::Kind::kCopyIn;
    const std::shared_ptr<std::byte[]> own(new std::byte[bytes]);
    const auto done = std::make_shared<Done>();
    if (writes) std::memcpy(own.get(), bytes_of, bytes);
    Operation operation;
    operation.kind = kind;
    operation.device = device;
    operation.host = own.get();
    operation.bytes = bytes;
    operation.flag = done;
    operation.own = own;
    queue(*stream, std::move(operation), {{{device, device + bytes}, writes, 0, 0, "a kernel"}});
    if (!writes) {
      changed.wait(lock, [&] { return done->done; });
      std::memcpy(bytes_of, own.get(), bytes);
    }
    return kSuccess;
  }

  int copy(Operation::Kind kind, std::uintptr_t device, void* host_memory, std::size_t bytes,
           void* handle, const char* call) {
    const std::lock_guard guard(mutex);
    if (const int code = enter(call); code != kSuccess) return code;
    FakeStream* const stream = find(handle);
    if (stream == nullptr || bytes == 0) return kInvalidValue;
    if (!is_device(device, bytes)) {
      violate(std::string(call) + " of bytes that are not allocated on the device");
      return kInvalidValue;
    }
    if (!is_registered(host_memory, bytes)) {
      violate(std::string(call) + " with host memory that is not registered");
      return kInvalidValue;
    }
    const bool in = kind == Operation::Kind::kCopyIn;
    const auto begin = reinterpret_cast<std::uintptr_t>(host_memory);
    Operation operation;
    operation.kind = kind;
    operation.device = device;
    operation.host = host_memory;
    operation.bytes = bytes;
    queue(*stream, std::move(operation),
          {{{device, device + bytes}, in, 0, 0, std::string(call) + " on the device's side"},
           {{begin, begin + bytes}, !in, 0, 0, std::string(call) + " on the host's side"}});
    return kSuccess;
  }

 private:
  Driver() {
    memory = ::memfd_create("fake device", 0);
    scratch = ::memfd_create("fake scratch", 0);
    if (memory < 0 || scratch < 0 || ::ftruncate(memory, kDeviceBytes) != 0) std::abort();
    void* const at = ::mmap(nullptr, kDeviceBytes, PROT_NONE, MAP_SHARED, memory, 0);
    if (at == MAP_FAILED) std::abort();
    base = reinterpret_cast<std::uintptr_t>(at);
  }

  void run(FakeStream& stream) {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stream.ending || (!stream.queue.empty() && !paused); });
      if (stream.queue.empty()) return;
      const Operation operation = stream.queue.front();
      stream.queue.pop_front();
      stream.busy = true;
      const std::uint64_t delay = delay_us_max == 0 ? 0 : random() % (delay_us_max + 1);
      lock.unlock();
      if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
      lock.lock();
      perform(stream, operation, lock);
      stream.ended = operation.count;
      stream.busy = false;
      changed.notify_all();
    }
  }

  /// Files are read and written by calls that fail where the host's bytes are gone, as those of a
  /// file that was cut short are.
  void perform(FakeStream& stream, const Operation& operation, std::unique_lock<std::mutex>& lock) {
    switch (operation.kind) {
      case Operation::Kind::kMark: operation.flag->done = true; return;
      case Operation::Kind::kWait: changed.wait(lock, [&] { return operation.flag->done; }); return;
      case Operation::Kind::kCopyIn:
      case Operation::Kind::kCopyOut: break;
    }
    if (operation.own == nullptr && !is_registered(operation.host, operation.bytes)) {
      violate("a copy ran with host memory that was no longer registered");
      return;
    }
    const auto offset = static_cast<off_t>(operation.device - base);
    const bool in = operation.kind == Operation::Kind::kCopyIn;
    CopyEngine* const engine = operation.own == nullptr ? &engines[in ? 0 : 1] : nullptr;
    if (engine != nullptr) {
      const std::uint64_t turn = engine->asked++;
      const std::uint64_t before = engine->bytes;
      changed.wait(lock, [&] { return engine->served == turn; });
      stream.waited_bytes_max = std::max(stream.waited_bytes_max, engine->bytes - before);
    }
    lock.unlock();
    std::size_t moved = 0;
    while (moved < operation.bytes) {
      auto* const at = static_cast<std::byte*>(operation.host) + moved;
      const off_t where = offset + static_cast<off_t>(moved);
      const ssize_t part = in ? ::pwrite(memory, at, operation.bytes - moved, where)
                              : ::pread(memory, at, operation.bytes - moved, where);
      if (part <= 0) break;
      moved += static_cast<std::size_t>(part);
    }
    lock.lock();
    if (moved < operation.bytes) orphaned += 1;
    if (engine != nullptr) {
      engine->served += 1;
      engine->bytes += operation.bytes;
    }
    if (operation.flag != nullptr) operation.flag->done = true;
  }
};

/// With the mutex held: the host knows that all of a clock has ended.
void learn(Driver& driver, const Clock& clock) { join(driver.host, clock); }

}  // namespace

FAKE_API void fake_cuda_reset(std::uint64_t seed, std::uint32_t delay_us_max) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  driver.violations.clear();
  driver.random.seed(seed);
  driver.delay_us_max = delay_us_max;
  driver.failure = 0;
  driver.paused = false;
  driver.orphaned = 0;
  driver.cut = 0;
}

FAKE_API const char* fake_cuda_violations() {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  driver.told.clear();
  for (const std::string& one : driver.violations) driver.told += one + "\n";
  return driver.told.c_str();
}

FAKE_API std::size_t fake_cuda_registered() {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  return driver.registered.size();
}

FAKE_API int fake_cuda_retained() {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  return driver.retained;
}

FAKE_API std::uint64_t fake_cuda_orphaned() {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  return driver.orphaned;
}

FAKE_API std::uint64_t fake_cuda_cut() {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  return driver.cut;
}

FAKE_API std::uint64_t fake_cuda_waited_bytes(void* handle) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  const FakeStream* const stream = driver.find(handle);
  return stream == nullptr ? 0 : stream->waited_bytes_max;
}

FAKE_API void fake_cuda_fail(int result) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  driver.failure = result;
}

FAKE_API void fake_cuda_pause(int paused) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  driver.paused = paused != 0;
  driver.changed.notify_all();
}

FAKE_API int fake_cuda_kernel_reads(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return Driver::get().kernel(Operation::Kind::kCopyOut, from, to, bytes, stream);
}

FAKE_API int fake_cuda_kernel_writes(std::uint64_t to, const void* from, std::size_t bytes,
                                     void* stream) {
  return Driver::get().kernel(Operation::Kind::kCopyIn, to, const_cast<void*>(from), bytes, stream);
}

FAKE_API int cuInit(unsigned /*flags*/) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  driver.ready = true;
  return kSuccess;
}

FAKE_API int cuGetErrorName(int error, const char** text) {
  *text = error == kSuccess ? "CUDA_SUCCESS" : "CUDA_ERROR_OF_THE_STAND_IN";
  return kSuccess;
}

FAKE_API int cuGetErrorString(int error, const char** text) {
  *text = error == kSuccess ? "no error" : "a failure that the test asked for, or misuse";
  return kSuccess;
}

FAKE_API int cuDeviceGetCount(int* count) {
  *count = kDevices;
  return kSuccess;
}

FAKE_API int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

FAKE_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (device != 0) return kInvalidDevice;
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  driver.retained += 1;
  *context = &driver;
  return kSuccess;
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int /*device*/) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (driver.retained == 0) {
    driver.violate("a context is released that was not retained");
    return kInvalidContext;
  }
  driver.retained -= 1;
  return kSuccess;
}

FAKE_API int cuCtxSetCurrent(void* context) {
  current_context = context;
  return kSuccess;
}

FAKE_API int cuCtxGetCurrent(void** context) {
  *context = current_context;
  return kSuccess;
}

FAKE_API int cuCtxPushCurrent_v2(void* context) {
  pushed_contexts.push_back(current_context);
  current_context = context;
  return kSuccess;
}

FAKE_API int cuCtxPopCurrent_v2(void** context) {
  if (pushed_contexts.empty()) return kInvalidContext;
  *context = current_context;
  current_context = pushed_contexts.back();
  pushed_contexts.pop_back();
  return kSuccess;
}

FAKE_API int cuMemAlloc_v2(std::uint64_t* device, std::size_t bytes) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuMemAlloc"); code != kSuccess) return code;
  bytes = (bytes + kAlign - 1) / kAlign * kAlign;
  std::uintptr_t at = driver.base;
  for (const auto& [begin, length] : driver.allocations) {
    if (begin - at >= bytes) break;
    at = begin + length;
  }
  if (bytes == 0 || driver.base + kDeviceBytes - at < bytes) return kNoMemory;
  driver.allocations[at] = bytes;
  *device = at;
  return kSuccess;
}

FAKE_API int cuMemFree_v2(std::uint64_t device) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuMemFree"); code != kSuccess) return code;
  const auto at = driver.allocations.find(device);
  if (at == driver.allocations.end()) return kInvalidValue;
  if (driver.in_use({at->first, at->first + at->second})) {
    driver.violate("device memory is freed while a copy uses it");
  }
  driver.allocations.erase(at);
  return kSuccess;
}

FAKE_API int cuMemHostRegister_v2(void* base, std::size_t bytes, unsigned /*flags*/) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuMemHostRegister"); code != kSuccess) return code;
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  for (const auto& [other, length] : driver.registered) {
    if (other < begin + bytes && begin < other + length) return kAlreadyRegistered;
  }
  driver.registered[begin] = bytes;
  return kSuccess;
}

FAKE_API int cuMemHostUnregister(void* base) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuMemHostUnregister"); code != kSuccess) return code;
  const auto at = driver.registered.find(reinterpret_cast<std::uintptr_t>(base));
  if (at == driver.registered.end()) return kNotRegistered;
  if (driver.in_use({at->first, at->first + at->second})) {
    driver.violate("host memory is unregistered while a copy uses it");
  }
  if (!driver.is_there(base, at->second)) driver.cut += 1;
  driver.registered.erase(at);
  return kSuccess;
}

FAKE_API int cuPointerGetAttribute(void* value, int attribute, std::uint64_t pointer) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuPointerGetAttribute"); code != kSuccess) return code;
  if (!driver.is_device(pointer, 1)) return kInvalidValue;
  // Memory type 2 is the device's; attribute 9 is the device's ordinal.
  *static_cast<unsigned*>(value) = attribute == 2 ? 2U : 0U;
  return attribute == 2 || attribute == 9 ? kSuccess : kInvalidValue;
}

FAKE_API int cuStreamCreateWithPriority(void** stream, unsigned /*flags*/, int /*priority*/) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuStreamCreate"); code != kSuccess) return code;
  *stream = driver.add(Driver::StreamName::kOwn);
  return kSuccess;
}

FAKE_API int cuStreamCreate(void** stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

FAKE_API int cuStreamDestroy_v2(void* stream) {
  Driver& driver = Driver::get();
  std::unique_lock lock(driver.mutex);
  const auto at = driver.streams.find(stream);
  if (at == driver.streams.end()) return kInvalidValue;
  at->second->ending = true;
  driver.changed.notify_all();
  // The queue still runs to its end, as a real stream's does.
  std::thread thread = std::move(at->second->thread);
  lock.unlock();
  thread.join();
  lock.lock();
  learn(driver, at->second->clock);
  driver.streams.erase(at);
  return kSuccess;
}

FAKE_API int cuStreamSynchronize(void* handle) {
  Driver& driver = Driver::get();
  std::unique_lock lock(driver.mutex);
  if (const int code = driver.enter("cuStreamSynchronize"); code != kSuccess) return code;
  FakeStream* const stream = driver.find(handle);
  if (stream == nullptr) return kInvalidValue;
  driver.changed.wait(lock, [&] { return stream->queue.empty() && !stream->busy; });
  learn(driver, stream->clock);
  return kSuccess;
}

FAKE_API int cuEventCreate(void** event, unsigned /*flags*/) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuEventCreate"); code != kSuccess) return code;
  auto* const made = new FakeEvent;
  driver.events.insert(made);
  *event = made;
  return kSuccess;
}

FAKE_API int cuEventDestroy_v2(void* event) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  auto* const known = static_cast<FakeEvent*>(event);
  if (driver.events.erase(known) == 0) {
    driver.violate("an event is destroyed that is none");
    return kInvalidValue;
  }
  delete known;
  return kSuccess;
}

FAKE_API int cuEventRecord(void* event, void* handle) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuEventRecord"); code != kSuccess) return code;
  FakeStream* const stream = driver.find(handle);
  auto* const known = static_cast<FakeEvent*>(event);
  if (stream == nullptr || driver.events.count(known) == 0) return kInvalidValue;
  Operation mark;
  mark.kind = Operation::Kind::kMark;
  mark.flag = std::make_shared<Done>();
  known->flag = mark.flag;
  known->recorded = true;
  known->stream = stream->number;
  driver.queue(*stream, std::move(mark), {});
  known->clock = stream->clock;
  return kSuccess;
}

FAKE_API int cuStreamWaitEvent(void* handle, void* event, unsigned /*flags*/) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuStreamWaitEvent"); code != kSuccess) return code;
  FakeStream* const stream = driver.find(handle);
  auto* const known = static_cast<FakeEvent*>(event);
  if (stream == nullptr || driver.events.count(known) == 0) return kInvalidValue;
  if (!known->recorded) {
    driver.violate("a stream waits for an event that was not recorded: it would not wait");
    return kSuccess;
  }
  Operation wait;
  wait.kind = Operation::Kind::kWait;
  wait.flag = known->flag;
  join(stream->clock, known->clock);
  driver.queue(*stream, std::move(wait), {});
  return kSuccess;
}

FAKE_API int cuEventQuery(void* event) {
  Driver& driver = Driver::get();
  const std::lock_guard guard(driver.mutex);
  if (const int code = driver.enter("cuEventQuery"); code != kSuccess) return code;
  auto* const known = static_cast<FakeEvent*>(event);
  if (driver.events.count(known) == 0) return kInvalidValue;
  if (!known->recorded) {
    driver.violate("an event is asked for that was not recorded");
    return kSuccess;
  }
  if (!known->flag->done) return kNotReady;
  learn(driver, known->clock);
  return kSuccess;
}

FAKE_API int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes,
                                  void* stream) {
  return Driver::get().copy(Operation::Kind::kCopyIn, to, const_cast<void*>(from), bytes, stream,
                            "cuMemcpyHtoDAsync");
}

FAKE_API int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return Driver::get().copy(Operation::Kind::kCopyOut, from, to, bytes, stream,
                            "cuMemcpyDtoHAsync");
}
