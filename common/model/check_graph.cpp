#include "common/model/check_graph.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "common/text/utf8.hpp"

namespace ho {

namespace {

constexpr std::uint64_t kSumBytesMax = std::uint64_t{1} << 56U;

std::string describe(std::string_view what, std::uint32_t id, std::string_view name) {
  constexpr std::size_t kNameBytesMax = 80;
  std::string text = std::string(what) + " " + std::to_string(id);
  if (name.empty()) return text;
  text += " (\"";
  for (const char c : name.substr(0, kNameBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7f || c == '"' ? '?' : c;
  }
  text += name.size() > kNameBytesMax ? "...\")" : "\")";
  return text;
}

std::string describe(const Storage& storage) { return describe_storage(storage.id, storage.name); }
std::string describe(const Op& op) { return describe_op(op.id, op.name); }

/// The message for an id that occurs twice.
std::string twice(const char* what, std::uint32_t id) {
  return std::string(what) + ": id " + std::to_string(id) + " occurs twice" +
         (id == 0 ? "; a missing id counts as 0" : "");
}

/// The first id that occurs twice, or nullopt.
template <typename Elements>
std::optional<std::uint32_t> repeated_id(const Elements& elements) {
  std::vector<std::uint32_t> ids;
  ids.reserve(elements.size());
  for (const auto& element : elements) ids.push_back(element.id);
  std::sort(ids.begin(), ids.end());
  const auto at = std::adjacent_find(ids.begin(), ids.end());
  if (at == ids.end()) return std::nullopt;
  return *at;
}

/// Files hold names in UTF-8: one with others could not be read back.
Result<void> check_text(std::string_view field, std::string_view text) {
  if (is_utf8(text)) return {};
  return bad_input(std::string(field) + ": not UTF-8");
}

Result<void> check_storages(const Graph& graph) {
  if (const auto id = repeated_id(graph.storages)) {
    return bad_input(twice("storages", *id));
  }
  // Keeps sums of sizes far from 2^63, also when each size is rounded up to an alignment.
  std::uint64_t sum_bytes = 0;
  for (const Storage& storage : graph.storages) {
    const auto fail = [&storage](const std::string& reason) {
      return bad_input(describe(storage) + ": " + reason);
    };
    if (auto name = check_text("name", storage.name); !name) {
      return name.error().at(describe(storage));
    }
    if (storage.bytes == 0) return fail("bytes: must be at least 1");
    if (storage.bytes > kBytesMax) {
      return fail("bytes: " + std::to_string(storage.bytes) + " is more than 2^50");
    }
    sum_bytes += storage.bytes;
    if (sum_bytes > kSumBytesMax) return fail("bytes: the sum of all storages is more than 2^56");
    if (storage.kind > kStorageKindLast) return fail("kind: unknown value");
    if (storage.hint > OffloadHint::kNever) return fail("hint: unknown value");
    if (storage.copies > kCopiesMax) return fail("copies: more than 2");
    if (storage.kind == StorageKind::kWorkspace && storage.persistent) {
      return fail("persistent: a WORKSPACE does not outlive its op");
    }
    if (storage.kind == StorageKind::kOutput && !storage.persistent) {
      return fail("persistent: an OUTPUT outlives its step");
    }
  }
  return {};
}

/// Walks the ops in program order and checks each op against the ops before it.
class OpChecker {
 public:
  explicit OpChecker(const Graph& graph)
      : graph_(graph), written_(graph.storages.size()), last_list_(graph.storages.size()) {}

  Result<void> run() {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (auto checked = check(i); !checked) return checked.error().at(describe(graph_.ops[i]));
    }
    for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
      const Storage& storage = graph_.storages[s];
      if (storage.kind == StorageKind::kWorkspace && !written_[s]) {
        return bad_input(describe(storage) + ": kind: a WORKSPACE must be in the writes of one op");
      }
      if (storage.kind == StorageKind::kOutput && !written_[s]) {
        return bad_input(describe(storage) + ": kind: an OUTPUT must be in the writes of an op");
      }
    }
    return {};
  }

