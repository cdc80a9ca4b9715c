#include <google/protobuf/arena.h>
#include <graph.pb.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/model/check_graph.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/convert_parts.hpp"
#include "proto/files/file.hpp"
#include "proto/files/message.hpp"

namespace ho {

namespace v1 = hyperoffload::v1;

namespace {

constexpr std::uint32_t kVersion = 1;

/// Maps ids of a file to dense indices. Sorted instead of hashed: the author of a file chooses the
/// ids and could make a hash table slow.
class IdIndex {
 public:
  template <typename Messages>
  explicit IdIndex(const Messages& messages) {
    entries_.reserve(static_cast<std::size_t>(messages.size()));
    for (const auto& message : messages) {
      entries_.emplace_back(message.id(), static_cast<std::uint32_t>(entries_.size()));
    }
    std::sort(entries_.begin(), entries_.end());
  }

  [[nodiscard]] std::optional<std::uint32_t> find(std::uint32_t id) const {
    // Ids are usually 0, 1, 2, ...: then the entry is at its own index.
    if (id < entries_.size() && entries_[id].first == id) return entries_[id].second;
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), std::pair(id, 0U));
    if (at == entries_.end() || at->first != id) return std::nullopt;
    return at->second;
  }

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entries_;
};

template <typename Index, typename Ids>
Result<std::vector<Index>> resolve(const Ids& ids, const IdIndex& index, const char* field,
                                   const char* what) {
  std::vector<Index> out;
  out.reserve(static_cast<std::size_t>(ids.size()));
  for (const std::uint32_t id : ids) {
    const auto found = index.find(id);
    if (!found) {
      return bad_input(std::string(field) + ": " + what + " " + std::to_string(id) +
                       " does not exist");
    }
    out.push_back(Index(*found));
  }
  return out;
}

Result<Op> op_from(const v1::Op& in, const IdIndex& storages, const IdIndex& ops) {
  Op op;
  op.id = in.id();
  op.name = in.name();
  op.duration_ns = in.duration_ns();
  op.phase = in.phase();
  op.group = in.group();
  op.fixed = in.fixed() || !op.group.empty();
  op.recomputable = in.recomputable();
  auto reads = resolve<StorageIndex>(in.reads(), storages, "reads", "storage");
  if (!reads) return reads.error();
  auto writes = resolve<StorageIndex>(in.writes(), storages, "writes", "storage");
  if (!writes) return writes.error();
  auto after = resolve<OpIndex>(in.after(), ops, "after", "op");
  if (!after) return after.error();
  op.reads = *std::move(reads);
  op.writes = *std::move(writes);
  op.after = *std::move(after);
  return op;
}

Result<Graph> graph_from(const v1::Graph& message) {
  if (message.version() != kVersion) {
    return Error(Errc::kUnsupported, "version: " + std::to_string(message.version()) +
                                         "; this program reads version 1");
  }
  Graph graph;
  graph.name = message.name();
  graph.storages.reserve(static_cast<std::size_t>(message.storages_size()));
  for (const v1::Storage& in : message.storages()) {
    auto storage = wire::from_wire(in);
    if (!storage) return storage.error().at(describe_storage(in.id(), in.name()));
    graph.storages.push_back(*std::move(storage));
  }
  const IdIndex storages(message.storages());
  const IdIndex ops(message.ops());
  graph.ops.reserve(static_cast<std::size_t>(message.ops_size()));
  for (const v1::Op& in : message.ops()) {
    auto op = op_from(in, storages, ops);
    if (!op) return op.error().at(describe_op(in.id(), in.name()));
    graph.ops.push_back(*std::move(op));
  }
  if (auto checked = check_graph(graph); !checked) return checked.error();
  return graph;
}

}  // namespace

Result<Graph> parse_graph(std::string_view bytes, GraphEncoding encoding, const std::string& file) {
  google::protobuf::Arena arena;  // millions of small messages, freed together
  auto& message = *google::protobuf::Arena::CreateMessage<v1::Graph>(&arena);
  if (auto parsed = wire::parse(bytes, encoding, message); !parsed) return parsed.error().at(file);
  auto graph = graph_from(message);
  if (!graph) return graph.error().at(file);
  return graph;
}

Result<Graph> read_graph_file(const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  const auto bytes = read_whole_file(path, wire::kInputBytesMax);
  if (!bytes) return bytes.error();
  return parse_graph(*bytes, *encoding, path);
}

Result<std::vector<OpTime>> read_op_times_file(const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  const auto bytes = read_whole_file(path, wire::kInputBytesMax);
  if (!bytes) return bytes.error();
  google::protobuf::Arena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<v1::Graph>(&arena);
  if (auto parsed = wire::parse(*bytes, *encoding, message); !parsed) {
    return parsed.error().at(path);
  }
  if (message.version() > kVersion) {
    return Error(Errc::kUnsupported,
                 path + ": version " + std::to_string(message.version()) + " is unknown");
  }
  if (message.ops().empty()) return Error(Errc::kInvalidArgument, path + ": contains no ops");
  std::vector<OpTime> out;
  out.reserve(static_cast<std::size_t>(message.ops_size()));
  for (const v1::Op& op : message.ops()) {
    out.push_back({op.id(), op.duration_ns(), op.name()});
  }
  return out;
}

std::string serialize_graph(const Graph& graph, GraphEncoding encoding) {
  if (encoding == GraphEncoding::kJson) return graph_to_json(graph);
  google::protobuf::Arena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<v1::Graph>(&arena);
  message.set_version(kVersion);
  message.set_name(graph.name);
  for (const Storage& storage : graph.storages) wire::to_wire(storage, *message.add_storages());
  for (const Op& op : graph.ops) {
    v1::Op& out = *message.add_ops();
    out.set_id(op.id);
    out.set_name(op.name);
    out.set_duration_ns(op.duration_ns);
    for (const StorageIndex s : op.reads) out.add_reads(graph.storages.at(s.value()).id);
    for (const StorageIndex s : op.writes) out.add_writes(graph.storages.at(s.value()).id);
    for (const OpIndex before : op.after) out.add_after(graph.ops.at(before.value()).id);
    out.set_phase(op.phase);
    out.set_fixed(op.fixed);
    out.set_recomputable(op.recomputable);
    out.set_group(op.group);
  }
  return wire::serialize(message, encoding);
}

Result<void> check_graph_path(const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  return {};
}

Result<void> write_graph_file(const Graph& graph, const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  return write_whole_file(path, serialize_graph(graph, *encoding));
}

}  // namespace ho
