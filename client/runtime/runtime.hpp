#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/include/hyperoffload/hyperoffload.h"
#include "client/pool/pool.hpp"
#include "client/replay/active_replay.hpp"
#include "client/runtime/homes/storages.hpp"
#include "client/runtime/plan.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// One job's device memory, the storages whose values come and go there, and the plans for them.
///
/// One plan runs at a time. Its run begins at a step_begin(); values that are on the device already
/// stay in place. It ends when another plan's step begins, or at sync() or another call that
/// changes where values are. By then all values that the next run needs at home have been stored.
///
/// Owner: the job's thread that drives it. Calls wait for transfers, bounded by their deadlines. A
/// call that does not fit the order is refused with kConflict and changes nothing. After a failure
/// every call answers kUnavailable with the same text.
class Runtime {
 public:
  /// @return kInvalidArgument: neither arena nor callbacks, or both; the pool's failure.
  [[nodiscard]] static Result<std::unique_ptr<Runtime>> open(Pool& pool,
                                                             const DeviceMemory& device);
  /// Ends all plans; queued transfers are not sent. Memory on the device still belongs to the job.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Proves a schedule legal and finds homes for it. Between steps. The plan lives until unload()
  /// or the runtime's end.
  /// @return kCorrupt (not a schedule), kInvalidArgument (illegal schedule with the broken rule;
  /// arena too small or not aligned), kExhausted (homes do not fit the pool), kConflict (a step
  /// runs; a storage of the same name differs), or a pool's failure.
  [[nodiscard]] Result<Plan*> load(std::span<const std::byte> schedule);
  /// Ends a plan. Values of persistent storages stay, wherever they are.
  [[nodiscard]] Result<void> unload(Plan& plan);

  /// Brings the latest value of every persistent storage home. Between steps.
  [[nodiscard]] Result<void> sync();
  /// A part of a persistent storage's latest value, between steps, which the storage has.
  [[nodiscard]] Result<void> read(StorageNumber number, std::uint64_t offset_bytes,
                                  std::span<std::byte> into);
  /// @return kConflict: a part that is not all of it, where the rest has no value.
  [[nodiscard]] Result<void> write(StorageNumber number, std::uint64_t offset_bytes,
                                   std::span<const std::byte> data);

  // Where the job places device bytes. Outside steps; a step that was left is over.
  /// A storage that no plan knows yet. @param name  empty: no plan ever will.
  [[nodiscard]] Result<StorageNumber> declare(std::string name, std::uint64_t bytes);
  [[nodiscard]] Result<void> undeclare(StorageNumber number);
  [[nodiscard]] std::optional<StorageNumber> find(std::string_view name) const;
  /// Whether a loaded plan knows it.
  [[nodiscard]] bool in_a_plan(StorageNumber number) const;
  [[nodiscard]] Result<void*> fetch(StorageNumber number);
  [[nodiscard]] Result<void> evict(StorageNumber number);
  /// Whether the pool may ever have a home for it, as evict() needs.
  [[nodiscard]] bool may_have_home(StorageNumber number) const;
  /// Copies the latest value of a storage of the plan whose step runs, between its ops. The step
  /// goes on as if nothing had happened. `into` may be the storage's own device memory.
  [[nodiscard]] Result<void> peek(StorageNumber number, std::span<std::byte> into);
  /// The storage's latest value is at `address`, where the job has put it. Also within an op that
  /// writes the storage.
  [[nodiscard]] Result<void> adopt(StorageNumber number, void* address);
  /// The job has freed the storage's device bytes.
  [[nodiscard]] Result<void> forget(StorageNumber number);
  [[nodiscard]] Result<ho_storage_state> state(StorageNumber number);

  /// O(storages).
  [[nodiscard]] ho_runtime_counters counters() const;
  [[nodiscard]] std::uint64_t peak_device_bytes() const { return counters_.peak_device_bytes; }

