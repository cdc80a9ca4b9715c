#pragma once

#include <cstddef>
#include <cstdint>

/// The part of NVIDIA's driver ABI that this folder uses, declared by ourselves: the driver is
/// opened at run time, and nothing of CUDA is needed to build. Names, values and signatures are
/// those of cuda.h. A function whose exported name ends in _v2 is bound by that name, since the
/// plain one has another signature.
/// Source: CUDA Driver API reference, version 12.4; unchanged since 11.7 for all that is here.
namespace ho::client::cuda {

using Result = int;  ///< CUresult
using Device = int;  ///< CUdevice
using DevicePointer = std::uint64_t;
using Context = struct ContextOfDriver*;
using Stream = struct StreamOfDriver*;
using Event = struct EventOfDriver*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kNotReady = 600;
inline constexpr Result kAlreadyRegistered = 712;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1;
inline constexpr int kAttributeDeviceOrdinal = 9;  ///< CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
inline constexpr int kAttributeMemoryType = 2;     ///< CU_POINTER_ATTRIBUTE_MEMORY_TYPE
inline constexpr unsigned kMemoryTypeDevice = 2;   ///< CU_MEMORYTYPE_DEVICE

/// The driver's functions, each filled by dlsym().
struct Functions {
  Result (*init)(unsigned flags);
  Result (*error_name)(Result error, const char** text);
  Result (*error_string)(Result error, const char** text);
  Result (*device_count)(int* count);
  Result (*device_get)(Device* device, int ordinal);
  Result (*context_retain)(Context* context, Device device);
  Result (*context_release)(Device device);
  Result (*context_set)(Context context);
  Result (*context_get)(Context* context);
  Result (*context_push)(Context context);
  Result (*context_pop)(Context* context);
  Result (*stream_create)(Stream* stream, unsigned flags, int priority);
  Result (*stream_destroy)(Stream stream);
  Result (*stream_synchronize)(Stream stream);
  Result (*stream_wait_event)(Stream stream, Event event, unsigned flags);
  Result (*event_create)(Event* event, unsigned flags);
  Result (*event_destroy)(Event event);
  Result (*event_record)(Event event, Stream stream);
  Result (*event_query)(Event event);
  Result (*copy_to_device)(DevicePointer to, const void* from, std::size_t bytes, Stream stream);
  Result (*copy_to_host)(void* to, DevicePointer from, std::size_t bytes, Stream stream);
  Result (*host_register)(void* base, std::size_t bytes, unsigned flags);
  Result (*host_unregister)(void* base);
  Result (*pointer_attribute)(void* value, int attribute, DevicePointer pointer);
};

/// One line for each function: where it belongs in Functions, and the name it is exported by.
struct Symbol {
  std::size_t offset_bytes;
  const char* name;
};
inline constexpr Symbol kSymbols[] = {
    {offsetof(Functions, init), "cuInit"},
    {offsetof(Functions, error_name), "cuGetErrorName"},
    {offsetof(Functions, error_string), "cuGetErrorString"},
    {offsetof(Functions, device_count), "cuDeviceGetCount"},
    {offsetof(Functions, device_get), "cuDeviceGet"},
    {offsetof(Functions, context_retain), "cuDevicePrimaryCtxRetain"},
    {offsetof(Functions, context_release), "cuDevicePrimaryCtxRelease_v2"},
    {offsetof(Functions, context_set), "cuCtxSetCurrent"},
    {offsetof(Functions, context_get), "cuCtxGetCurrent"},
    {offsetof(Functions, context_push), "cuCtxPushCurrent_v2"},
    {offsetof(Functions, context_pop), "cuCtxPopCurrent_v2"},
    {offsetof(Functions, stream_create), "cuStreamCreateWithPriority"},
    {offsetof(Functions, stream_destroy), "cuStreamDestroy_v2"},
    {offsetof(Functions, stream_synchronize), "cuStreamSynchronize"},
    {offsetof(Functions, stream_wait_event), "cuStreamWaitEvent"},
    {offsetof(Functions, event_create), "cuEventCreate"},
    {offsetof(Functions, event_destroy), "cuEventDestroy_v2"},
    {offsetof(Functions, event_record), "cuEventRecord"},
    {offsetof(Functions, event_query), "cuEventQuery"},
    {offsetof(Functions, copy_to_device), "cuMemcpyHtoDAsync_v2"},
    {offsetof(Functions, copy_to_host), "cuMemcpyDtoHAsync_v2"},
    {offsetof(Functions, host_register), "cuMemHostRegister_v2"},
    {offsetof(Functions, host_unregister), "cuMemHostUnregister"},
    {offsetof(Functions, pointer_attribute), "cuPointerGetAttribute"},
};

}  // namespace ho::client::cuda
