#include "tools/importers/draft.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"

namespace ho::importers {

namespace {

/// Length of the UTF-8 sequence at the start of `text`; 0 if there is none.
std::size_t sequence_bytes(std::string_view text) {
  const auto at = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0U) != 0x80) return 0;
  }
  // Overlong forms, surrogates and code points beyond U+10FFFF.
  const unsigned char second = at(1);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f)) return 0;
  if ((lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) return 0;
  return length;
}

void sort_unique(std::vector<OpIndex>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

std::string clean_name(std::string_view name) {
  constexpr std::size_t kBytesMax = 200;
  std::string out;
  while (!name.empty() && out.size() < kBytesMax) {
    const std::size_t length = sequence_bytes(name);
    const auto lead = static_cast<unsigned char>(name.front());
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      out += '?';
    } else {
      out += name.substr(0, length);
    }
    name.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::uint32_t Draft::add_storage(Storage storage) {
  storage.name = clean_name(storage.name);
  storages_.push_back(std::move(storage));
  return static_cast<std::uint32_t>(storages_.size() - 1);
}

std::uint32_t Draft::add_op(DraftOp op) {
  op.name = clean_name(op.name);
  op.phase = clean_name(op.phase);
  op.group = clean_name(op.group);
  ops_.push_back(std::move(op));
  dropped_.push_back(0);
  return static_cast<std::uint32_t>(ops_.size() - 1);
}

void Draft::drop_op(std::uint32_t number) {
  HO_CHECK(number < ops_.size());
  dropped_[number] = 1;
}

Result<std::uint64_t> Draft::duration_of(const DraftOp& op) {
  if (op.duration_ns) {
    const double ns = *op.duration_ns;
    if (!std::isfinite(ns) || ns < 0 || ns > static_cast<double>(kDurationNsMax)) {
      return Error(Errc::kInvalidArgument,
                   "a duration must be a number of 0 or more, below 2^62 ns");
    }
    ++notes_.measured_ops;
    return static_cast<std::uint64_t>(std::llround(ns));
  }
  const auto sum = [this](const std::vector<std::uint32_t>& list) {
    double all = 0;
    for (const std::uint32_t s : list) all += static_cast<double>(storages_.at(s).bytes);
    return all;
  };
  const bool by_network = op.communication && notes_.rates.network_bytes_per_s;
  double bytes = by_network ? op.network_bytes : op.bytes;
  if (bytes <= 0) {
    bytes = by_network ? std::max(sum(op.reads), sum(op.writes)) : sum(op.reads) + sum(op.writes);
  }
  const double by_flops = std::max(op.flops, 0.0) / notes_.rates.flops_per_s;
  const double by_bytes =
      bytes / (by_network ? *notes_.rates.network_bytes_per_s : notes_.rates.bytes_per_s);
  const double ns = std::ceil(std::max(by_flops, by_bytes) * 1e9);
  if (!std::isfinite(ns) || ns > static_cast<double>(kDurationNsMax)) {
    return Error(Errc::kInvalidArgument, "the duration from FLOPs and bytes is more than 2^62 ns");
  }
  ++notes_.derived_ops;
  if (by_flops > by_bytes) {
    ++notes_.flops_bound_ops;
  } else if (by_network) {
    ++notes_.network_ops;
  }
  return static_cast<std::uint64_t>(ns);
}

void Draft::resolve_operands(const DraftOp& in, const std::vector<std::uint32_t>& index_of,
                             Op& out) {
  const auto seen = [this](std::uint32_t s) {
    return std::exchange(last_list_[s], list_number_) == list_number_;
  };
  std::vector<std::uint32_t> undefined;
  ++list_number_;
  for (const std::uint32_t s : in.reads) {
    if (index_of.at(s) == kNone || seen(s)) continue;
    const Storage& storage = storages_[s];
    if (written_[s] == 0 && !storage.persistent && storage.kind != StorageKind::kInput) {
      undefined.push_back(s);
    } else {
      out.reads.push_back(StorageIndex(index_of[s]));
    }
  }
  ++list_number_;
  for (const auto& list : {in.writes, undefined}) {
    for (const std::uint32_t s : list) {
      if (index_of.at(s) == kNone || seen(s)) continue;
      out.writes.push_back(StorageIndex(index_of[s]));
      written_[s] = 1;
    }
  }
}

void Draft::resolve_after(const DraftOp& in, const std::vector<std::uint32_t>& op_index, Op& out) {
  for (std::uint32_t before : in.after) {
    HO_CHECK(before < ops_.size());
    // Replaces a dropped op by the first op that it waited for. This suffices: no op reads a result
    // of a dropped op.
    while (before != kNone && dropped_[before] != 0) {
      before = ops_[before].after.empty() ? kNone : ops_[before].after.front();
    }
    if (before != kNone) out.after.push_back(OpIndex(op_index[before]));
  }
  sort_unique(out.after);
}

Result<Imported> Draft::finish(std::string_view name, const Rates& rates) && {
  HO_CHECK(rates.flops_per_s > 0 && rates.bytes_per_s > 0);
  HO_CHECK(rates.network_bytes_per_s.value_or(1) > 0);
  notes_.rates = rates;
  Imported out;
  out.graph.name = clean_name(name);
  std::vector<char> used(storages_.size());
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (dropped_[i] != 0) continue;
    for (const auto* list : {&ops_[i].reads, &ops_[i].writes}) {
      for (const std::uint32_t s : *list) used.at(s) = 1;
    }
  }
  std::vector<std::uint32_t> index_of(storages_.size(), kNone);
  for (std::size_t s = 0; s < storages_.size(); ++s) {
    Storage storage = storages_[s];
    if (storage.bytes == 0 || (used[s] == 0 && !storage.persistent)) continue;
    index_of[s] = static_cast<std::uint32_t>(out.graph.storages.size());
    storage.id = index_of[s];
    out.graph.storages.push_back(std::move(storage));
  }
  written_.assign(storages_.size(), 0);
  last_list_.assign(storages_.size(), 0);
  std::vector<std::uint32_t> op_index(ops_.size(), kNone);
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (dropped_[i] != 0) continue;
    const DraftOp& in = ops_[i];
    Op op;
    op.id = static_cast<std::uint32_t>(out.graph.ops.size());
    op_index[i] = op.id;
    op.name = in.name;
    op.phase = in.phase;
    op.group = in.group;
    op.fixed = in.fixed || !op.group.empty();
    op.recomputable = in.recomputable;
    const auto duration = duration_of(in);
    if (!duration) return duration.error().at(describe_op(op.id, op.name));
    op.duration_ns = *duration;
    resolve_operands(in, index_of, op);
    resolve_after(in, op_index, op);
    out.graph.ops.push_back(std::move(op));
  }
  if (auto checked = check_graph(out.graph); !checked) return checked.error();
  out.notes = std::move(notes_);
  return out;
}

}  // namespace ho::importers
