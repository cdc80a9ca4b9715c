#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/schedule/byte_owners.hpp"
#include "common/schedule/schedule.hpp"
#include "common/schedule/unroll.hpp"
#include "common/schedule/validate.hpp"

namespace ho::schedule::proof {

/// Walks once through the unrolled schedule in its linear order, keeps who owns which bytes and
/// where each storage's latest value is, and demands of each event that whatever it conflicts with
/// comes before it in *every* execution.
///
/// Why one walk is enough. Two events conflict if both touch the same bytes and one writes them, or
/// one needs what the other makes. If each owner of a byte provably follows the owner before it in
/// this walk, all owners of that byte are totally ordered, in the same way in every execution. So
/// every execution gives every event the same inputs as this walk.
class Sweep {
 public:
  /// Both must outlive this; `unrolled` has no violation.
  Sweep(const Schedule& schedule, Unrolled& unrolled);

  /// The first broken rule, or nothing.
  [[nodiscard]] std::optional<Violation> run();

 private:
  using Found = std::optional<Violation>;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// One stay of a storage on the device.
  struct Stay {
    enum class End : std::uint8_t { kLive, kDetached, kDied };

    std::uint32_t storage = 0;
    End end = End::kLive;
    bool arrived = false;            ///< no prefetch, or an op has waited for it
    InstanceId prefetch = kNone;     ///< that began it; kNone: an op's write did
    InstanceId detach = kNone;       ///< that ended it
    InstanceId first_store = kNone;  ///< of those not known to be complete; then next_
    Moment begin = kBeforeAll;       ///< start of the op that began it
    std::uint64_t offset_bytes = 0;
  };
  /// One value in a home slot or a staging slot.
  struct Copy {
    std::uint32_t storage = 0;
    HomeSlot slot;
    bool overwritten = false;
    /// A Store, StageIn or StageOut; kNone: the job, before a step begins.
    InstanceId writer = kNone;
    InstanceId first_reader = kNone;  ///< Prefetches, StageIns, StageOuts; then next_
  };
  /// Where a storage's last copy of one kind is.
  struct Held {
    std::uint32_t copy = kNone;
    bool latest = false;  ///< the copy is of the latest value
  };
  struct State {
    std::uint32_t stay = kNone;  ///< live
    Held home;
    Held staged;  ///< in local DDR, of a storage whose home is on flash
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
  Found supply(std::uint32_t storage, Moment moment);
  Found write_copy(Held& held, const Copy& copy, Moment moment);
  Found read_copy(InstanceId instance, Held& held, const HomeSlot& slot);
  [[nodiscard]] HomeSlot ddr_slot(const CacheOp& op) const;
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
  std::vector<std::uint32_t> last_position_;  ///< per storage: of its last access in a step
  std::vector<State> states_;                 ///< per storage
  std::vector<Stay> stays_;
  std::vector<Copy> copies_;
  std::vector<InstanceId> next_;  ///< per instance: the next in its stay's or copy's list
  ByteOwners device_;             ///< owners: indices into stays_
  ByteOwners home_;               ///< owners: indices into copies_; address: tier, then offset
};

}  // namespace ho::schedule::proof
