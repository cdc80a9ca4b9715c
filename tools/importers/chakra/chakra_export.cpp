#include "tools/importers/chakra/chakra_export.hpp"

#include <algorithm>
#include <vector>

#include "common/base/check.hpp"
#include "tools/importers/bytes/wire_writer.hpp"
#include "tools/importers/chakra/chakra_trace.hpp"
#include "tools/importers/draft.hpp"

namespace ho::importers {

namespace {

namespace f = chakra_field;
using schedule::Access;
using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::Schedule;

class Exporter {
 public:
  explicit Exporter(const Schedule& plan)
      : plan_(plan), waits_for_(plan.positions.size()), starts_after_(plan.positions.size() + 1) {
    for (std::size_t c = 0; c < plan.cache_ops.size(); ++c) {
      const CacheOp& op = plan.cache_ops[c];
      if (op.before_position && !op.before_next_step) {
        waits_for_[op.before_position->value()].push_back(c);
      }
      // A cache op is written where it may begin: before all positions, or after one.
      starts_after_[op.after_position ? op.after_position->value() + 1 : 0].push_back(c);
    }
  }

  std::string run() {
    append(metadata());
    for (std::size_t p = 0; p <= plan_.positions.size(); ++p) {
      if (p > 0) append(position(p - 1));
      for (const std::size_t c : starts_after_[p]) append(cache_op(c));
    }
    return std::move(out_);
  }

 private:
  void append(const WireWriter& message) {
    WireWriter::append_varint(message.text().size(), out_);
    out_ += message.text();
  }

  static WireWriter attribute(std::string_view name) {
    WireWriter out;
    out.bytes(f::kAttributeName, name);
    return out;
  }
  static WireWriter text(std::string_view name, std::string_view value) {
    return attribute(name).bytes(f::kAttributeString, value);
  }
  static WireWriter number(std::string_view name, std::uint64_t value) {
    return attribute(name).number(f::kAttributeUint64, value);
  }
  static WireWriter list(std::string_view name, const std::vector<std::string>& values) {
    WireWriter inner;
    for (const std::string& value : values) inner.bytes(1, value);
    return attribute(name).message(f::kAttributeStrings, inner);
  }

  /// A unique name of the storage; names in a graph need not be unique.
  [[nodiscard]] std::string key(StorageIndex index) const {
    return std::to_string(index.value()) + ":" + plan_.storages[index.value()].name;
  }
  [[nodiscard]] static std::uint64_t position_id(std::size_t position) { return position + 1; }
  [[nodiscard]] std::uint64_t cache_op_id(std::size_t index) const {
    return plan_.positions.size() + index + 1;
  }

  /// The flags that import_chakra() reads back.
  static std::string flags(const Storage& storage) {
    std::string out;
    if (storage.persistent) out += 'p';
    if (storage.pinned) out += 'd';
    if (storage.hint == OffloadHint::kPreferRemote) out += 'r';
    if (storage.hint == OffloadHint::kNever) out += 'n';
    return out;
  }

  [[nodiscard]] WireWriter metadata() const {
    std::vector<std::string> storages;
    for (std::size_t s = 0; s < plan_.storages.size(); ++s) {
      const Storage& storage = plan_.storages[s];
      storages.push_back(key(StorageIndex(static_cast<std::uint32_t>(s))));
      storages.push_back(std::to_string(storage.bytes));
      storages.emplace_back(storage_kind_name(storage.kind));
      storages.push_back(flags(storage));
    }
    WireWriter out;
    out.bytes(1, "0.0.4");  // the version of the Chakra schema that defines these field numbers
    out.message(f::kMetadataAttribute, text("schema", kOwnSchema));
    out.message(f::kMetadataAttribute, text("graph", plan_.graph_name));
    out.message(f::kMetadataAttribute, list("storages", storages));
    return out;
  }

  WireWriter node(std::uint64_t id, std::string_view name, ChakraType type,
                  const std::vector<std::uint64_t>& dependencies) {
    std::string packed;
    for (const std::uint64_t before : dependencies) WireWriter::append_varint(before, packed);
    WireWriter out;
    out.number(f::kId, id).bytes(f::kName, name);
    out.number(f::kType, static_cast<std::uint64_t>(type));
    if (!packed.empty()) out.bytes(f::kDataDependencies, packed);
    // Some readers treat a node without this attribute as a host node, and run host nodes one at a
    // time.
    out.message(f::kAttribute, attribute("is_cpu_op").number(f::kAttributeBool, 0));
    return out;
  }

