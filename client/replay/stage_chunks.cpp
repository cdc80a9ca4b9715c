#include "client/replay/stage_chunks.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::CacheOpRef;

/// Whether `second` moves on, through the same staging slot, what `first` brings there.
bool moves_on(const CacheOp& first, const CacheOp& second) {
  const bool in = first.kind == CacheOpKind::kStageIn && second.kind == CacheOpKind::kPrefetch;
  const bool out = first.kind == CacheOpKind::kStore && second.kind == CacheOpKind::kStageOut;
  return (in || out) && first.storage == second.storage && first.ddr_offset_bytes &&
         first.ddr_offset_bytes == second.ddr_offset_bytes &&
         first.range_begin_bytes == second.range_begin_bytes &&
         first.range_end_bytes == second.range_end_bytes;
}

/// How one op is cut.
struct Cut {
  std::uint32_t first = 0;  ///< its first chunk, in the new list
  std::uint32_t count = 1;
  std::uint64_t bytes = 0;  ///< size of each chunk except the last; unused for one
};

Cut cut_of(const CacheOp& op, std::uint64_t chunk_bytes) {
  const std::uint64_t bytes = op.range_end_bytes - op.range_begin_bytes;
  Cut cut;
  cut.bytes = chunk_bytes;
  while ((bytes - 1) / cut.bytes >= kChunksPerOpMax) cut.bytes *= 2;
  cut.count = static_cast<std::uint32_t>((bytes - 1) / cut.bytes + 1);
  return cut;
}

/// Ops outside such pairs stay whole.
std::vector<Cut> cuts_of(const std::vector<CacheOp>& list, std::uint64_t chunk_bytes) {
  std::vector<Cut> cuts(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const CacheOp& op = list[i];
    if (!op.ddr_offset_bytes || op.range_end_bytes <= op.range_begin_bytes) continue;
    for (const CacheOpRef& ref : op.after_cache_ops) {
      HO_CHECK(ref.op.value() < list.size());
      if (!moves_on(list[ref.op.value()], op)) continue;
      cuts[i] = cut_of(op, chunk_bytes);
      cuts[ref.op.value()] = cuts[i];
    }
  }
  std::uint32_t next = 0;
  for (Cut& cut : cuts) {
    cut.first = next;
    next += cut.count;
  }
  return cuts;
}

std::vector<CacheOp> cut_list(const std::vector<CacheOp>& list, const std::vector<Cut>& cuts) {
  std::vector<CacheOp> made;
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (std::uint32_t k = 0; k < cuts[i].count; ++k) {
      CacheOp chunk = list[i];
      if (cuts[i].count > 1) {
        chunk.range_begin_bytes += k * cuts[i].bytes;
        chunk.range_end_bytes =
            std::min(chunk.range_begin_bytes + cuts[i].bytes, list[i].range_end_bytes);
      }
      chunk.after_cache_ops.clear();
      for (const CacheOpRef& ref : list[i].after_cache_ops) {
        HO_CHECK(ref.op.value() < list.size());
        const Cut& other = cuts[ref.op.value()];
        const bool own = moves_on(list[ref.op.value()], list[i]);
        HO_CHECK(!own || other.count == cuts[i].count);
        const std::uint32_t begin = own ? other.first + k : other.first;
        const std::uint32_t end = own ? begin + 1 : other.first + other.count;
        for (std::uint32_t at = begin; at < end; ++at) {
          chunk.after_cache_ops.push_back({CacheOpIndex(at), ref.previous_step});
        }
      }
      made.push_back(std::move(chunk));
    }
  }
  return made;
}

}  // namespace

ChunkedOps chunk_stages(const schedule::Schedule& schedule, std::uint64_t chunk_bytes) {
  HO_CHECK(chunk_bytes > 0);
  ChunkedOps made;
  made.schedule.positions.resize(schedule.positions.size());
  made.schedule.storages = schedule.storages;
  made.schedule.homes = schedule.homes;
  const auto cut = [&](const std::vector<CacheOp>& list, std::vector<CacheOp>& into) {
    const auto cuts = cuts_of(list, chunk_bytes);
    into = cut_list(list, cuts);
    std::vector<std::uint32_t> first;
    for (const Cut& one : cuts) first.push_back(one.first);
    first.push_back(static_cast<std::uint32_t>(into.size()));
    return first;
  };
  made.first = cut(schedule.cache_ops, made.schedule.cache_ops);
  made.first_prologue = cut(schedule.prologue, made.schedule.prologue);
  made.first_epilogue = cut(schedule.epilogue, made.schedule.epilogue);
  return made;
}

}  // namespace ho::client