  // For its plans.
  [[nodiscard]] Pool& pool() { return pool_; }
  [[nodiscard]] ActiveReplay& active() { return active_; }
  [[nodiscard]] Storages& storages() { return *storages_; }
  [[nodiscard]] const DeviceMemory& device() const { return device_; }
  [[nodiscard]] const LocalHandles& arena_handles() const { return arena_handles_; }
  /// Copy streams of the arena's accelerator; null: the arena is host memory.
  [[nodiscard]] DeviceStreams* streams() const { return streams_.get(); }
  /// What transfers of all its plans carry.
  [[nodiscard]] std::uint32_t owner() const { return owner_; }
  /// Shared by plans for homes of what does not outlive a step; at least so large. Between steps.
  [[nodiscard]] Result<const HomeArea*> scratch(Nearness nearness, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t scratch_bytes(Nearness nearness) const {
    return (nearness == Nearness::kFar ? far_scratch_ : near_scratch_).area.length_bytes;
  }
  /// What check_running() says, and that no step runs.
  [[nodiscard]] Result<void> check_running() const;
  [[nodiscard]] Result<void> check_between_steps() const;
  /// Makes `plan` the one that runs, and lets its step begin.
  [[nodiscard]] Result<void> begin_step(Plan& plan);
  void end_step(Plan& plan);
  [[nodiscard]] Result<void> leave_step(Plan& plan);
  /// Looks again whenever the transfer thread has news.
  /// @param served  the plan, if one runs, whose requests to take and drop memory are answered
  /// meanwhile. @return kUnavailable: the runtime failed meanwhile.
  template <typename Done>
  [[nodiscard]] Result<void> wait_until(const Done& done, Plan* served) {
    for (;;) {
      const std::uint32_t token = active_.changed.token();
      if (served != nullptr) served->serve();
      if (done()) return {};
      if (auto ok = check_running(); !ok) return ok;
      active_.changed.wait(token, kLookAgain);
    }
  }
  [[nodiscard]] std::byte* take(StorageNumber number, std::uint64_t bytes);
  void drop(StorageNumber number, std::byte* address);
  void count_device(std::uint64_t placed_bytes, std::uint64_t released_bytes);
  /// A home that cannot be reached ends everything, also between steps: the node is as lost as if a
  /// transfer had found out.
  [[nodiscard]] Error moved_badly(const Error& error);

 private:
  /// Longest sleep in a wait before looking again. Wake-ups are not lost; this guards against a
  /// bug.
  static constexpr Duration kLookAgain = std::chrono::milliseconds(100);

  Runtime(Pool& pool, const DeviceMemory& device, std::unique_ptr<DeviceStreams> streams);
  [[nodiscard]] Result<void> start();
  [[nodiscard]] Result<HeldStorage*> find_held(StorageNumber number);
  /// What check_running() says, and kUnsupported with an arena.
  [[nodiscard]] Result<void> check_hosted();
  /// For calls on one storage where the job places device bytes: none of its plans runs afterwards.
  [[nodiscard]] Result<HeldStorage*> find_hosted(StorageNumber number);
  /// Where the running plan has a storage's latest value now.
  [[nodiscard]] ValuePlace place_now(StorageIndex storage);

  [[nodiscard]] bool make_room();

  // The plan that runs.
  [[nodiscard]] Result<void> clear_device_for(const Plan& plan);
  [[nodiscard]] Result<void> begin_run(Plan& plan);
  [[nodiscard]] Result<void> end_run(const Plan* next);
  [[nodiscard]] Result<void> stop_run();
  [[nodiscard]] Result<void> take_places();
  void forget_departed();

  // Homes in place of those on lost and drained nodes: runtime_repair.cpp.
  enum class Border : std::uint8_t { kStep, kOnDemand };
  [[nodiscard]] Result<void> repair(Border border, Duration slice);
  [[nodiscard]] Result<bool> replace_homes(Border border, TimePoint end);
  [[nodiscard]] bool on_drained() const;
  [[nodiscard]] std::string why_on_drained() const;
  [[nodiscard]] Result<bool> leave_drained(TimePoint end);
  [[nodiscard]] Result<bool> leave_one(const std::function<void()>& moved);
  [[nodiscard]] Result<bool> leave_flash(const std::function<void()>& moved);
  [[nodiscard]] Result<bool> move_flash(NodeIndex from, NodeIndex to,
                                        const std::function<void()>& moved);
  [[nodiscard]] Result<void> wait_at_rest();
  void report_copies();
  void replace_both_homes(HeldStorage& storage);
  [[nodiscard]] Result<bool> repair_storages(TimePoint end);
  /// `look` gets the homes of each storage that has two.
  template <typename Look>
  void for_each_doubled(const Look& look) const {
    for (std::uint32_t i = 0; i < storages_->end(); ++i) {
      const HeldStorage* const storage = storages_->get(StorageNumber(i));
      if (storage != nullptr && storage->doubled) look(*storage->doubled);
    }
    for (const auto& plan : plans_) {
      for (const Plan::OwnDoubled& own : plan->own_doubled()) look(own.home);
    }
  }

  // One storage, between steps: runtime_storages.cpp.
  [[nodiscard]] static Error no_value(const HeldStorage& storage);
  [[nodiscard]] Result<void> settle(StorageNumber number, HeldStorage& storage);
  [[nodiscard]] Result<void> bring_home(StorageNumber number, HeldStorage& storage);
  void tell_home(StorageNumber number, const HeldStorage& storage);
  void take_off(StorageNumber number, HeldStorage& storage);
  [[nodiscard]] Result<void> store(HeldStorage& storage);
  [[nodiscard]] Result<void> fetch_to_device(HeldStorage& storage, ValueRange range);

  /// Memory that plans share for homes of what does not outlive a step.
  struct Scratch {
    std::optional<HomeRange> range;
    HomeArea area;
  };

  /// What nodes have been lost, and what they have told.
  struct Trouble {
    std::uint32_t losses = 0;   ///< Pool::losses()
    std::uint64_t changes = 0;  ///< Notice::changes
    std::size_t nodes = 0;      ///< that the job has used so far
    bool operator==(const Trouble&) const = default;
  };

  Pool& pool_;
  Engine& engine_;
  const DeviceMemory device_;
  const std::unique_ptr<DeviceStreams> streams_;
  LocalHandles arena_handles_;
  bool registered_ = false;  ///< the arena with the drivers, or the accelerator with the pool
  ActiveReplay active_;
  std::uint32_t owner_ = 0;
  bool attached_ = false;
  std::unique_ptr<Storages> storages_;
  Scratch near_scratch_;
  Scratch far_scratch_;
  std::vector<std::unique_ptr<Plan>> plans_;
  Plan* running_ = nullptr;
  Plan* in_step_ = nullptr;
  std::vector<StorageNumber>
      departed_;  ///< storages of a step that was left: made by it, and still with a value
  ho_runtime_counters counters_{};
  const SteadyClock clock_;
  std::int64_t copies_missing_ = 0;  ///< as the job's progress has it
  Trouble noticed_;                  ///< when repair_at_ was set
  Trouble repaired_;                 ///< after which nothing is left to do
  Trouble told_;                     ///< of which a line says that it cannot be mended
  TimePoint repair_at_;
  TimePoint look_at_;                ///< for nodes that have come, while values want homes
  std::uint64_t left_segments_ = 0;  ///< moved off drained nodes since the last line about it
};

}  // namespace ho::client
