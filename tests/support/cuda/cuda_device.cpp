#include "tests/support/cuda/cuda_device.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "tests/support/cuda/fake_cuda.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

using client::cuda::DevicePointer;
using client::cuda::Stream;

constexpr std::size_t kSlabBytes = std::size_t{64} << 20U;

DevicePointer pointer(const std::byte* at) { return reinterpret_cast<DevicePointer>(at); }

}  // namespace

std::unique_ptr<CudaDevice> CudaDevice::open(std::uint64_t seed, std::uint32_t delay_us_max) {
  const char* const asked = std::getenv("HO_CUDA_LIBRARY");
  std::unique_ptr<CudaDevice> made(new CudaDevice);
  made->real_ = asked != nullptr;
  made->library_ = made->real_ ? asked : HO_FAKE_CUDA;
  if (!made->real_) fake_cuda_reset(seed, delay_us_max);
  try {
    made->start();
  } catch (const std::runtime_error& error) {
    if (!made->real_) throw;
    skip(std::string("no CUDA device: ") + error.what());
    return nullptr;
  }
  return made;
}

void CudaDevice::ok(int result, const char* call) const {
  if (result != 0) throw std::runtime_error(std::string(call) + ": " + std::to_string(result));
}

void CudaDevice::start() {
  void* const handle = ::dlopen(library_.c_str(), RTLD_NOW);
  if (handle == nullptr) throw std::runtime_error(::dlerror());
  const auto find = [&](void* into, const char* name) {
    void* const function = ::dlsym(handle, name);
    if (function == nullptr) throw std::runtime_error(library_ + " has no " + name);
    std::memcpy(into, &function, sizeof(function));
  };
  for (const auto& symbol : client::cuda::kSymbols) {
    find(reinterpret_cast<std::byte*>(&driver_) + symbol.offset_bytes, symbol.name);
  }
  find(&allocate_, "cuMemAlloc_v2");
  find(&free_, "cuMemFree_v2");
  int device = 0;
  ok(driver_.init(0), "cuInit");
  ok(driver_.device_get(&device, 0), "cuDeviceGet");
  client::cuda::Context context = nullptr;
  ok(driver_.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  context_ = context;
  ok(driver_.context_set(context), "cuCtxSetCurrent");
  Stream stream = nullptr;
  ok(driver_.stream_create(&stream, client::cuda::kStreamNonBlocking, 0), "cuStreamCreate");
  stream_ = stream;
  void* const slab =
      ::mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (slab == MAP_FAILED) throw std::runtime_error("mmap");
  slab_ = static_cast<std::byte*>(slab);
  ok(driver_.host_register(slab, kSlabBytes, client::cuda::kRegisterPortable), "cuMemHostRegister");
}

CudaDevice::~CudaDevice() {
  if (slab_ != nullptr) {
    driver_.stream_synchronize(static_cast<Stream>(stream_));
    driver_.host_unregister(slab_);
    ::munmap(slab_, kSlabBytes);
  }
  if (stream_ != nullptr) driver_.stream_destroy(static_cast<Stream>(stream_));
  if (context_ != nullptr) driver_.context_release(0);
}

void CudaDevice::make_current() {
  ok(driver_.context_set(static_cast<client::cuda::Context>(context_)), "cuCtxSetCurrent");
}

std::byte* CudaDevice::allocate(std::size_t bytes) {
  std::uint64_t made = 0;
  ok(allocate_(&made, bytes), "cuMemAlloc");
  return reinterpret_cast<std::byte*>(made);
}

void CudaDevice::free(std::byte* memory) { ok(free_(pointer(memory)), "cuMemFree"); }

/// Host memory for one operation: it stays what it is until the stream has come so far.
std::byte* CudaDevice::room(std::size_t bytes) {
  if (bytes > kSlabBytes) throw std::runtime_error("more bytes than the test's host memory has");
  if (kSlabBytes - used_ < bytes) {
    const std::string wrong = check();
    if (wrong_.empty()) wrong_ = wrong;
  }
  std::byte* const at = slab_ + used_;
  used_ += bytes;
  return at;
}

void CudaDevice::write(std::byte* to, std::span<const std::byte> bytes) {
  std::byte* const from = room(bytes.size());
  std::copy(bytes.begin(), bytes.end(), from);
  ok(driver_.copy_to_device(pointer(to), from, bytes.size(), static_cast<Stream>(stream_)),
     "cuMemcpyHtoDAsync");
}

void CudaDevice::expect(const std::byte* from, std::span<const std::byte> bytes,
                        const std::string& what) {
  std::byte* const into = room(bytes.size());
  ok(driver_.copy_to_host(into, pointer(from), bytes.size(), static_cast<Stream>(stream_)),
     "cuMemcpyDtoHAsync");
  expected_.push_back({{bytes.begin(), bytes.end()}, into, what});
}

void CudaDevice::synchronize() {
  ok(driver_.stream_synchronize(static_cast<Stream>(stream_)), "cuStreamSynchronize");
}

std::string CudaDevice::check() {
  synchronize();
  std::string wrong = std::exchange(wrong_, {});
  for (const Expected& one : expected_) {
    if (!wrong.empty()) break;
    if (!std::equal(one.bytes.begin(), one.bytes.end(), one.found)) wrong = one.what;
  }
  expected_.clear();
  used_ = 0;
  if (wrong.empty() && !real_) wrong = fake_cuda_violations();
  return wrong;
}

}  // namespace ho::test
