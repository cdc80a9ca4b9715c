#include "client/accel/cuda/cuda_accel.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "client/accel/cuda/cuda_abi.hpp"
#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

using cuda::Functions;
using cuda::kSuccess;

constexpr const char* kDriver = "libcuda.so.1";

Error driver_error(const Functions& driver, cuda::Result result, const char* call) {
  const char* name = nullptr;
  const char* text = nullptr;
  const bool known = driver.error_name(result, &name) == kSuccess &&
                     driver.error_string(result, &text) == kSuccess && name != nullptr &&
                     text != nullptr;
  Errc code = Errc::kIo;
  if (result == cuda::kOutOfMemory) code = Errc::kExhausted;
  if (result == cuda::kInvalidValue) code = Errc::kInvalidArgument;
  if (result == cuda::kAlreadyRegistered) code = Errc::kAlreadyExists;
  return Error(code, std::string(call) + ": " +
                         (known ? std::string(name) + " (" + text + ")"
                                : "error " + std::to_string(result)));
}

Result<Functions> open_driver(const std::string& library) {
  const char* const name = library.empty() ? kDriver : library.c_str();
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    // glibc keeps the text for each thread. NOLINTNEXTLINE(concurrency-mt-unsafe)
    const std::string why = ::dlerror();
    return Error(Errc::kUnsupported,
                 "no CUDA driver: " + why +
                     "; install NVIDIA's driver, and in a container start it with the GPUs "
                     "(--gpus all), or use host memory");
  }
  Functions driver{};
  for (const cuda::Symbol& symbol : cuda::kSymbols) {
    void* const function = ::dlsym(handle, symbol.name);
    if (function == nullptr) {
      return Error(Errc::kUnsupported, std::string(name) + " has no " + symbol.name +
                                           ": a driver of CUDA 11.7 or later is needed");
    }
    std::memcpy(reinterpret_cast<std::byte*>(&driver) + symbol.offset_bytes, &function,
                sizeof(function));
  }
  return driver;
}

class CudaAccel final : public Accel {
 public:
  explicit CudaAccel(const Functions& driver) : driver_(driver) {}
  ~CudaAccel() override;

  [[nodiscard]] Result<void> start(const DeviceOptions& options);
  [[nodiscard]] Result<void> enter() override;
  [[nodiscard]] Result<void> check_device_memory(std::span<const std::byte> memory) override;
  [[nodiscard]] Result<AccelEvent> make_event() override;
  [[nodiscard]] Result<void> record(AccelEvent event, Lane lane) override;
  [[nodiscard]] Result<void> wait(Lane lane, AccelEvent event) override;
  [[nodiscard]] Result<bool> happened(AccelEvent event) override;
  [[nodiscard]] Result<void> copy(const AccelCopy& copy) override;
  [[nodiscard]] Result<void> pin(std::span<std::byte> host) override;
  void unpin(std::span<std::byte> host) override;

 private:
  /// The device's context on the calling thread while it lives. The job's threads have whatever
  /// context the job gave them, and keep it.
  class Entered {
   public:
    explicit Entered(const CudaAccel& accel) : driver_(accel.driver_) {
      cuda::Context current = nullptr;
      if (driver_.context_get(&current) == kSuccess && current == accel.context_) return;
      pushed_ = driver_.context_push(accel.context_) == kSuccess;
    }
    ~Entered() {
      cuda::Context popped = nullptr;
      if (pushed_) driver_.context_pop(&popped);
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    const Functions& driver_;
    bool pushed_ = false;
  };

  [[nodiscard]] Result<void> outcome(cuda::Result result, const char* call) const {
    if (result == kSuccess) return {};
    return driver_error(driver_, result, call);
  }
  [[nodiscard]] cuda::Event event(AccelEvent event) const {
    HO_CHECK(event.value() < events_.size());
    return events_[event.value()];
  }
  [[nodiscard]] cuda::Stream stream(Lane lane) const {
    return streams_[static_cast<std::size_t>(lane)];
  }

