#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include "proto/files/convert.hpp"

namespace ho {

namespace {

// Writes the JSON itself, since protobuf's printer needs several GB for a million ops. The output
// is protobuf's JSON mapping with one storage or op per line: fields in lowerCamelCase, 64-bit
// numbers as strings, every field present.

void append_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", byte);
      out += code.data();
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_flag(std::string& out, std::string_view key, bool value) {
  out += ",\"";
  out += key;
  out += value ? "\":true" : "\":false";
}

void append_storage(std::string& out, const Storage& storage) {
  out += "{\"id\":" + std::to_string(storage.id) + ",\"name\":";
  append_text(out, storage.name);
  out += ",\"bytes\":\"" + std::to_string(storage.bytes) + "\",\"kind\":\"";
  out += storage_kind_name(storage.kind);
  out += '"';
  append_flag(out, "persistent", storage.persistent);
  append_flag(out, "pinned", storage.pinned);
  if (storage.hint != OffloadHint::kNone) {
    out += ",\"hint\":\"" + std::string(offload_hint_name(storage.hint)) + '"';
  }
  if (storage.copies != 0) out += ",\"copies\":" + std::to_string(storage.copies);
  out += '}';
}

/// The ids of the elements at `indices`.
template <typename Indices, typename Elements>
void append_ids(std::string& out, std::string_view key, const Indices& indices,
                const Elements& elements) {
  out += ",\"";
  out += key;
  out += "\":[";
  bool first = true;
  for (const auto index : indices) {
    if (!first) out += ',';
    first = false;
    out += std::to_string(elements.at(index.value()).id);
  }
  out += ']';
}

void append_op(std::string& out, const Graph& graph, const Op& op) {
  out += "{\"id\":" + std::to_string(op.id) + ",\"name\":";
  append_text(out, op.name);
  out += ",\"durationNs\":\"" + std::to_string(op.duration_ns) + '"';
  append_ids(out, "reads", op.reads, graph.storages);
  append_ids(out, "writes", op.writes, graph.storages);
  append_ids(out, "after", op.after, graph.ops);
  out += ",\"phase\":";
  append_text(out, op.phase);
  append_flag(out, "fixed", op.fixed);
  append_flag(out, "recomputable", op.recomputable);
  if (!op.group.empty()) {
    out += ",\"group\":";
    append_text(out, op.group);
  }
  out += '}';
}

}  // namespace

std::string graph_to_json(const Graph& graph) {
  std::string out = "{\"version\":1,\"name\":";
  append_text(out, graph.name);
  out += ",\n\"storages\":[";
  for (const Storage& storage : graph.storages) {
    out += &storage == graph.storages.data() ? "\n" : ",\n";
    append_storage(out, storage);
  }
  out += "],\n\"ops\":[";
  for (const Op& op : graph.ops) {
    out += &op == graph.ops.data() ? "\n" : ",\n";
    append_op(out, graph, op);
  }
  out += "]}\n";
  return out;
}

}  // namespace ho
