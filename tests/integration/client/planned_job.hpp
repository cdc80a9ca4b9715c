#pragma once

#include <hyperoffload/hyperoffload.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/schedule/schedule.hpp"

namespace ho::test {

/// A job that runs a schedule through the C ABI with kernels whose outputs depend on every byte
/// they read, beside a model in plain memory. Throws nothing; the first failing call ends it.
class PlannedJob {
 public:
  PlannedJob(ho_pool* pool, const schedule::Schedule& schedule, std::uint64_t seed);
  ~PlannedJob();
  PlannedJob(const PlannedJob&) = delete;
  PlannedJob& operator=(const PlannedJob&) = delete;

  /// Runs steps; fills home before the first. @return the first status that is not HO_OK.
  [[nodiscard]] ho_status run(std::uint64_t steps);
  /// Supplies the next step's inputs and begins it: the rest of that step is the caller's.
  [[nodiscard]] ho_status begin_step();
  /// Ends the job and compares every persistent storage with the model.
  [[nodiscard]] ho_status finish_and_compare();

  [[nodiscard]] ho_runtime* runtime() const { return runtime_; }
  [[nodiscard]] const std::string& wrong() const { return wrong_; }  ///< empty: all bytes right
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  [[nodiscard]] ho_status keep(ho_status status);
  [[nodiscard]] ho_status supply(bool inputs);
  void run_op(std::uint32_t position);

  const schedule::Schedule& schedule_;
  std::uint64_t seed_;
  std::uint64_t step_ = 0;
  void* arena_ = nullptr;
  ho_runtime* runtime_ = nullptr;
  std::vector<std::vector<std::byte>> model_;
  std::string wrong_;
  std::string error_;
};

}  // namespace ho::test
