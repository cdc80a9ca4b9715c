// A device for PyTorch (its key PrivateUse1) whose memory is that of the stand-in for NVIDIA's
// driver: tests train there as on an accelerator. Kernels run on the processor, but in the order of
// one stream: they read what it leaves, and what they write lands later. The stand-in knows their
// accesses, and lists copies that are not ordered with them. Autograd runs backward on a thread of
// its own, as for any device.
//
// Memory is reused at once when a tensor is freed, as with PyTorch's own allocator, and a kernel
// overwrites it then and when it is given out again, so that a copy that still uses it is found.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/library.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#if TORCH_VERSION_MAJOR >= 2
#include <ATen/detail/PrivateUse1HooksInterface.h>
#endif

#include "tests/support/cuda/fake_cuda.hpp"

#define DEVICE_API extern "C" __attribute__((visibility("default")))

// The driver's functions, as the stand-in exports them.
extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuMemAlloc_v2(std::uint64_t* device, std::size_t bytes);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamSynchronize(void* stream);
}

namespace {

using c10::DeviceType;

constexpr std::size_t kSlabBytes = std::size_t{256} << 20U;
constexpr std::size_t kAlign = 512;  // as PyTorch's allocator
constexpr int kPoison = 0xff;        // NaN, for all types of numbers with one

void ok(int code, const char* call) {
  TORCH_CHECK(code == 0, call, " failed on the test device: ", code);
}

/// The one device: memory that is given out in pieces, and the stream of all kernels.
class Device {
 public:
  static Device& get() {
    static Device* const device = new Device;  // never ended: tensors may outlive main()
    return *device;
  }

  /// For each thread that comes here, as PyTorch does it for CUDA's.
  void enter() const {
    thread_local bool entered = false;
    if (!entered) ok(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    entered = true;
  }

  void reset(std::uint64_t seed, bool is_own_stream, std::size_t limit_bytes) {
    enter();
    synchronize();
    const std::lock_guard guard(mutex_);
    random_.seed(seed);
    limit_bytes_ = limit_bytes;
    peak_bytes_ = used_bytes_;
    if (is_own_stream && own_stream_ == nullptr)
      ok(cuStreamCreate(&own_stream_, 1), "cuStreamCreate");
    stream_ = is_own_stream ? own_stream_ : nullptr;
  }

  /// @return null if there is no room.
  void* take(std::size_t bytes) {
    enter();
    bytes = rounded(bytes);
    std::unique_lock lock(mutex_);
    if (used_bytes_ + bytes > limit_bytes_) return nullptr;
    const auto at = choose(bytes);
    if (at == free_.end()) return nullptr;
    auto [begin, length] = *at;
    free_.erase(at);
    // From either end, so that two pieces do not follow each other in the order of their calls.
    const bool from_end = (random_() & 1U) != 0;
    const std::uintptr_t taken = from_end ? begin + length - bytes : begin;
    if (length > bytes) free_[from_end ? begin : begin + bytes] = length - bytes;
    used_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    lock.unlock();
    overwrite(taken, bytes);
    return reinterpret_cast<void*>(taken);
  }

  void drop(void* memory, std::size_t bytes) {
    enter();
    bytes = rounded(bytes);
    auto begin = reinterpret_cast<std::uintptr_t>(memory);
    overwrite(begin, bytes);
    const std::lock_guard guard(mutex_);
    used_bytes_ -= bytes;
    latest_ = begin;
    auto after = free_.lower_bound(begin);
    if (after != free_.end() && begin + bytes == after->first) {
      bytes += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        free_.erase(before);
      }
    }
    free_[begin] = bytes;
  }

  void read(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    enter();
    const auto at = reinterpret_cast<std::uintptr_t>(from);
    ok(fake_cuda_kernel_reads(to, at, bytes, stream_), "a kernel that reads");
  }

  void write(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    enter();
    const auto at = reinterpret_cast<std::uintptr_t>(to);
    ok(fake_cuda_kernel_writes(at, from, bytes, stream_), "a kernel that writes");
  }