  const Functions driver_;
  cuda::Device device_ = 0;
  int ordinal_ = 0;
  bool retained_ = false;
  cuda::Context context_ = nullptr;
  cuda::Stream streams_[kLanes] = {};
  std::vector<cuda::Event> events_;
};

Result<void> CudaAccel::start(const DeviceOptions& options) {
  const cuda::Result begun = driver_.init(0);
  if (begun == cuda::kNoDevice || begun == cuda::kStubLibrary) {
    return Error(Errc::kUnsupported,
                 driver_error(driver_, begun, "cuInit").context() +
                     ": no GPU can be used here; look at nvidia-smi, or use host memory");
  }
  if (auto ok = outcome(begun, "cuInit"); !ok) return ok;
  int devices = 0;
  if (auto ok = outcome(driver_.device_count(&devices), "cuDeviceGetCount"); !ok) return ok;
  if (options.ordinal >= static_cast<std::uint32_t>(std::max(devices, 0))) {
    return Error(Errc::kNotFound, "no device " + std::to_string(options.ordinal) + ": there are " +
                                      std::to_string(devices) +
                                      ", counted from 0 (see CUDA_VISIBLE_DEVICES)");
  }
  ordinal_ = static_cast<int>(options.ordinal);
  if (auto ok = outcome(driver_.device_get(&device_, ordinal_), "cuDeviceGet"); !ok) return ok;
  auto retained = outcome(driver_.context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  if (!retained) return retained;
  retained_ = true;
  const Entered entered(*this);
  streams_[static_cast<std::size_t>(Lane::kJob)] = static_cast<cuda::Stream>(options.stream);
  for (const Lane lane : {Lane::kIn, Lane::kOut}) {
    cuda::Stream& made = streams_[static_cast<std::size_t>(lane)];
    // 0 is the lowest priority there is.
    auto ok = outcome(driver_.stream_create(&made, cuda::kStreamNonBlocking, 0),
                      "cuStreamCreateWithPriority");
    if (!ok) return ok;
  }
  return {};
}

CudaAccel::~CudaAccel() {
  if (!retained_) return;
  {
    const Entered entered(*this);
    for (const Lane lane : {Lane::kIn, Lane::kOut}) {
      if (stream(lane) == nullptr) continue;
      driver_.stream_synchronize(stream(lane));
      driver_.stream_destroy(stream(lane));
    }
    for (const cuda::Event made : events_) driver_.event_destroy(made);
  }
  driver_.context_release(device_);
}

Result<void> CudaAccel::enter() {
  return outcome(driver_.context_set(context_), "cuCtxSetCurrent");
}

Result<void> CudaAccel::check_device_memory(std::span<const std::byte> memory) {
  HO_CHECK(!memory.empty());
  const Entered entered(*this);
  for (const std::byte* const at : {memory.data(), memory.data() + memory.size() - 1}) {
    const auto pointer = reinterpret_cast<cuda::DevicePointer>(at);
    unsigned type = 0;
    int ordinal = -1;
    const bool known =
        driver_.pointer_attribute(&type, cuda::kAttributeMemoryType, pointer) == kSuccess &&
        driver_.pointer_attribute(&ordinal, cuda::kAttributeDeviceOrdinal, pointer) == kSuccess;
    if (known && type == cuda::kMemoryTypeDevice && ordinal == ordinal_) continue;
    return Error(
        Errc::kInvalidArgument,
        "the arena is not memory of CUDA device " + std::to_string(ordinal_) +
            (known && type == cuda::kMemoryTypeDevice ? ", but of device " + std::to_string(ordinal)
                                                      : ""));
  }
  return {};
}

Result<AccelEvent> CudaAccel::make_event() {
  const Entered entered(*this);
  cuda::Event made = nullptr;
  auto ok = outcome(driver_.event_create(&made, cuda::kEventDisableTiming), "cuEventCreate");
  if (!ok) return ok.error();
  events_.push_back(made);
  return AccelEvent(static_cast<std::uint32_t>(events_.size() - 1));
}

Result<void> CudaAccel::record(AccelEvent mark, Lane lane) {
  const Entered entered(*this);
  return outcome(driver_.event_record(event(mark), stream(lane)), "cuEventRecord");
}

Result<void> CudaAccel::wait(Lane lane, AccelEvent mark) {
  const Entered entered(*this);
  return outcome(driver_.stream_wait_event(stream(lane), event(mark), 0), "cuStreamWaitEvent");
}

Result<bool> CudaAccel::happened(AccelEvent mark) {
  const Entered entered(*this);
  const cuda::Result result = driver_.event_query(event(mark));
  if (result == cuda::kNotReady) return false;
  if (auto ok = outcome(result, "cuEventQuery"); !ok) return ok.error();
  return true;
}

Result<void> CudaAccel::copy(const AccelCopy& copy) {
  HO_CHECK(copy.bytes > 0 && copy.lane != Lane::kJob);
  const Entered entered(*this);
  const auto device = reinterpret_cast<cuda::DevicePointer>(copy.device);
  if (copy.lane == Lane::kIn) {
    return outcome(driver_.copy_to_device(device, copy.host, copy.bytes, stream(copy.lane)),
                   "cuMemcpyHtoDAsync");
  }
  return outcome(driver_.copy_to_host(copy.host, device, copy.bytes, stream(copy.lane)),
                 "cuMemcpyDtoHAsync");
}

Result<void> CudaAccel::pin(std::span<std::byte> host) {
  HO_CHECK(!host.empty() && host.size() <= kPinBytesMax);
  const Entered entered(*this);
  return outcome(driver_.host_register(host.data(), host.size(), cuda::kRegisterPortable),
                 "cuMemHostRegister");
}

void CudaAccel::unpin(std::span<std::byte> host) {
  const Entered entered(*this);
  const auto ended = outcome(driver_.host_unregister(host.data()), "cuMemHostUnregister");
  if (ended) return;
  log(LogLevel::kError, "memory stays pinned by the device", {{"reason", ended.error().message()}});
}

}  // namespace

Result<std::unique_ptr<Accel>> make_cuda_accel(const DeviceOptions& options) {
  auto driver = open_driver(options.library);
  if (!driver) return driver.error();
  auto made = std::make_unique<CudaAccel>(*driver);
  if (auto ok = made->start(options); !ok) return ok.error();
  return std::unique_ptr<Accel>(std::move(made));
}

}  // namespace ho::client
