#include "execution.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "common/schedule/needed.hpp"

namespace ho::test {

namespace {

using schedule::Access;
using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::Operand;
using schedule::Schedule;

constexpr std::uint64_t kCellBytes = 8;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  a = (a ^ b) * 0x9e3779b97f4a7c15U;
  return a ^ (a >> 29U);
}

/// The expected values: every storage's value after each op of each step, if all storages were
/// resident.
class Reference {
 public:
  explicit Reference(const Schedule& schedule) : schedule_(schedule) {
    for (std::uint32_t s = 0; s < schedule.storages.size(); ++s) now_.push_back(initial(s));
    first_.resize(schedule.ops.size());
    for (std::size_t p = schedule.positions.size(); p-- > 0;) {
      first_[schedule.positions[p].op.value()] = static_cast<std::uint32_t>(p);
    }
  }
  static std::uint64_t initial(std::uint32_t storage) { return mix(1, storage); }
  static std::uint64_t input(std::uint32_t storage, std::uint32_t step) {
    return mix(mix(2, storage), step);
  }
  /// The value that an op writes, computed from the values it read.
  static std::uint64_t result(std::uint32_t op, std::uint64_t read, std::uint32_t storage) {
    return mix(mix(mix(3, op), read), storage);
  }

  /// Runs the ops in program order and records what each op reads.
  void run_step(std::uint32_t step) {
    reads_.assign(schedule_.ops.size(), {});
    for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
      if (schedule_.storages[s].kind == StorageKind::kInput && !schedule_.storages[s].persistent) {
        now_[s] = input(s, step);
      }
    }
    for (std::uint32_t op = 0; op < schedule_.ops.size(); ++op) {
      std::uint64_t digest = 0;
      const auto& operands = schedule_.positions[first_[op]].operands;
      for (const Operand& operand : operands) {
        if (operand.access == Access::kWrite) continue;
        reads_[op][operand.storage.value()] = now_[operand.storage.value()];
        digest = mix(digest, now_[operand.storage.value()]);
      }
      for (const Operand& operand : operands) {
        const std::uint32_t s = operand.storage.value();
        if (operand.access != Access::kRead) now_[s] = result(op, digest, s);
      }
    }
  }
  [[nodiscard]] std::uint64_t read_by(std::uint32_t op, std::uint32_t storage) const {
    return reads_[op].at(storage);
  }
  [[nodiscard]] std::uint64_t now(std::uint32_t storage) const { return now_[storage]; }

 private:
  const Schedule& schedule_;
  std::vector<std::uint32_t> first_;
  std::vector<std::uint64_t> now_;
  std::vector<std::map<std::uint32_t, std::uint64_t>> reads_;
};