  void synchronize() const {
    enter();
    ok(cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

  [[nodiscard]] void* stream() const { return stream_; }
  [[nodiscard]] std::size_t peak_bytes() {
    const std::lock_guard guard(mutex_);
    return peak_bytes_;
  }
  [[nodiscard]] std::size_t used_bytes() {
    const std::lock_guard guard(mutex_);
    return used_bytes_;
  }

 private:
  using Free = std::map<std::uintptr_t, std::size_t>;

  Device() {
    ok(cuInit(0), "cuInit");
    ok(cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
    enter();
    std::uint64_t slab = 0;
    ok(cuMemAlloc_v2(&slab, kSlabBytes), "cuMemAlloc");
    free_[slab] = kSlabBytes;
  }

  static std::size_t rounded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  /// The piece that was freed last, half of the time; else any that is large enough.
  Free::iterator choose(std::size_t bytes) {
    auto latest = free_.upper_bound(latest_);
    if (latest != free_.begin() && (random_() & 1U) != 0 && (--latest)->second >= bytes) {
      return latest;
    }
    std::vector<Free::iterator> fitting;
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second >= bytes) fitting.push_back(at);
    }
    return fitting.empty() ? free_.end() : fitting[random_() % fitting.size()];
  }

  void overwrite(std::uintptr_t begin, std::size_t bytes) const {
    const std::vector<std::byte> poison(bytes, std::byte{kPoison});
    write(reinterpret_cast<void*>(begin), poison.data(), bytes);
  }

  std::mutex mutex_;  ///< autograd's threads free tensors too
  void* context_ = nullptr;
  void* stream_ = nullptr;  ///< the legacy default stream, as PyTorch's by default
  void* own_stream_ = nullptr;
  std::mt19937_64 random_{1};
  Free free_;  ///< begin -> bytes
  std::uintptr_t latest_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::size_t limit_bytes_ = kSlabBytes;
};

constexpr c10::DeviceIndex kIndex = 0;

struct Piece {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

void drop_piece(void* context) {
  auto* const piece = static_cast<Piece*>(context);
  Device::get().drop(piece->memory, piece->bytes);
  delete piece;
}

// What PyTorch 2 has changed.
#if TORCH_VERSION_MAJOR >= 2
#define CONST_BEFORE_2
template <typename T>
using Optional = std::optional<T>;
#else
#define CONST_BEFORE_2 const
template <typename T>
using Optional = c10::optional<T>;
#endif

struct Allocator final : c10::Allocator {
  [[nodiscard]] c10::DataPtr allocate(std::size_t bytes) CONST_BEFORE_2 override {
    const c10::Device device(DeviceType::PrivateUse1, kIndex);
    if (bytes == 0) return {nullptr, device};
    void* const memory = Device::get().take(bytes);
    TORCH_CHECK(memory != nullptr, "out of memory on the test device, for ", bytes, " bytes");
    return {memory, new Piece{memory, bytes}, &drop_piece, device};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
#if TORCH_VERSION_MAJOR >= 2
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::vector<std::byte> values(bytes);
    Device::get().read(values.data(), from, bytes);
    Device::get().write(to, values.data(), bytes);
  }
#endif
};
Allocator allocator;

/// One device and one stream, whose events nobody asks for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  [[nodiscard]] static c10::Device only() { return {DeviceType::PrivateUse1, kIndex}; }
  [[nodiscard]] DeviceType type() const override { return DeviceType::PrivateUse1; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device) const override { return only(); }
  [[nodiscard]] c10::Device getDevice() const override { return only(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  [[nodiscard]] c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, only());
  }
  [[nodiscard]] c10::Stream getDefaultStream(c10::Device device) const override {
    return getStream(device);
  }
  [[nodiscard]] c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, only());
  }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

#if TORCH_VERSION_MAJOR >= 2
/// Says that the device is there. Not all versions ask all of it.
struct Hooks final : at::PrivateUse1HooksInterface {
  [[nodiscard]] bool isBuilt() const { return true; }
  [[nodiscard]] bool isAvailable() const { return true; }
  [[nodiscard]] bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

struct RegisterHooks {
  RegisterHooks() {
    c10::register_privateuse1_backend("privateuseone");
    at::RegisterPrivateUse1HooksInterface(new Hooks);  // never ended
  }
} const register_hooks;
#endif

// Kernels.

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
thread_local bool is_in_kernel = false;  ///< its operands are read on the device, as it were

/// Elements from the first of a tensor to its last, both among them.
std::int64_t span_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return tensor.numel() == 0 ? 0 : last + 1;
}

/// What a device tensor spans, on the processor: a copy.
at::Tensor span_here(const at::Tensor& tensor) {
  at::Tensor here = at::empty({span_of(tensor)}, tensor.options().device(at::kCPU));
  Device::get().read(here.data_ptr(), tensor.data_ptr(), here.nbytes());
  return here;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (to.numel() == 0) return to;
  at::Tensor values = from;
  if (!from.is_cpu()) {
    values = span_here(from).as_strided(from.sizes(), from.strides(), 0);
  }
  if (to.is_cpu()) {
    if (!is_in_kernel) Device::get().synchronize();
    to.copy_(values);
    return to;
  }
  // Bytes between the elements of `to` stay as they are.
  const bool is_dense = to.is_non_overlapping_and_dense();
  const at::Tensor span =
      is_dense ? at::empty({to.numel()}, to.options().device(at::kCPU)) : span_here(to);
  span.as_strided(to.sizes(), to.strides(), 0).copy_(values);
  Device::get().write(to.data_ptr(), span.data_ptr(), span.nbytes());
  return to;
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor here = span_here(tensor);
  Device::get().synchronize();
  return here.item();
}

/// Gives a storage other memory, with what it holds as far as that fits.
void resize_storage(c10::StorageImpl& storage, std::size_t bytes) {
  TORCH_CHECK(storage.resizable(), "a storage whose memory others have");
  c10::DataPtr made = allocator.allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    std::vector<std::byte> values(kept);
    Device::get().read(values.data(), storage.data(), kept);
    Device::get().write(made.get(), values.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(made));
  storage.set_nbytes(bytes);
}

const at::Tensor& resize_tensor(const at::Tensor& self, at::IntArrayRef size,
                                Optional<at::MemoryFormat> format) {
  at::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  tensor.set_sizes_contiguous(size);
  if (format.has_value()) tensor.empty_tensor_restride(*format);
  const auto elements = static_cast<std::size_t>(self.storage_offset() + self.numel());
  const std::size_t needed = elements * static_cast<std::size_t>(self.element_size());
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (self.numel() > 0 && needed > storage.nbytes()) resize_storage(storage, needed);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) resize_tensor(to, from.sizes(), {});
  return copy_from(from, to, false);
}

