#include "tools/analyzer/emit/copies.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::analyzer {
namespace {

using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;

/// Where CopiesByKind has what is wanted for persistent state whose kind has no number of its own.
constexpr auto kOfPersistent = static_cast<std::size_t>(StorageKind::kUnspecified);

/// Each list refers to itself only.
void add_second_stores(const Graph& graph, std::vector<CacheOp>& list) {
  const auto doubled = [&](const CacheOp& op) {
    return op.kind == CacheOpKind::kStore && graph.storages[op.storage.value()].copies > 1;
  };
  // Where each op stands afterwards: a second Store directly follows the first.
  std::vector<std::uint32_t> place;
  place.reserve(list.size());
  std::uint32_t next = 0;
  for (const CacheOp& op : list) {
    place.push_back(next);
    next += doubled(op) ? 2 : 1;
  }
  if (next == list.size()) return;
  std::vector<CacheOp> out;
  out.reserve(next);
  for (CacheOp& op : list) {
    const auto refs = std::exchange(op.after_cache_ops, {});
    for (const schedule::CacheOpRef& ref : refs) {
      const std::uint32_t to = place[ref.op.value()];
      op.after_cache_ops.push_back({CacheOpIndex(to), ref.previous_step});
      if (!doubled(list[ref.op.value()])) continue;
      op.after_cache_ops.push_back({CacheOpIndex(to + 1), ref.previous_step});
    }
  }
  for (const CacheOp& op : list) {
    out.push_back(op);
    if (!doubled(op)) continue;
    out.push_back(op);
    out.back().copy = 1;
  }
  list = std::move(out);
}

}  // namespace

Result<CopiesByKind> parse_copies(const std::vector<std::string>& texts) {
  CopiesByKind out{};
  for (const std::string& text : texts) {
    const std::size_t sign = text.find('=');
    const std::string number = sign == std::string::npos ? text : text.substr(sign + 1);
    if (number != "1" && number != "2") {
      return Error(Errc::kInvalidArgument, text + ": copies are 1 or 2");
    }
    const auto copies = static_cast<std::uint8_t>(number == "1" ? 1 : 2);
    if (sign == std::string::npos) {
      out[kOfPersistent] = copies;
      continue;
    }
    std::string name = text.substr(0, sign);
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    std::string known;
    bool found = false;
    for (std::size_t k = 1; k < out.size(); ++k) {
      const auto kind = static_cast<StorageKind>(k);
      if (kind == StorageKind::kWorkspace) continue;
      known += (known.empty() ? "" : ", ") + std::string(storage_kind_name(kind));
      if (name != storage_kind_name(kind)) continue;
      out[k] = copies;
      found = true;
    }
    if (!found) {
      return Error(Errc::kInvalidArgument, text + ": the kinds are " + known);
    }
  }
  return out;
}

std::uint32_t copies_of(const Storage& storage, const CopiesByKind& wanted,
                        const Hardware& hardware) {
  if (storage.kind == StorageKind::kWorkspace) return 1;
  if (storage.copies > 0) return storage.copies;
  const auto kind = static_cast<std::size_t>(storage.kind);
  HO_CHECK(kind < wanted.size());
  if (wanted[kind] > 0) return wanted[kind];
  if (storage.persistent && wanted[kOfPersistent] > 0) return wanted[kOfPersistent];
  const bool state = storage.persistent && (storage.kind == StorageKind::kWeight ||
                                            storage.kind == StorageKind::kOptimizerState);
  return state && hardware.failure_domains > 1 ? 2 : 1;
}

bool asks_for_copies(const Graph& graph, const CopiesByKind& wanted) {
  const auto asks = [](std::uint32_t copies) { return copies > 1; };
  return std::any_of(wanted.begin(), wanted.end(), asks) ||
         std::any_of(graph.storages.begin(), graph.storages.end(),
                     [&](const Storage& storage) { return asks(storage.copies); });
}

std::optional<Graph> with_copies(const Graph& graph, const CopiesByKind& wanted,
                                 const Hardware& hardware) {
  const auto doubled = [&](const Storage& storage) {
    return copies_of(storage, wanted, hardware) > 1;
  };
  if (std::none_of(graph.storages.begin(), graph.storages.end(), doubled)) return std::nullopt;
  Graph out = graph;
  for (Storage& storage : out.storages) storage.copies = copies_of(storage, wanted, hardware);
  return out;
}

std::uint64_t second_home_bytes(const Graph& graph, std::uint64_t align_bytes) {
  std::uint64_t bytes = 0;
  for (const Storage& storage : graph.storages) {
    if (storage.copies > 1) bytes += align_up(storage.bytes, align_bytes);
  }
  return bytes;
}

void add_second_stores(const Graph& graph, Draft& draft) {
  add_second_stores(graph, draft.cache_ops);
  add_second_stores(graph, draft.epilogue);
}

std::uint64_t place_second_homes(const Graph& graph, std::uint64_t align_bytes,
                                 schedule::HomeTier tier, std::uint64_t begin_bytes,
                                 schedule::Schedule& out) {
  std::uint64_t end = begin_bytes;
  for (std::size_t s = 0; s < graph.storages.size(); ++s) {
    if (graph.storages[s].copies < 2 || !out.homes[s]) continue;
    out.second_homes.resize(graph.storages.size());
    out.second_homes[s] = schedule::HomeSlot{tier, end};
    end += align_up(graph.storages[s].bytes, align_bytes);
  }
  return end;
}

}  // namespace ho::analyzer
