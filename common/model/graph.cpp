#include "common/model/graph.hpp"

#include <cstddef>
#include <span>

#include "common/base/checksum.hpp"

namespace ho {

std::string_view offload_hint_name(OffloadHint hint) {
  switch (hint) {
    case OffloadHint::kNone: return "HINT_NONE";
    case OffloadHint::kPreferRemote: return "PREFER_REMOTE";
    case OffloadHint::kNever: return "NEVER";
  }
  return "HINT_NONE";
}

std::string_view storage_kind_name(StorageKind kind) {
  switch (kind) {
    case StorageKind::kUnspecified: return "KIND_UNSPECIFIED";
    case StorageKind::kActivation: return "ACTIVATION";
    case StorageKind::kWeight: return "WEIGHT";
    case StorageKind::kGradient: return "GRADIENT";
    case StorageKind::kOptimizerState: return "OPTIMIZER_STATE";
    case StorageKind::kKvCache: return "KV_CACHE";
    case StorageKind::kInput: return "INPUT";
    case StorageKind::kWorkspace: return "WORKSPACE";
    case StorageKind::kOutput: return "OUTPUT";
  }
  return "KIND_UNSPECIFIED";
}

namespace {

/// Serializes values as little-endian bytes, so that the digest is the same on every machine.
class Canonical {
 public:
  void number(std::uint64_t value) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      buffer_.push_back(static_cast<std::byte>(value >> shift));
    }
    if (buffer_.size() >= kFlushBytes) flush();
  }
  void text(std::string_view value) {
    number(value.size());
    for (const char c : value) buffer_.push_back(static_cast<std::byte>(c));
  }
  [[nodiscard]] std::uint64_t digest() {
    flush();
    return stream_.digest();
  }

 private:
  static constexpr std::size_t kFlushBytes = 64 * 1024;
  void flush() {
    stream_.update(buffer_);
    buffer_.clear();
  }
  std::vector<std::byte> buffer_;
  ChecksumStream stream_;
};

}  // namespace

std::uint64_t fingerprint(const Graph& graph) {
  Canonical out;
  out.text(graph.name);
  out.number(graph.storages.size());
  for (const Storage& storage : graph.storages) {
    out.number(storage.id);
    out.text(storage.name);
    out.number(storage.bytes);
    out.number(static_cast<std::uint64_t>(storage.kind));
    out.number((storage.persistent ? 1U : 0U) | (storage.pinned ? 2U : 0U) |
               static_cast<unsigned>(storage.hint) << 2U);
  }
  out.number(graph.ops.size());
  for (const Op& op : graph.ops) {
    out.number(op.id);
    out.text(op.name);
    out.number(op.duration_ns);
    out.number(op.reads.size());
    for (const StorageIndex storage : op.reads) out.number(storage.value());
    out.number(op.writes.size());
    for (const StorageIndex storage : op.writes) out.number(storage.value());
    out.number(op.after.size());
    for (const OpIndex before : op.after) out.number(before.value());
    out.text(op.phase);
    out.number((op.fixed ? 1U : 0U) | (op.recomputable ? 2U : 0U) | (op.group.empty() ? 0U : 4U));
    if (!op.group.empty()) out.text(op.group);
  }
  return out.digest();
}

}  // namespace ho
