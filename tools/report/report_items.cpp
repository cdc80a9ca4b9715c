#include "tools/report/report_items.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ho::analyzer::detail {
namespace {

/// Items per lane that are drawn separately. Beyond it, adjacent short items are merged.
constexpr std::size_t kItemsMax = 20'000;
constexpr std::size_t kCurvePointsMax = 6'000;

}  // namespace

std::vector<Item> thin_out(std::vector<Item> items) {
  if (items.size() <= kItemsMax) return items;
  const std::uint64_t end_ns = items.back().span.end_ns;
  const std::uint64_t grain_ns = std::max<std::uint64_t>(1, end_ns / (kItemsMax / 2));
  std::vector<Item> out;
  for (const Item& item : items) {
    Item* last = out.empty() ? nullptr : &out.back();
    const bool joins = last != nullptr && last->color == item.color && item.stall_ns == 0 &&
                       item.span.end_ns >= last->span.start_ns &&
                       item.span.end_ns - last->span.start_ns <= grain_ns;
    if (joins) {
      last->span.end_ns = std::max(last->span.end_ns, item.span.end_ns);
      ++last->count;
    } else {
      out.push_back(item);
    }
  }
  return out;
}

std::vector<MemoryPoint> thin_out(const std::vector<MemoryPoint>& points, std::uint64_t end_ns) {
  if (points.size() <= kCurvePointsMax) return points;
  const std::uint64_t bin_ns = std::max<std::uint64_t>(1, end_ns / kCurvePointsMax);
  std::vector<MemoryPoint> out;
  for (const MemoryPoint& point : points) {
    const MemoryPoint binned{point.at_ns / bin_ns * bin_ns, point.bytes};
    if (!out.empty() && out.back().at_ns == binned.at_ns) {
      out.back().bytes = std::max(out.back().bytes, binned.bytes);
    } else {
      out.push_back(binned);
    }
  }
  return out;
}

}  // namespace ho::analyzer::detail