  /// Chakra counts microseconds. Rounds begin and end: rounding up the durations of short ops would
  /// make the step longer. An attribute has the exact time.
  static void add_times(std::uint64_t start_ns, std::uint64_t duration_ns, WireWriter& out) {
    out.number(f::kStartMicros, start_ns / 1000);
    out.number(f::kDurationMicros, (start_ns + duration_ns) / 1000 - start_ns / 1000);
    out.message(f::kAttribute, number("duration_ns", duration_ns));
  }

  WireWriter position(std::size_t p) {
    const schedule::ScheduledOp& at = plan_.positions[p];
    const schedule::OpInfo& op = plan_.ops[at.op.value()];
    std::vector<std::uint64_t> dependencies;
    for (const std::size_t c : waits_for_[p]) dependencies.push_back(cache_op_id(c));
    std::vector<std::string> inputs;
    std::vector<std::string> outputs;
    std::uint64_t bytes = 0;
    for (const schedule::Operand& operand : at.operands) {
      const std::uint64_t size = plan_.storages[operand.storage.value()].bytes;
      for (auto [list, access] :
           {std::pair(&inputs, Access::kRead), std::pair(&outputs, Access::kWrite)}) {
        if (operand.access != access && operand.access != Access::kReadWrite) continue;
        list->push_back(key(operand.storage));
        list->push_back(std::to_string(size));
      }
      bytes += size;
    }
    WireWriter out = node(position_id(p), op.name, ChakraType::kCompute, dependencies);
    if (p > 0) {  // there is one stream, so the order is a control dependency
      std::string before;
      WireWriter::append_varint(position_id(p - 1), before);
      out.bytes(f::kControlDependencies, before);
    }
    const auto& starts = plan_.prediction.op_start_ns;
    add_times(p < starts.size() ? starts[p] : 0, op.duration_ns, out);
    for (const WireWriter& each :
         {list("inputs", inputs), list("outputs", outputs), number("tensor_size", bytes),
          text("phase", op.phase), number("fixed", op.fixed ? 1 : 0),
          number("recomputable", op.recomputable ? 1 : 0)}) {
      out.message(f::kAttribute, each);
    }
    return out;
  }

  static ChakraType type_of(CacheOpKind kind) {
    switch (kind) {
      case CacheOpKind::kPrefetch:
      case CacheOpKind::kStageIn: return ChakraType::kMemoryLoad;
      case CacheOpKind::kStore:
      case CacheOpKind::kStageOut: return ChakraType::kMemoryStore;
      case CacheOpKind::kDetach: return ChakraType::kMetadata;
    }
    return ChakraType::kMetadata;
  }

  WireWriter cache_op(std::size_t c) {
    const CacheOp& op = plan_.cache_ops[c];
    std::vector<std::uint64_t> dependencies;
    if (op.after_position) dependencies.push_back(position_id(op.after_position->value()));
    for (const schedule::CacheOpRef& before : op.after_cache_ops) {
      if (!before.previous_step) dependencies.push_back(cache_op_id(before.op.value()));
    }
    const std::string kind(schedule::cache_op_kind_name(op.kind));
    const std::string& storage = plan_.storages[op.storage.value()].name;
    WireWriter out = node(cache_op_id(c), kind + " " + storage, type_of(op.kind), dependencies);
    add_times(op.start_ns, std::max(op.end_ns, op.start_ns) - op.start_ns, out);
    const auto home =
        op.copy == 0 ? plan_.homes[op.storage.value()] : schedule::second_home(plan_, op.storage);
    for (const WireWriter& each :
         {text("cache_op", kind), text("tensor", key(op.storage)),
          number("tensor_size", op.range_end_bytes - op.range_begin_bytes),
          number("device_offset", op.device_offset_bytes),
          text("tier", home ? schedule::home_tier_name(home->tier) : std::string_view())}) {
      out.message(f::kAttribute, each);
    }
    return out;
  }

  const Schedule& plan_;
  std::vector<std::vector<std::size_t>> waits_for_;     ///< per position: cache ops
  std::vector<std::vector<std::size_t>> starts_after_;  ///< per gap between positions: cache ops
  std::string out_;
};

}  // namespace

std::string export_chakra(const Schedule& plan) {
  HO_CHECK(plan.homes.size() == plan.storages.size());
  return Exporter(plan).run();
}

}  // namespace ho::importers
