#include "tools/analyzer/packing/validate.hpp"

#include <algorithm>
#include <map>

namespace ho::packing {
namespace {

struct Event {
  std::int64_t time;
  bool begins;  // ends come first at equal times: lifetimes are half-open
  std::size_t buffer;
};

std::string range_text(const Buffer& buffer, std::int64_t offset) {
  return buffer.id + " [" + std::to_string(offset) + ", " + std::to_string(offset + buffer.size) +
         ") during [" + std::to_string(buffer.lower) + ", " + std::to_string(buffer.upper) + ")";
}

}  // namespace

std::optional<std::string> find_violation(const std::vector<Buffer>& buffers,
                                          const std::vector<std::int64_t>& offsets,
                                          std::int64_t height_bytes) {
  if (offsets.size() != buffers.size()) return "not every buffer has an offset";
  std::vector<Event> events;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    if (offsets[i] < 0) return buffer.id + " has a negative offset";
    if (buffer.size > height_bytes || offsets[i] > height_bytes - buffer.size) {
      return buffer.id + " ends above " + std::to_string(height_bytes);
    }
    events.push_back({buffer.lower, true, i});
    events.push_back({buffer.upper, false, i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.begins < b.begins;
  });
  std::map<std::int64_t, std::size_t> live;  // by offset
  for (const Event& event : events) {
    const std::int64_t low = offsets[event.buffer];
    if (!event.begins) {
      live.erase(low);
      continue;
    }
    const Buffer& buffer = buffers[event.buffer];
    const auto above = live.lower_bound(low);
    std::optional<std::size_t> other;
    if (above != live.end() && above->first < low + buffer.size) other = above->second;
    if (above != live.begin()) {
      const auto below = std::prev(above);
      if (below->first + buffers[below->second].size > low) other = below->second;
    }
    if (other) {
      return range_text(buffers[*other], offsets[*other]) + " and " + range_text(buffer, low) +
             " share bytes";
    }
    live.emplace(low, event.buffer);
  }
  return std::nullopt;
}

}  // namespace ho::packing
