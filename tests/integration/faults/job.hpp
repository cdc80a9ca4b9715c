#pragma once

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/faults/caller.hpp"

namespace ho::test {

/// A connection with an allocation and one caller for each 2 MiB of it, whose bytes have been put.
/// The pool spreads areas of this size over its nodes.
class Job {
 public:
  Job(const std::string& address, const char* driver, std::uint32_t op_deadline_ms,
      std::size_t callers = 1, const char* ucx_devices = nullptr) {
    std::string why;
    pool_.reset(try_connect(address, driver, op_deadline_ms, why, ucx_devices));
    INFO(why);
    REQUIRE(pool_ != nullptr);
    REQUIRE(ho_allocate(pool_.get(), callers * Caller::kAreaBytes, &memory_) == HO_OK);
    for (std::size_t i = 0; i < callers; ++i) {
      callers_.push_back(std::make_unique<Caller>(pool_.get(), memory_, i * Caller::kAreaBytes));
      REQUIRE(callers_.back()->batch(Way::kPut).status == HO_OK);
    }
  }
  ~Job() {
    callers_.clear();
    ho_free(pool_.get(), memory_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  [[nodiscard]] Caller& caller(std::size_t index = 0) { return *callers_[index]; }

 private:
  PoolHandle pool_;
  ho_allocation* memory_ = nullptr;
  std::vector<std::unique_ptr<Caller>> callers_;
};

}  // namespace ho::test
