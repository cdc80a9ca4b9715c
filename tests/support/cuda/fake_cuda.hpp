#pragma once

#include <cstddef>
#include <cstdint>

// What tests ask of the stand-in for NVIDIA's driver (fake_cuda.cpp), beside the driver's own
// functions, which they call like a job does.

extern "C" {

/// Begins anew: no violations, other delays. Nothing may be queued.
/// @param delay_us_max  each operation of a stream takes up to so long, by the seed; 0: no delay.
void fake_cuda_reset(std::uint64_t seed, std::uint32_t delay_us_max);

/// Uses that a device's order does not allow, a line each; "" if there are none. Valid until the
/// next call.
const char* fake_cuda_violations();

/// Ranges of host memory that are registered.
std::size_t fake_cuda_registered();
/// Primary contexts retained and not released.
int fake_cuda_retained();
/// Copies whose host memory was gone when they ran: a real device moves bytes of nobody then.
std::uint64_t fake_cuda_orphaned();
/// Ranges whose memory was gone already when they were unregistered: a real device held its pages
/// until then.
std::uint64_t fake_cuda_cut();
/// The most bytes that a copy of the stream let pass: those of the copy that its direction's copy
/// engine had at work, and of others that waited there before it.
std::uint64_t fake_cuda_waited_bytes(void* stream);
/// From now on every call that queues or asks answers this CUresult; 0: back to work.
void fake_cuda_fail(int result);
/// Holds back all streams, or lets them go on.
void fake_cuda_pause(int paused);

// What kernels of a job do. Their host memory need not be registered. Both return a CUresult.
/// A kernel that reads device memory: its bytes, as the work queued on `stream` so far leaves them.
/// The call waits for it. For the order of the device it has not waited: a job that runs its
/// kernels on the device knows nothing of when they end.
int fake_cuda_kernel_reads(void* to, std::uint64_t from, std::size_t bytes, void* stream);
/// A kernel that writes device memory: queued, with a copy of these bytes.
int fake_cuda_kernel_writes(std::uint64_t to, const void* from, std::size_t bytes, void* stream);
}
