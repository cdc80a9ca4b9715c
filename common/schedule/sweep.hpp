#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/schedule/byte_owners.hpp"
#include "common/schedule/live_bytes.hpp"
#include "common/schedule/schedule.hpp"
#include "common/schedule/unroll.hpp"
#include "common/schedule/validate.hpp"

namespace ho::schedule::proof {

/// The demands on the bytes on the device.
struct SweepRules {
  bool offsets = true;  ///< storages lie at their offsets; each byte has one owner at a time
  /// The job places storages: each has one stay at a time, no Store reads one that ends, and
  /// without offsets at most arena_bytes are on the device at a time.
  bool host = false;
};

/// Walks once through the linear order of the unrolled schedule. Tracks the owner of each byte and
/// the place of each storage's latest value. Requires of each event that the events it conflicts
/// with come before it in *every* execution.
///
/// Why one walk is enough: two events conflict if both touch the same bytes and one writes them, or
/// if one needs the result of the other. If each owner of a byte provably follows the owner before
/// it in this walk, then all owners of that byte have one order in every execution. So every
/// execution gives every event the same inputs as this walk.
class Sweep {
 public:
  /// Both arguments must outlive this object. `unrolled` must have no violation.
  Sweep(const Schedule& schedule, Unrolled& unrolled, const SweepRules& rules);

  /// The first broken rule, or nullopt.
  [[nodiscard]] std::optional<Violation> run();

 private:
  using Found = std::optional<Violation>;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// One stay of a storage on the device.
  struct Stay {
    enum class End : std::uint8_t { kLive, kDetached, kDied };

    std::uint32_t storage = 0;
    End end = End::kLive;
    bool arrived = false;  ///< true if no prefetch began it, or an op has waited for that prefetch
    InstanceId prefetch = kNone;     ///< the prefetch that began it; kNone: the write of an op did
    InstanceId detach = kNone;       ///< the detach that ended it
    InstanceId first_store = kNone;  ///< head of a list in next_: stores not known to be complete
    Moment begin = kBeforeAll;       ///< start of the op that began it
    std::uint64_t offset_bytes = 0;
  };
  /// One value in a home slot or a staging slot.
  struct Copy {
    std::uint32_t storage = 0;
    HomeSlot slot;
    bool overwritten = false;
    /// A Store, StageIn or StageOut. kNone: the job wrote it before a step.
    InstanceId writer = kNone;
    InstanceId first_reader = kNone;  ///< head of a list in next_: Prefetches, StageIns, StageOuts
    std::uint8_t index = 0;           ///< which of the storage's homes; 0 for staging slots
  };
  /// The last copy of one kind of a storage.
  struct Held {
    std::uint32_t copy = kNone;
    bool latest = false;  ///< the copy holds the latest value
  };
  struct State {
    std::uint32_t stay = kNone;  ///< the live stay
    std::array<Held, kCopiesMax> homes;
    Held staged;  ///< in local DDR, for a storage with its home on flash
  };

  Found begin_step(std::uint32_t step);
  Found run_instances(Moment moment);
  Found run_op(std::uint32_t step, std::uint32_t position);
  Found access(std::uint32_t step, std::uint32_t position, const Operand& operand);
  Found write(std::uint32_t step, std::uint32_t position, Stay& stay);
  Found prefetch(InstanceId instance);
  Found store(InstanceId instance);
  Found stage_in(InstanceId instance);
  Found stage_out(InstanceId instance);
  Found detach(InstanceId instance);
  Found finish() const;

  Found begin_stay(const Stay& stay);
  Found take_live_bytes(const Stay& stay);
  Found check_repeats() const;
  Found end_of_life(std::uint32_t step, std::uint32_t position, std::uint32_t storage);
  [[nodiscard]] std::uint64_t bytes_of(const Stay& stay) const;
  Found supply(std::uint32_t storage, Moment moment);
  Found write_copy(Held& held, const Copy& copy, Moment moment);
  Found read_copy(InstanceId instance, Held& held, const HomeSlot& slot);
  static void forget_copies(State& state);
  [[nodiscard]] std::uint8_t copies_of(std::uint32_t storage) const;
  [[nodiscard]] HomeSlot home_slot(std::uint32_t storage, std::uint8_t copy) const;
  [[nodiscard]] bool stay_over(const Stay& old, const Stay& next);
  [[nodiscard]] bool copy_done(const Copy& old, const Copy& next, Moment moment);
  Found check_resident(InstanceId instance, Stay*& stay);

  [[nodiscard]] Violation violation(const char* rule, std::string first, std::string second,
                                    std::string detail) const;
  [[nodiscard]] std::string describe_stay(const Stay& stay) const;
  [[nodiscard]] std::string describe_copy(const Copy& copy) const;
  [[nodiscard]] std::string storage_name(std::uint32_t storage) const;

  const Schedule& schedule_;
  Unrolled& unrolled_;
  const SweepRules rules_;
  std::vector<std::uint32_t> last_position_;  ///< per storage: its last access in a step
  std::vector<State> states_;                 ///< per storage
  std::vector<Stay> stays_;
  std::vector<Copy> copies_;
  /// Per instance: the next in the list of its stay, or of the copy with that index.
  std::array<std::vector<InstanceId>, kCopiesMax> next_;
  std::vector<std::uint32_t> last_stay_;  ///< per storage; of the host's rules
  LiveBytes live_;                        ///< likewise
  std::vector<std::map<std::uint32_t, std::uint64_t>> free_at_;  ///< per step: as it begins
  ByteOwners device_;                                            ///< owners: indices into stays_
  ByteOwners home_;  ///< owners: indices into copies_; addresses: see home_address()
};

}  // namespace ho::schedule::proof