class Execution {
 public:
  /// @param live_bytes_max  of storages on the device at a time; 0: the offsets see to it.
  Execution(const Schedule& schedule, std::uint32_t steps, std::uint64_t seed,
            std::uint64_t live_bytes_max)
      : schedule_(schedule),
        live_bytes_max_(live_bytes_max),
        live_(schedule.storages.size(), 0),
        lost_(schedule.storages.size(), kCopiesMax),
        last_position_(schedule.storages.size(), 0),
        steps_(steps),
        prng_(seed),
        reference_(schedule),
        droppable_(schedule::droppable_at_end(schedule)),
        device_(schedule.arena_bytes / kCellBytes + 1) {
    home_[1].resize(schedule.local_ddr_bytes / kCellBytes + 1);
    home_[2].resize(schedule.remote_ddr_bytes / kCellBytes + 1);
    home_[3].resize(schedule.flash_bytes / kCellBytes + 1);
    for (std::uint32_t i = 0; i < schedule.prologue.size(); ++i) {
      add(&schedule.prologue[i], -1, i);
    }
    for (std::uint32_t step = 0; step < steps; ++step) {
      for (std::uint32_t i = 0; i < schedule.cache_ops.size(); ++i) {
        add(&schedule.cache_ops[i], static_cast<int>(step), i);
      }
    }
    for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
      for (const Operand& operand : schedule.positions[p].operands) {
        last_position_[operand.storage.value()] = p;
      }
    }
    first_epilogue_ = instances_.size();
    for (std::uint32_t i = 0; i < schedule.epilogue.size(); ++i) {
      add(&schedule.epilogue[i], static_cast<int>(steps), i);
    }
  }

  std::string run() {
    for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
      if (schedule_.storages[s].persistent) fill_home(s, Reference::initial(s));
    }
    while (fault_.empty()) {
      if (!act()) break;
    }
    if (!fault_.empty()) return fault_;
    if (step_ != steps_) return "the chain stops at position " + std::to_string(position_);
    for (const Instance& instance : instances_) {
      if (!instance.done) return "an instance never runs";
    }
    for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
      if (schedule_.storages[s].persistent) check_home(s);
    }
    return fault_;
  }

 private:
  struct Instance {
    const CacheOp* op = nullptr;
    int step = 0;
    std::uint32_t index = 0;
    std::uint64_t speed = 0;  ///< larger: chosen earlier
    bool done = false;
    bool started = false;
    std::uint64_t cells_moved = 0;
    std::uint8_t copy = 0;  ///< which home of its storage it reads or writes
  };

  void add(const CacheOp* op, int step, std::uint32_t index) {
    instances_.push_back(Instance{op, step, index, prng_.below(8), false, false, 0, op->copy});
  }

  [[nodiscard]] std::uint8_t copies(std::uint32_t s) const {
    return schedule::second_home(schedule_, StorageIndex(s)) ? 2 : 1;
  }
  [[nodiscard]] schedule::HomeSlot slot(std::uint32_t s, std::uint8_t copy) const {
    return copy == 0 ? *schedule_.homes[s] : *schedule::second_home(schedule_, StorageIndex(s));
  }
  std::uint64_t& home_at(std::uint32_t s, std::uint8_t copy, std::uint64_t cell) {
    const schedule::HomeSlot home = slot(s, copy);
    return home_[static_cast<std::size_t>(home.tier)][home.offset_bytes / kCellBytes + cell];
  }

  /// A failure domain is lost for good: of each storage with two homes one, whichever it is. A
  /// Prefetch from there begins again from the other.
  void lose_domain() {
    for (std::uint32_t s = 0; s < lost_.size(); ++s) {
      if (copies(s) > 1) lost_[s] = static_cast<std::uint8_t>(prng_.below(2));
    }
    for (Instance& instance : instances_) {
      if (instance.op->kind != CacheOpKind::kPrefetch || !instance.started || instance.done)
        continue;
      const std::uint32_t s = instance.op->storage.value();
      if (lost_[s] != instance.copy) continue;
      instance.copy = 1 - instance.copy;
      instance.cells_moved = 0;
    }
    domain_lost_ = true;
  }
  std::uint64_t cells(std::uint32_t s) const { return schedule_.storages[s].bytes / kCellBytes; }
  /// The cells of one value differ, so that a shifted copy is detected.
  static std::uint64_t cell_value(std::uint64_t value, std::uint64_t cell) {
    return mix(value, cell + 1);
  }

  void fill_home(std::uint32_t s, std::uint64_t value) {
    for (std::uint8_t copy = 0; copy < copies(s); ++copy) {
      for (std::uint64_t c = 0; c < cells(s); ++c) home_at(s, copy, c) = cell_value(value, c);
    }
  }
  void check_home(std::uint32_t s) {
    for (std::uint8_t copy = 0; copy < copies(s); ++copy) {
      for (std::uint64_t c = 0; c < cells(s) && lost_[s] != copy; ++c) {
        if (home_at(s, copy, c) != cell_value(reference_.now(s), c)) {
          fault_ = "home of storage " + std::to_string(s) + " is wrong at the end";
        }
      }
    }
  }

  /// Whether the instance of `list index` in `step` is complete. Instances before the first step
  /// are.
  [[nodiscard]] bool steady_done(int step, std::uint32_t index) const {
    if (step < 0) return true;
    return instances_[schedule_.prologue.size() +
                      static_cast<std::size_t>(step) * schedule_.cache_ops.size() + index]
        .done;
  }

  [[nodiscard]] bool may_start(std::size_t i) const {
    const Instance& instance = instances_[i];
    const bool prologue = i < schedule_.prologue.size();
    const bool epilogue = i >= first_epilogue_;
    for (const auto& ref : instance.op->after_cache_ops) {
      const std::uint32_t index = ref.op.value();
      if (prologue   ? !instances_[index].done
          : epilogue ? !instances_[first_epilogue_ + index].done
                     : !steady_done(instance.step - (ref.previous_step ? 1 : 0), index)) {
        return false;
      }
    }
    if (prologue) return true;
    if (epilogue) {
      if (step_ != steps_) return false;
      for (std::size_t k = 0; k < first_epilogue_; ++k) {
        if (!instances_[k].done) return false;
      }
      return true;
    }
    const auto step = static_cast<std::uint32_t>(instance.step);
    if (!instance.op->after_position) return begun_ > step;
    return step_ > step || (step_ == step && position_ > instance.op->after_position->value());
  }

  /// After the last step a runtime may leave out transfers for a next step.
  [[nodiscard]] bool leaves_out(std::size_t i) {
    const Instance& instance = instances_[i];
    const bool steady = i >= schedule_.prologue.size() && i < first_epilogue_;
    return step_ == steps_ && steady && !instance.started && droppable_[instance.index] != 0 &&
           prng_.below(4) > 0;
  }

  [[nodiscard]] bool op_may_start() const {
    for (std::size_t i = 0; i < first_epilogue_; ++i) {
      const Instance& instance = instances_[i];
      if (instance.done || !instance.op->before_position) continue;
      if (instance.op->before_position->value() != position_) continue;
      const int awaited = i < schedule_.prologue.size()
                              ? 0
                              : instance.step + (instance.op->before_next_step ? 1 : 0);
      if (awaited == static_cast<int>(step_)) return false;
    }
    return true;
  }

  /// Runs one event. @return false: no event is possible.
  bool act() {
    if (begun_ == step_ && step_ < steps_) {
      begin_step();
      return true;
    }
    if (!schedule_.second_homes.empty() && !domain_lost_ && prng_.below(150) == 0) lose_domain();
    // The next event of the compute chain competes with every instance that may run; the speeds
    // decide.
    std::uint64_t best = 0;
    std::optional<std::size_t> chosen;
    const bool op_ready = step_ < steps_ && (running_ || op_may_start());
    for (std::size_t i = 0; i < instances_.size(); ++i) {
      if (instances_[i].done || (!instances_[i].started && !may_start(i))) continue;
      const std::uint64_t eager = 1 + instances_[i].speed * 4 + prng_.below(8);
      if (eager > best) {
        best = eager;
        chosen = i;
      }
    }
    if (op_ready && prng_.below(40) >= best) chosen.reset();
    if (chosen) {
      if (leaves_out(*chosen)) {
        instances_[*chosen].done = true;
      } else {
        advance(instances_[*chosen]);
      }
      return true;
    }
    if (!op_ready) return false;
    if (!running_) {
      start_op();
    } else {
      end_op();
    }
    return true;
  }

  void begin_step() {
    ++begun_;
    for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
      if (schedule_.storages[s].kind == StorageKind::kInput && !schedule_.storages[s].persistent) {
        fill_home(s, Reference::input(s, step_));
      }
    }
    reference_.run_step(step_);
  }

  /// Moves a few cells.
  void advance(Instance& instance) {
    const std::uint32_t s = instance.op->storage.value();
    const bool starts = !instance.started;
    instance.started = true;
    if (instance.op->kind == CacheOpKind::kDetach) {
      instance.done = true;
      end_stay(s);
      return;
    }
    if (instance.op->kind == CacheOpKind::kPrefetch && starts) {
      begin_stay(s);
      if (copies(s) > 1) instance.copy = static_cast<std::uint8_t>(prng_.below(2));
      if (lost_[s] == instance.copy) instance.copy = 1 - instance.copy;
    }
    const bool into_lost = instance.op->kind == CacheOpKind::kStore && lost_[s] == instance.copy;
    if (instance.op->kind == CacheOpKind::kStore && live_bytes_max_ > 0 && live_[s] == 0) {
      fault_ = "a store reads storage " + std::to_string(s) + " after its memory was freed";
    }
    const std::uint64_t device = instance.op->device_offset_bytes / kCellBytes;
    const auto& staged_at = instance.op->ddr_offset_bytes;
    const std::uint64_t until =
        std::min(cells(s), instance.cells_moved + 1 + prng_.below(cells(s)));
    for (std::uint64_t& c = instance.cells_moved; c < until; ++c) {
      if (into_lost) continue;
      std::uint64_t& home = home_at(s, instance.copy, c);
      std::uint64_t& ddr = staged_at ? home_[1][*staged_at / kCellBytes + c] : home;
      switch (instance.op->kind) {
        case CacheOpKind::kPrefetch: device_[device + c] = ddr; break;
        case CacheOpKind::kStore: ddr = device_[device + c]; break;
        case CacheOpKind::kStageIn: ddr = home; break;
        case CacheOpKind::kStageOut: home = ddr; break;
        case CacheOpKind::kDetach: break;
      }
    }
    instance.done = instance.cells_moved == cells(s);
  }

  void begin_stay(std::uint32_t s) {
    if (live_bytes_max_ == 0) return;
    if (live_[s] != 0) fault_ = "storage " + std::to_string(s) + " is placed twice";
    live_[s] = 1;
    live_bytes_ += align_up(schedule_.storages[s].bytes, schedule_.align_bytes);
    if (live_bytes_ > live_bytes_max_) fault_ = std::to_string(live_bytes_) + " bytes are live";
  }
  /// The memory is another's now, who writes there.
  void end_stay(std::uint32_t s) {
    if (live_bytes_max_ == 0 || live_[s] == 0) return;
    live_[s] = 0;
    live_bytes_ -= align_up(schedule_.storages[s].bytes, schedule_.align_bytes);
    for (std::uint64_t c = 0; c < cells(s); ++c) {
      device_[device_offset(s) / kCellBytes + c] = prng_.next();
    }
  }
  [[nodiscard]] std::uint64_t device_offset(std::uint32_t s) const {
    for (const auto& at : schedule_.positions) {
      for (const Operand& operand : at.operands) {
        if (operand.storage.value() == s) return operand.device_offset_bytes;
      }
    }
    return 0;
  }

  [[nodiscard]] const schedule::ScheduledOp& position() const {
    return schedule_.positions[position_];
  }

  /// Checks the values read, when an op starts and again when it ends.
  void look(bool at_end) {
    const std::uint32_t op = position().op.value();
    for (const Operand& operand : position().operands) {
      if (operand.access == Access::kWrite) continue;
      if (at_end && operand.access == Access::kReadWrite) continue;
      const std::uint32_t s = operand.storage.value();
      const std::uint64_t expected = reference_.read_by(op, s);
      for (std::uint64_t c = 0; c < cells(s); ++c) {
        if (device_[operand.device_offset_bytes / kCellBytes + c] == cell_value(expected, c)) {
          continue;
        }
        fault_ = "position " + std::to_string(position_) + " of step " + std::to_string(step_) +
                 " reads a wrong value of storage " + std::to_string(s);
        return;
      }
    }
  }

  void start_op() {
    running_ = true;
    look(false);
    for (const Operand& operand : position().operands) {
      if (operand.access == Access::kRead) continue;
      if (live_[operand.storage.value()] == 0) begin_stay(operand.storage.value());
      for (std::uint64_t c = 0; c < cells(operand.storage.value()); ++c) {
        device_[operand.device_offset_bytes / kCellBytes + c] = prng_.next();
      }
    }
  }

  void end_op() {
    running_ = false;
    look(true);
    const std::uint32_t op = position().op.value();
    std::uint64_t digest = 0;
    for (const Operand& operand : position().operands) {
      if (operand.access == Access::kWrite) continue;
      digest = mix(digest, reference_.read_by(op, operand.storage.value()));
    }
    for (const Operand& operand : position().operands) {
      if (operand.access == Access::kRead) continue;
      const std::uint32_t s = operand.storage.value();
      for (std::uint64_t c = 0; c < cells(s); ++c) {
        device_[operand.device_offset_bytes / kCellBytes + c] =
            cell_value(Reference::result(op, digest, s), c);
      }
    }
    for (const Operand& operand : position().operands) {
      const std::uint32_t s = operand.storage.value();
      if (!schedule_.storages[s].persistent && last_position_[s] == position_) end_stay(s);
    }
    if (++position_ < schedule_.positions.size()) return;
    position_ = 0;
    ++step_;
  }

  const Schedule& schedule_;
  const std::uint64_t live_bytes_max_;
  std::uint64_t live_bytes_ = 0;
  std::vector<std::uint8_t> live_;
  std::vector<std::uint8_t> lost_;  ///< per storage: the home that is lost, or kCopiesMax
  bool domain_lost_ = false;
  std::vector<std::uint32_t> last_position_;
  std::uint32_t steps_;
  Prng prng_;
  Reference reference_;
  std::vector<std::uint8_t> droppable_;
  std::vector<std::uint64_t> device_;
  std::vector<std::uint64_t> home_[4];  // by HomeTier; staging slots are in the arena of local DDR
  std::vector<Instance> instances_;
  std::size_t first_epilogue_ = 0;
  std::uint32_t step_ = 0;   // current step of the compute chain
  std::uint32_t begun_ = 0;  // number of steps that have begun
  std::uint32_t position_ = 0;
  bool running_ = false;
  std::string fault_;
};

}  // namespace

std::string execute(const Schedule& schedule, std::uint32_t steps, std::uint64_t seed,
                    schedule::Placement placement) {
  if (placement == schedule::Placement::kPlanned) return Execution(schedule, steps, seed, 0).run();
  Schedule apart = schedule;
  std::vector<std::uint64_t> offsets;
  apart.arena_bytes = 0;
  for (const Storage& storage : apart.storages) {
    offsets.push_back(apart.arena_bytes);
    apart.arena_bytes += align_up(storage.bytes, 64);
  }
  for (auto& position : apart.positions) {
    for (Operand& operand : position.operands) {
      operand.device_offset_bytes = offsets[operand.storage.value()];
    }
  }
  for (auto* list : {&apart.cache_ops, &apart.prologue, &apart.epilogue}) {
    for (CacheOp& op : *list) op.device_offset_bytes = offsets[op.storage.value()];
  }
  return Execution(apart, steps, seed, schedule.arena_bytes).run();
}

}  // namespace ho::test
