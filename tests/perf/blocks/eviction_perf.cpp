// Hit rates of the KV block store's eviction, beside LRU and the best that any policy could do.
//
// Usage: eviction_perf [TRACE]. TRACE has a JSON object a line, whose "hash_ids" are the keys of a
// request's blocks, in order, as the traces of Mooncake (Qin et al., FAST 2025). A request's hit is
// the longest run of stored blocks at its beginning; afterwards all of its blocks are stored.
// Without TRACE: conversations that are made up. Ends with 1 where ours has
// less than kLeastOfLru of the hits of LRU in one of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <list>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/blocks/block_index.hpp"

using namespace ho;
using namespace ho::daemon;

namespace {

using Request = std::vector<std::uint64_t>;

constexpr double kLeastOfLru = 0.99;

/// @return empty: the file cannot be read, or a line is not of this form.
std::vector<Request> read_trace(const char* path) {
  constexpr std::string_view kField = "\"hash_ids\": [";
  std::ifstream in(path);
  std::vector<Request> out;
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find(kField);
    if (at == std::string::npos) return {};
    Request request;
    for (const char* text = line.c_str() + at + kField.size(); *text != ']';) {
      char* end = nullptr;
      request.push_back(std::strtoull(text, &end, 10));
      if (end == text) return {};
      text = end + std::strspn(end, ", ");
    }
    out.push_back(std::move(request));
  }
  return out;
}

/// Conversations in turns, each longer than the last one: most end early, some go on for long.
std::vector<Request> make_up_trace() {
  Prng random(1);
  std::vector<Request> out;
  std::vector<Request> open;
  std::uint64_t next = 1;
  while (out.size() < 6000) {
    const bool begins = open.size() < 60 || random.below(3) == 0;
    if (begins) open.push_back({0});
    const std::size_t at = begins ? open.size() - 1 : random.below(open.size());
    for (std::uint64_t more = 4 + random.below(16); more > 0; --more) open[at].push_back(next++);
    out.push_back(open[at]);
    const bool ends = random.below(10) < (open[at].size() < 24 ? 6U : 1U) || open[at].size() > 200;
    if (ends) open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return out;
}

/// Hits of BlockIndex.
std::size_t hits_of_ours(const std::vector<Request>& trace, std::size_t capacity) {
  constexpr std::uint64_t kBlock = BlockIndex::kBlockBytesMin;
  const SessionId session(1);
  const TimePoint now{};
  BlockIndex index(capacity * kBlock, 42);
  const ModelIndex model = index.model("trace");
  index.add_area(BlockMedium::kDdr, AreaId(1), kBlock);
  std::size_t hits = 0;
  for (const Request& request : trace) {
    std::vector<BlockKey> keys;
    for (const std::uint64_t id : request) keys.push_back({id, ~id});
    const auto pinned = index.pin(keys, model, session, now + std::chrono::seconds(1));
    hits += pinned.count;
    for (std::size_t i = pinned.count; i < keys.size(); ++i) {
      const auto made =
          index.reserve({keys[i], kBlock, 1, model, session}, BlockIndex::Evict::kYes, now);
      if (made.answer == BlockIndex::Answer::kReserved) {
        static_cast<void>(index.commit(made.place.id, session, {}));
      }
    }
    index.unpin(pinned.pin, session);
  }
  return hits;
}

std::size_t prefix_hits(const Request& request, const auto& stored) {
  const auto miss = std::find_if(request.begin(), request.end(),
                                 [&](std::uint64_t id) { return !stored.contains(id); });
  return static_cast<std::size_t>(miss - request.begin());
}

std::size_t hits_of_lru(const std::vector<Request>& trace, std::size_t capacity) {
  std::list<std::uint64_t> order;  // the one used longest ago first
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> stored;
  std::size_t hits = 0;
  for (const Request& request : trace) {
    hits += prefix_hits(request, stored);
    for (const std::uint64_t id : request) {
      const auto found = stored.find(id);
      if (found != stored.end()) order.erase(found->second);
      stored[id] = order.insert(order.end(), id);
    }
    while (stored.size() > capacity) {
      stored.erase(order.front());
      order.pop_front();
    }
  }
  return hits;
}

/// Belady's MIN, which knows the future: the block that is used last goes first, and what is not
/// used again is not stored. The blocks of a run's end go before those of its beginning. The best
/// for prefixes, too, where a key names all blocks before it, as in these traces.
std::size_t hits_of_best(const std::vector<Request>& trace, std::size_t capacity) {
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  std::vector<std::vector<std::size_t>> next(trace.size());
  std::unordered_map<std::uint64_t, std::size_t> seen;
  for (std::size_t i = trace.size(); i-- > 0;) {
    for (const std::uint64_t id : trace[i]) {
      next[i].push_back(seen.contains(id) ? seen[id] : kNever);
    }
    for (const std::uint64_t id : trace[i]) seen[id] = i;
  }
  struct When {
    std::size_t request = 0;
    std::size_t depth = 0;
    std::uint64_t id = 0;
    auto operator<=>(const When&) const = default;
  };
  std::set<When> order;
  std::unordered_map<std::uint64_t, When> stored;
  std::size_t hits = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    hits += prefix_hits(trace[i], stored);
    for (std::size_t d = 0; d < trace[i].size(); ++d) {
      const std::uint64_t id = trace[i][d];
      if (const auto found = stored.find(id); found != stored.end()) {
        order.erase(found->second);
        stored.erase(found);
      }
      if (next[i][d] == kNever) continue;
      const When when{next[i][d], d, id};
      stored.emplace(id, when);
      order.insert(when);
    }
    while (stored.size() > capacity) {
      stored.erase(order.rbegin()->id);
      order.erase(std::prev(order.end()));
    }
  }
  return hits;
}

}  // namespace

int main(int argc, char** argv) {
  const bool made_up = argc < 2;
  const auto trace = made_up ? make_up_trace() : read_trace(argv[1]);
  if (trace.empty()) {
    std::fprintf(stderr, "eviction_perf: %s cannot be read as a trace\n", argv[1]);
    return 2;
  }
  std::set<std::uint64_t> distinct;
  std::size_t asked = 0;
  std::size_t longest = 0;
  for (const Request& request : trace) {
    distinct.insert(request.begin(), request.end());
    asked += request.size();
    longest = std::max(longest, request.size());
  }
  std::printf("%zu requests, %zu blocks, %zu of them distinct\n\n", trace.size(), asked,
              distinct.size());
  std::printf("| blocks stored | share of the distinct ones | LRU | ours | best | ours / best |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  const auto rate = [&](std::size_t hits) {
    return static_cast<double>(hits) / static_cast<double>(asked);
  };
  bool worse = false;
  for (std::size_t capacity = 500; capacity < distinct.size(); capacity *= 2) {
    if (capacity <= longest) continue;  // a request's own blocks would not fit
    const std::size_t ours = hits_of_ours(trace, capacity);
    const std::size_t lru = hits_of_lru(trace, capacity);
    const std::size_t best = hits_of_best(trace, capacity);
    worse |= static_cast<double>(ours) < kLeastOfLru * static_cast<double>(lru);
    std::printf("| %zu | %.3f | %.3f | %.3f | %.3f | %.2f |\n", capacity,
                static_cast<double>(capacity) / static_cast<double>(distinct.size()), rate(lru),
                rate(ours), rate(best), rate(ours) / rate(best));
  }
  return made_up && worse ? 1 : 0;
}
