#include "common/schedule/describe.hpp"

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"

namespace ho::schedule {

std::string describe(const Schedule& schedule, StorageIndex storage) {
  HO_CHECK(storage.value() < schedule.storages.size());
  const Storage& found = schedule.storages[storage.value()];
  return describe_storage(found.id, found.name);
}

std::string describe(const Schedule& schedule, Position position) {
  HO_CHECK(position.value() < schedule.positions.size());
  const OpInfo& op = schedule.ops[schedule.positions[position.value()].op.value()];
  return "position " + std::to_string(position.value()) + ": " + describe_op(op.id, op.name);
}

std::string describe(const Schedule& schedule, CacheOpList list, std::size_t index) {
  const auto name = [list] {
    switch (list) {
      case CacheOpList::kSteady: return "cache_ops";
      case CacheOpList::kPrologue: return "prologue";
      case CacheOpList::kEpilogue: return "epilogue";
    }
    return "?";
  };
  const auto& ops = list == CacheOpList::kSteady     ? schedule.cache_ops
                    : list == CacheOpList::kPrologue ? schedule.prologue
                                                     : schedule.epilogue;
  HO_CHECK(index < ops.size());
  return std::string(name()) + "[" + std::to_string(index) +
         "]: " + std::string(cache_op_kind_name(ops[index].kind)) + " of " +
         describe(schedule, ops[index].storage) +
         (ops[index].copy == 0 ? "" : " to its second home");
}

}  // namespace ho::schedule