 private:
  Result<void> check(std::size_t i) {
    const Op& op = graph_.ops[i];
    if (auto name = check_text("name", op.name); !name) return name;
    if (auto phase = check_text("phase", op.phase); !phase) return phase;
    if (auto group = check_text("group", op.group); !group) return group;
    if (!op.group.empty() && !op.fixed) return bad_input("group: a collective is fixed");
    const auto sum = duration_ns_ + std::min(op.duration_ns, kDurationNsMax);
    if (op.duration_ns > kDurationNsMax || sum > kDurationNsMax) {
      return bad_input("duration_ns: the sum of all durations is more than 2^62");
    }
    duration_ns_ = sum;
    if (auto listed = check_list(op.reads, "reads"); !listed) return listed;
    for (const StorageIndex index : op.reads) {
      const Storage& storage = graph_.storages[index.value()];
      if (storage.kind == StorageKind::kWorkspace) {
        return bad_input("reads: " + describe(storage) + " is a WORKSPACE, which no op may read");
      }
      if (storage.kind == StorageKind::kOutput && !written_[index.value()]) {
        return bad_input("reads: " + describe(storage) +
                         " is an OUTPUT, but no op before this one overwrites it");
      }
      if (!storage.persistent && storage.kind != StorageKind::kInput && !written_[index.value()]) {
        return bad_input(
            "reads: " + describe(storage) +
            " is read before an op wrote it, and it is neither persistent nor an INPUT");
      }
    }
    if (auto listed = check_list(op.writes, "writes"); !listed) return listed;
    for (const StorageIndex index : op.writes) {
      const Storage& storage = graph_.storages[index.value()];
      if (storage.kind == StorageKind::kWorkspace && written_[index.value()]) {
        return bad_input("writes: " + describe(storage) + " is a WORKSPACE of another op");
      }
      written_[index.value()] = true;
    }
    return check_after(i);
  }

  Result<void> check_list(const std::vector<StorageIndex>& list, const char* field) {
    ++list_number_;
    for (const StorageIndex index : list) {
      if (index.value() >= graph_.storages.size()) {
        return bad_input(std::string(field) + ": storage index " + std::to_string(index.value()) +
                         " does not exist");
      }
      auto& last = last_list_[index.value()];
      if (last == list_number_) {
        return bad_input(std::string(field) + ": " + describe(graph_.storages[index.value()]) +
                         " is named twice");
      }
      last = list_number_;
    }
    return {};
  }

  Result<void> check_after(std::size_t i) const {
    for (const OpIndex before : graph_.ops[i].after) {
      if (before.value() >= graph_.ops.size()) {
        return bad_input("after: op index " + std::to_string(before.value()) + " does not exist");
      }
      if (before.value() == i) return bad_input("after: names the op itself: a cycle");
      if (before.value() < i) continue;
      const std::string other = describe(graph_.ops[before.value()]);
      if (depends(before.value(), i)) {
        return bad_input("after: " + other + " depends on this op: a cycle");
      }
      return bad_input("after: names a later op, " + other + "; ops are listed in program order");
    }
    return {};
  }

  /// Whether op `later` depends on op `earlier` through data and `after`. Takes linear time; runs
  /// at most once per graph, since its caller then refuses the graph.
  [[nodiscard]] bool depends(std::size_t later, std::size_t earlier) const {
    std::vector<char> reached(graph_.ops.size());
    // Per storage: whether the last writer, or a reader since that write, depends on `earlier`.
    std::vector<char> written_by(graph_.storages.size());
    std::vector<char> read_by(graph_.storages.size());
    for (std::size_t i = earlier; i <= later; ++i) {
      const Op& op = graph_.ops[i];
      bool hit = i == earlier;
      for (const OpIndex b : op.after)
        hit = hit || (b.value() < reached.size() && reached[b.value()]);
      // The operands of ops after the checked one have not been checked yet.
      const auto known = [this](StorageIndex s) { return s.value() < graph_.storages.size(); };
      for (const StorageIndex s : op.reads) hit = hit || (known(s) && written_by[s.value()]);
      for (const StorageIndex s : op.writes) {
        hit = hit || (known(s) && (written_by[s.value()] || read_by[s.value()]));
      }
      reached[i] = hit;
      for (const StorageIndex s : op.reads) {
        if (known(s) && hit) read_by[s.value()] = 1;
      }
      for (const StorageIndex s : op.writes) {
        if (!known(s)) continue;
        written_by[s.value()] = hit;
        read_by[s.value()] = 0;
      }
    }
    return reached[later] != 0;
  }

