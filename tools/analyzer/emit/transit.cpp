#include "tools/analyzer/emit/transit.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

#include "common/base/check.hpp"

namespace ho::analyzer {
namespace {

/// The bytes of a range that are free, and how many ranges of them are long enough.
class FreeBytes {
 public:
  FreeBytes(ByteRange within, std::uint64_t enough) : enough_(enough) { add(within); }

  void take(ByteRange taken) {
    auto it = free_.upper_bound(taken.begin);
    if (it != free_.begin() && std::prev(it)->second > taken.begin) --it;
    while (it != free_.end() && it->first < taken.end) {
      const ByteRange whole{it->first, it->second};
      if (whole.end - whole.begin >= enough_) --long_enough_;
      it = free_.erase(it);
      if (whole.begin < taken.begin) add({whole.begin, taken.begin});
      if (whole.end > taken.end) add({taken.end, whole.end});
    }
  }
  [[nodiscard]] bool suffices() const { return long_enough_ > 0; }
  [[nodiscard]] std::optional<ByteRange> lowest() const {
    for (const auto& [begin, end] : free_) {
      if (end - begin >= enough_) return ByteRange{begin, end};
    }
    return std::nullopt;
  }

 private:
  void add(ByteRange range) {
    if (range.begin >= range.end) return;
    free_.emplace(range.begin, range.end);
    if (range.end - range.begin >= enough_) ++long_enough_;
  }

  std::uint64_t enough_;
  std::size_t long_enough_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_;  // first byte -> end
};

/// `taken` by first position.
std::optional<TransitRoom> room_of(const std::vector<TakenBytes>& taken, ByteRange within,
                                   std::uint64_t enough, std::int64_t wanted_until) {
  FreeBytes free(within, enough);
  std::int64_t until = wanted_until;
  for (const TakenBytes& each : taken) {
    if (each.first > wanted_until) break;
    free.take(each.bytes);
    if (free.suffices()) continue;
    until = each.first - 1;
    break;
  }
  if (until < 0) return std::nullopt;
  FreeBytes then(within, enough);
  for (const TakenBytes& each : taken) {
    if (each.first <= until) then.take(each.bytes);
  }
  const auto lowest = then.lowest();
  if (!lowest) return std::nullopt;
  return TransitRoom{*lowest, until};
}

}  // namespace

std::vector<TransitRoom> transit_rooms(std::vector<TakenBytes> taken, ByteRange within,
                                       std::uint64_t largest, std::int64_t wanted_until) {
  std::stable_sort(taken.begin(), taken.end(),
                   [](const TakenBytes& a, const TakenBytes& b) { return a.first < b.first; });
  std::vector<TransitRoom> out;
  if (const auto two = room_of(taken, within, 2 * largest, wanted_until)) out.push_back(*two);
  if (!out.empty() && out[0].until == wanted_until) return out;
  const auto one = room_of(taken, within, largest, wanted_until);
  HO_CHECK(one.has_value());
  if (out.empty() || one->until > out[0].until) out.push_back(*one);
  return out;
}

TransitRing::Place TransitRing::take(std::uint64_t bytes, std::uint32_t id) {
  HO_CHECK(bytes <= room_.end - room_.begin);
  if (cursor_ + bytes > room_.end) cursor_ = room_.begin;
  Place place{cursor_, {}};
  const std::uint64_t end = cursor_ + bytes;
  auto it = parts_.lower_bound(cursor_);
  while (it != parts_.end() && it->first < end) {
    const Part part = it->second;
    place.after.push_back(part.id);
    it = parts_.erase(it);
    if (part.end > end) it = parts_.emplace(end, part).first;
  }
  parts_.emplace(cursor_, Part{end, id});
  cursor_ = end;
  return place;
}

}  // namespace ho::analyzer
