#pragma once

#include <hyperoffload/hyperoffload.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace ho::test {

using Instant = std::chrono::steady_clock::time_point;
using std::chrono::milliseconds;

enum class Way { kGet, kPut };
enum class Load { kIdle, kBusy };  ///< busy: 64 transfers in flight at any moment

[[nodiscard]] const char* name_of(Way way);
[[nodiscard]] const char* name_of(Load load);

/// @return nullptr with the reason in `why` if it cannot connect. ucx_devices: as in
/// ho_connect_options.
[[nodiscard]] ho_pool* try_connect(const std::string& addresses, const char* transport,
                                   std::uint32_t op_deadline_ms, std::string& why,
                                   const char* ucx_devices = nullptr);

/// The outcome that the caller of a transfer saw.
struct Told {
  ho_status status = HO_OK;
  std::string error;
  Instant at;
};

/// A job's plain transfers with one area of the pool's memory. One thread.
class Caller {
 public:
  static constexpr std::size_t kOps = 64;
  static constexpr std::size_t kOpBytes = 256U << 10U;
  static constexpr std::size_t kAreaBytes = 2U << 20U;

  /// `offset`: where in the allocation its 2 MiB begin. Fills both sides with the bytes of a put.
  Caller(ho_pool* pool, ho_allocation* memory, std::uint64_t offset);
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  /// Starts kOps transfers and waits for all. @return the first failure, or HO_OK.
  Told batch(Way way);
  /// One transfer.
  Told single(Way way);
  /// Batches (busy) or single transfers with pauses (idle), until one fails or `until` has come.
  Told go_on(Way way, Load load, Instant until);
  /// Reads the area back. @return whether every byte is that of the last put.
  [[nodiscard]] bool right();
  /// Overwrites the host memory. From then on only the caller may change it; untouched() checks
  /// that.
  void take_back();
  [[nodiscard]] bool untouched() const;

 private:
  [[nodiscard]] ho_status start(Way way, std::size_t op, std::uint64_t* ticket);

  ho_pool* pool_;
  ho_allocation* memory_;
  std::uint64_t offset_;
  std::vector<char> host_;
};

/// A second job, on a thread and connection of its own: transfers and compares until it is stopped.
/// Faults of other jobs must not disturb it.
class Bystander {
 public:
  Bystander(const std::string& address, const char* transport);
  ~Bystander();
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;
  /// Stops it. @return the first failure that it saw; empty: none.
  [[nodiscard]] std::string end();

 private:
  void run(const std::string& address, const char* transport);
  std::atomic<bool> ready_{false};
  std::atomic<bool> stop_{false};
  std::string complaint_;
  std::thread thread_;
};

}  // namespace ho::test