at::Tensor empty(at::IntArrayRef size, Optional<at::ScalarType> type,
                 Optional<at::Layout> /*layout*/, Optional<at::Device> /*device*/,
                 Optional<bool> /*pin*/, Optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         Optional<at::ScalarType> type, Optional<at::Layout> /*layout*/,
                         Optional<at::Device> /*device*/, Optional<bool> /*pin*/) {
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys,
                                           c10::dtype_or_default(type));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        at::IntArrayRef size, at::IntArrayRef stride) {
  at::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  tensor.set_storage_keep_dtype(std::move(source));
  tensor.set_storage_offset(offset);
  if (stride.data() == nullptr) {
    tensor.set_sizes_contiguous(size);
  } else {
    tensor.set_sizes_and_strides(size, stride);
  }
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  at::Storage none(c10::Storage::use_byte_size_t(), 0, allocator.allocate(0), &allocator, true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

/// As torch.cuda.amp.GradScaler calls it; PyTorch 1.13 has none for the processor.
void unscale(at::TensorList gradients, at::Tensor& found_inf, const at::Tensor& inverse) {
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.isfinite().all().item<bool>()) found_inf.fill_(1);
    gradient.mul_(inverse);
  }
}

/// All other operators run on the processor.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  struct InKernel {
    bool outer = std::exchange(is_in_kernel, true);
    ~InKernel() { is_in_kernel = outer; }
  } const in_kernel;
  at::native::cpu_fallback(op, stack);
}

struct RegisterAllocator {
  RegisterAllocator() { c10::SetAllocator(DeviceType::PrivateUse1, &allocator); }
} const register_allocator;

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize_tensor));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("_amp_foreach_non_finite_check_and_unscale_", TORCH_FN(unscale));
  // One kernel, in place of the parts that PyTorch runs for devices without one.
  library.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// For the tests' Python.

/// Begins anew. own_stream: whether kernels run on a stream of the device's own, else on the legacy
/// default stream. limit_bytes: that can be taken at a time.
DEVICE_API void torch_device_reset(std::uint64_t seed, std::uint32_t delay_us_max, int own_stream,
                                   std::size_t limit_bytes) {
  Device::get().reset(seed, own_stream != 0, limit_bytes);
  fake_cuda_reset(seed, delay_us_max);
}
DEVICE_API std::size_t torch_device_peak_bytes() { return Device::get().peak_bytes(); }
DEVICE_API std::size_t torch_device_used_bytes() { return Device::get().used_bytes(); }
DEVICE_API void* torch_device_stream() { return Device::get().stream(); }
DEVICE_API void torch_device_read(void* to, const void* from, std::size_t bytes) {
  Device::get().read(to, from, bytes);
  Device::get().synchronize();
}
DEVICE_API void torch_device_synchronize() { Device::get().synchronize(); }
/// @param storage  a StorageImpl. @return 0, or 1 where the storage cannot have so much memory.
DEVICE_API int torch_device_resize(void* storage, std::size_t bytes) {
  try {
    resize_storage(*static_cast<c10::StorageImpl*>(storage), bytes);
    return 0;
  } catch (const c10::Error&) {
    return 1;
  }
}