  const Graph& graph_;
  std::uint64_t duration_ns_ = 0;
  std::vector<bool> written_;
  std::uint64_t list_number_ = 0;
  std::vector<std::uint64_t> last_list_;  // per storage: the number of the last list that named it
};

Result<void> check_link(const Link& link, const std::string& field) {
  if (link.bytes_per_s == 0) return bad_input(field + ".bytes_per_s: 0 or missing");
  if (link.bytes_per_s > kBytesMax) return bad_input(field + ".bytes_per_s: more than 2^50");
  constexpr std::uint64_t kLatencyNsMax = 1'000'000'000'000;  // 1000 s
  if (link.latency_ns > kLatencyNsMax) return bad_input(field + ".latency_ns: more than 1000 s");
  return {};
}

Result<void> check_tier(const std::optional<TierSpec>& tier, const std::string& field) {
  if (!tier) return {};
  if (tier->capacity_bytes > kBytesMax) return bad_input(field + ".capacity_bytes: more than 2^50");
  if (auto checked = check_link(tier->read, field + ".read"); !checked) return checked;
  return check_link(tier->write, field + ".write");
}

Result<void> check_shared(const std::vector<SharedLink>& links) {
  for (std::size_t i = 0; i < links.size(); ++i) {
    const SharedLink& link = links[i];
    if (link.name.empty()) return bad_input("links[" + std::to_string(i) + "].name: missing");
    const auto same = [&](const SharedLink& other) { return other.name == link.name; };
    if (std::any_of(links.begin(), links.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      return bad_input("links: two are named \"" + link.name + "\"; give each its own name");
    }
    const std::string field = "links \"" + link.name + "\"";
    for (const auto& [bytes_per_s, name] :
         {std::pair(link.read_bytes_per_s, ".read_bytes_per_s"),
          std::pair(link.write_bytes_per_s, ".write_bytes_per_s")}) {
      if (bytes_per_s == 0) return bad_input(field + name + ": 0 or missing");
      if (bytes_per_s > kBytesMax) return bad_input(field + name + ": more than 2^50");
    }
  }
  return {};
}

/// One tier of a rank's path.
Result<void> check_crossed(const std::vector<std::string>& names, bool has_tier,
                           const std::string& field, const std::vector<SharedLink>& links) {
  if (!names.empty() && !has_tier) return bad_input(field + ": the hardware has no such tier");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto named = [&](const SharedLink& link) { return link.name == names[i]; };
    if (std::none_of(links.begin(), links.end(), named)) {
      return bad_input(field + ": there is no link \"" + names[i] + "\" in links");
    }
    const auto before = names.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(names.begin(), before, names[i]) != before) {
      return bad_input(field + ": names link \"" + names[i] + "\" twice");
    }
  }
  return {};
}

Result<void> check_paths(const Hardware& hardware) {
  if (!hardware.links.empty() && hardware.paths.empty()) {
    return bad_input("paths: missing; say which links each rank crosses, or name one path for all");
  }
  for (std::size_t k = 0; k < hardware.paths.size(); ++k) {
    const RankPath& path = hardware.paths[k];
    const std::string field = "paths[" + std::to_string(k) + "]";
    const auto check = [&](const auto& names, bool has_tier, const char* tier) {
      return check_crossed(names, has_tier, field + tier, hardware.links);
    };
    auto checked = check(path.local_ddr, hardware.local_ddr.has_value(), ".local_ddr");
    if (!checked) return checked;
    checked = check(path.remote_ddr, hardware.remote_ddr.has_value(), ".remote_ddr");
    if (!checked) return checked;
    checked = check(path.flash, hardware.flash.has_value(), ".flash");
    if (!checked) return checked;
  }
  return {};
}

}  // namespace

std::string describe_op(std::uint32_t id, std::string_view name) {
  return describe("op", id, name);
}

std::string describe_storage(std::uint32_t id, std::string_view name) {
  return describe("storage", id, name);
}

std::string op_label(std::uint32_t id, const std::string& name) {
  return name.empty() ? describe_op(id, name) : name;
}

std::string storage_label(std::uint32_t id, const std::string& name) {
  return name.empty() ? describe_storage(id, name) : name;
}

Result<void> check_graph(const Graph& graph) {
  if (graph.ops.empty()) return bad_input("ops: the graph has none");
  if (graph.ops.size() > UINT32_MAX / 4 || graph.storages.size() > UINT32_MAX / 4) {
    return bad_input("more than 2^30 ops or storages");
  }
  if (auto name = check_text("name", graph.name); !name) return name;
  if (const auto id = repeated_id(graph.ops)) {
    return bad_input(twice("ops", *id));
  }
  if (auto checked = check_storages(graph); !checked) return checked;
  return OpChecker(graph).run();
}

Result<void> check_hardware(const Hardware& hardware) {
  if (hardware.device_bytes > kBytesMax) return bad_input("device_bytes: more than 2^50");
  if (auto checked = check_tier(hardware.local_ddr, "local_ddr"); !checked) return checked;
  if (auto checked = check_tier(hardware.remote_ddr, "remote_ddr"); !checked) return checked;
  if (auto checked = check_tier(hardware.flash, "flash"); !checked) return checked;
  if (hardware.device_port_read) {
    auto checked = check_link(*hardware.device_port_read, "device_port_read");
    if (!checked) return checked;
  }
  if (hardware.device_port_write) {
    auto checked = check_link(*hardware.device_port_write, "device_port_write");
    if (!checked) return checked;
  }
  if (auto checked = check_shared(hardware.links); !checked) return checked;
  return check_paths(hardware);
}

}  // namespace ho
