#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/schedule/describe.hpp"
#include "common/schedule/static_rules.hpp"

namespace ho::schedule::proof {

namespace {

using Found = std::optional<Violation>;
constexpr std::uint32_t kNone = UINT32_MAX;

bool reads(const Operand& operand) { return operand.access != Access::kWrite; }
bool writes(const Operand& operand) { return operand.access != Access::kRead; }

/// Identifies a value by the op that wrote it: an op writes a storage at most once, and an op that
/// runs again on the same inputs writes the same value.
class ProgramOrder {
 public:
  explicit ProgramOrder(const Schedule& schedule)
      : schedule_(schedule),
        first_position_(schedule.ops.size(), kNone),
        final_writer_(schedule.storages.size(), kNone),
        expected_begin_(schedule.ops.size() + 1) {}

  Found run() {
    if (auto found = find_positions()) return found;
    if (auto found = check_repeats()) return found;
    if (auto found = check_fixed()) return found;
    if (auto found = check_after()) return found;
    expect();
    return replay();
  }

 private:
  [[nodiscard]] const std::vector<Operand>& operands(std::uint32_t position) const {
    return schedule_.positions[position].operands;
  }
  [[nodiscard]] std::string name(std::uint32_t position) const {
    return describe(schedule_, Position(position));
  }

  Found find_positions() {
    for (std::uint32_t p = 0; p < schedule_.positions.size(); ++p) {
      const std::uint32_t op = schedule_.positions[p].op.value();
      if (first_position_[op] == kNone) first_position_[op] = p;
    }
    for (std::size_t op = 0; op < first_position_.size(); ++op) {
      if (first_position_[op] == kNone) {
        return Violation{"missing-op", "ops[" + std::to_string(op) + "]", "",
                         "op " + std::to_string(schedule_.ops[op].id) + " has no position"};
      }
    }
    return std::nullopt;
  }

  /// A fixed op is a barrier: ops before it in program order run before it (for the first time),
  /// and ops after it run after it.
  Found check_fixed() const {
    std::uint32_t last = kNone;      // position of the last fixed op
    std::uint32_t furthest = kNone;  // position of the largest op index so far
    for (std::uint32_t p = 0; p < schedule_.positions.size(); ++p) {
      const std::uint32_t op = schedule_.positions[p].op.value();
      if (first_position_[op] != p) continue;
      if (last != kNone && op < schedule_.positions[last].op.value()) {
        return Violation{"fixed-moved", name(last), name(p),
                         "the second precedes the first in program order, and the first is fixed"};
      }
      if (schedule_.ops[op].fixed) {
        if (furthest != kNone && schedule_.positions[furthest].op.value() > op) {
          return Violation{
              "fixed-moved", name(furthest), name(p),
              "the second precedes the first in program order, and the second is fixed"};
        }
        last = p;
      }
      if (furthest == kNone || schedule_.positions[furthest].op.value() < op) furthest = p;
    }
    return std::nullopt;
  }

  /// Each op runs after the ops in its `after`.
  Found check_after() const {
    for (std::uint32_t op = 0; op < schedule_.ops.size(); ++op) {
      for (const OpIndex before : schedule_.ops[op].after) {
        if (first_position_[before.value()] < first_position_[op]) continue;
        return Violation{"control-dependency", name(first_position_[op]),
                         name(first_position_[before.value()]),
                         "the first names the second in `after`, so the second must run earlier"};
      }
    }
    return std::nullopt;
  }

  /// An op may stand at two positions if it is recomputable; it then names the same storages at
  /// both.
  Found check_repeats() const {
    for (std::uint32_t p = 0; p < schedule_.positions.size(); ++p) {
      const std::uint32_t op = schedule_.positions[p].op.value();
      const std::uint32_t first = first_position_[op];
      if (first == p) continue;
      if (schedule_.ops[op].fixed || !schedule_.ops[op].recomputable) {
        return Violation{"repeated-op", name(first), name(p),
                         "a fixed op, or one that is not recomputable, must run exactly once"};
      }
      const auto same = [](const Operand& a, const Operand& b) {
        return a.storage == b.storage && a.access == b.access;
      };
      if (!std::equal(operands(first).begin(), operands(first).end(), operands(p).begin(),
                      operands(p).end(), same)) {
        return Violation{
            "operands-differ", name(first), name(p),
            "the two runs of the op have different operands or a different order of operands"};
      }
    }
    return std::nullopt;
  }

  /// Runs the ops in program order and records which op wrote the value that each operand reads.
  void expect() {
    for (std::size_t op = 0; op < schedule_.ops.size(); ++op) {
      expected_begin_[op] = expected_.size();
      for (const Operand& operand : operands(first_position_[op])) {
        expected_.push_back(final_writer_[operand.storage.value()]);
      }
      for (const Operand& operand : operands(first_position_[op])) {
        if (writes(operand)) {
          final_writer_[operand.storage.value()] = static_cast<std::uint32_t>(op);
        }
      }
    }
    expected_begin_[schedule_.ops.size()] = expected_.size();
  }

  [[nodiscard]] Found replay() const {
    std::vector<std::uint32_t> writer(schedule_.storages.size(), kNone);
    for (std::uint32_t p = 0; p < schedule_.positions.size(); ++p) {
      const std::uint32_t op = schedule_.positions[p].op.value();
      std::size_t at = expected_begin_[op];
      for (const Operand& operand : operands(p)) {
        const std::uint32_t found = writer[operand.storage.value()];
        const std::uint32_t expected = expected_[at++];
        if (!reads(operand)) continue;
        const Storage& storage = schedule_.storages[operand.storage.value()];
        if (found != expected) {
          return Violation{"wrong-version", name(p), describe(schedule_, operand.storage),
                           "the op reads the value of " + writer_name(found) +
                               "; in program order it reads that of " + writer_name(expected)};
        }
        if (found == kNone && !storage.persistent && storage.kind != StorageKind::kInput) {
          return Violation{"read-before-write", name(p), describe(schedule_, operand.storage),
                           "no earlier op of the step writes the storage"};
        }
      }
      for (const Operand& operand : operands(p)) {
        if (writes(operand)) writer[operand.storage.value()] = op;
      }
    }
    for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
      if (!schedule_.storages[s].persistent || writer[s] == final_writer_[s]) continue;
      return Violation{"wrong-version", describe(schedule_, StorageIndex(s)), "",
                       "the step ends with the value of " + writer_name(writer[s]) +
                           "; in program order it ends with that of " +
                           writer_name(final_writer_[s])};
    }
    return std::nullopt;
  }

  [[nodiscard]] std::string writer_name(std::uint32_t op) const {
    if (op == kNone) return "the step's start";
    return "op " + std::to_string(schedule_.ops[op].id);
  }

  const Schedule& schedule_;
  std::vector<std::uint32_t> first_position_;
  std::vector<std::uint32_t> final_writer_;  // per storage, in program order
  std::vector<std::uint32_t> expected_;  // per op and operand: the op that wrote the value it reads
  std::vector<std::size_t> expected_begin_;
};

}  // namespace

Found check_program_order(const Schedule& schedule) { return ProgramOrder(schedule).run(); }

}  // namespace ho::schedule::proof
