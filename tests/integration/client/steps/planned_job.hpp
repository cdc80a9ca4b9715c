#pragma once

#include <hyperoffload/hyperoffload.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "common/schedule/schedule.hpp"
#include "tests/support/cuda/cuda_device.hpp"
#include "tests/support/cuda/device_heap.hpp"
#include "tests/support/host_memory.hpp"

namespace ho::test {

/// A job that runs plans through the C ABI, beside a model in plain memory. Outputs of its kernels
/// depend on every byte that they read. Plans share persistent values by name, so they may take
/// turns. Throws nothing; the first failing call ends it.
class PlannedJob {
 public:
  enum class Device : std::uint8_t { kArena, kHosted };

  PlannedJob(ho_pool* pool, const schedule::Schedule& schedule, std::uint64_t seed,
             Device device = Device::kArena);
  /// Its device memory is that of an accelerator, which outlives it, and its kernels run there.
  PlannedJob(ho_pool* pool, const schedule::Schedule& schedule, std::uint64_t seed,
             CudaDevice& accelerator, Device device = Device::kArena);
  ~PlannedJob();
  PlannedJob(const PlannedJob&) = delete;
  PlannedJob& operator=(const PlannedJob&) = delete;

  /// Loads one more plan, whose arena is at most as large as the first one's. @return its number,
  /// from 1 on.
  std::size_t add(const schedule::Schedule& schedule);
  /// Values of persistent storages stay. The plan's number is not used again.
  [[nodiscard]] ho_status unload(std::size_t which);

  /// Runs steps of a plan. Supplies its inputs, and before the first step all persistent values.
  /// @return the first status that is not HO_OK.
  [[nodiscard]] ho_status run(std::uint64_t steps, std::size_t which = 0);
  /// The same without the checks of kernels on an accelerator, which wait for it.
  [[nodiscard]] ho_status queue(std::uint64_t steps, std::size_t which = 0);
  void look_at_accelerator();
  /// Supplies the next step's inputs and begins it. The caller runs the rest, by run_next() for
  /// each position and end_step(), or by calls of its own.
  [[nodiscard]] ho_status begin_step(std::size_t which = 0);
  [[nodiscard]] ho_status run_next(std::uint32_t position, std::size_t which = 0);
  /// Where the job places its memory: compares what the step has so far, and needs from `next` on,
  /// with the model, wherever it is.
  [[nodiscard]] ho_status peek_at_all(std::uint32_t next, std::size_t which = 0);
  [[nodiscard]] ho_status end_step(std::size_t which = 0);
  /// Runs a step up to a position and leaves it. Then supplies the model's persistent values
  /// again, as a job does that returns to a checkpoint.
  [[nodiscard]] ho_status run_and_leave(std::uint32_t positions, std::size_t which = 0);
  /// ho_sync, then compares every persistent storage with the model.
  [[nodiscard]] ho_status sync_and_compare();
  /// Compares parts of some persistent storages with the model, without a sync.
  [[nodiscard]] ho_status compare_some(Prng& random);
  /// Gives parts of some persistent storages new values.
  [[nodiscard]] ho_status write_some(Prng& random);

  [[nodiscard]] ho_runtime* runtime() const { return runtime_; }
  [[nodiscard]] ho_plan* plan(std::size_t which = 0) const { return plans_[which].plan; }
  [[nodiscard]] HostMemory& host() { return host_; }
  [[nodiscard]] const std::string& wrong() const { return wrong_; }  ///< empty: all bytes right
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] ho_counters counters(std::size_t which = 0) const;

 private:
  struct Loaded {
    schedule::Schedule schedule;
    ho_plan* plan = nullptr;
    std::vector<std::vector<std::byte>> values;  ///< for storages that end with a step
    std::vector<std::uint32_t> last;             ///< position of the last access, by storage
  };

  [[nodiscard]] ho_status keep(ho_status status);
  [[nodiscard]] ho_status supply_once();
  [[nodiscard]] ho_status supply_persistent();
  [[nodiscard]] ho_status supply_inputs(Loaded& loaded);
  [[nodiscard]] ho_status run_position(Loaded& loaded, std::uint32_t position);
  [[nodiscard]] ho_status place_outputs(Loaded& loaded, std::uint32_t position);
  [[nodiscard]] ho_status free_departed(Loaded& loaded);
  void run_op(Loaded& loaded, std::uint32_t position);
  [[nodiscard]] std::byte* allocate(std::uint64_t bytes);
  void free(void* memory);
  [[nodiscard]] std::uint64_t peak_bytes() const;
  [[nodiscard]] std::vector<std::byte>& value(Loaded& loaded, std::uint32_t storage);
  [[nodiscard]] ho_status compare(Loaded& loaded, std::uint32_t storage);
  [[nodiscard]] ho_status compare_part(Loaded& loaded, std::uint32_t storage, Prng& random);
  void fail(const std::string& what);

  std::uint64_t seed_;
  std::uint64_t step_ = 0;
  Device device_;
  CudaDevice* accelerator_ = nullptr;
  void* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  HostMemory host_;
  std::unique_ptr<DeviceHeap> heap_;  ///< in place of host_, with callbacks on an accelerator
  ho_runtime* runtime_ = nullptr;
  std::deque<Loaded> plans_;
  std::map<std::string, std::vector<std::byte>> persistent_;
  bool supplied_ = false;
  std::string wrong_;
  std::string error_;
};

}  // namespace ho::test
