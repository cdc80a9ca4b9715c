#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

// Counts requests to the heap, because time depends on other programs and requests do not. They
// show any part of the planner that builds or copies more than the length of a step asks for. They
// do not show a search that only reads: `hyperoffload bench analyzer` times that.

namespace {

struct Heap {
  std::size_t live_bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t asked_bytes = 0;
};
Heap heap;  // one thread

/// Stands before each block and holds its size.
constexpr std::size_t kHeaderBytes = alignof(std::max_align_t);

void give_back(void* block) {
  if (block == nullptr) return;
  char* const begin = static_cast<char*>(block) - kHeaderBytes;
  std::size_t bytes = 0;
  std::memcpy(&bytes, begin, sizeof(bytes));
  heap.live_bytes -= bytes;
  std::free(begin);
}

}  // namespace

void* operator new(std::size_t bytes) {
  auto* const begin = static_cast<char*>(std::malloc(bytes + kHeaderBytes));
  if (begin == nullptr) throw std::bad_alloc();
  std::memcpy(begin, &bytes, sizeof(bytes));
  heap.live_bytes += bytes;
  heap.asked_bytes += bytes;
  heap.peak_bytes = std::max(heap.peak_bytes, heap.live_bytes);
  return begin + kHeaderBytes;
}
// std::stable_sort allocates its buffer with this one and frees it with the plain delete.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block, const std::nothrow_t&) noexcept { give_back(block); }
void operator delete(void* block) noexcept { give_back(block); }
void operator delete(void* block, std::size_t) noexcept { give_back(block); }

using namespace ho;

namespace {

/// Per op of the step.
struct Cost {
  double peak_bytes = 0;
  double asked_bytes = 0;
  double cache_ops = 0;
};

Cost cost_of(std::uint32_t layers) {
  constexpr std::uint32_t kOpsPerLayer = 70;
  const Graph graph = test::transformer(layers, kOpsPerLayer);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 6 / 10;
  const Heap before = heap;
  heap.peak_bytes = heap.live_bytes;
  const auto outcome = analyzer::analyze(graph, test::one_tier(60'000'000'000), {budget, 64});
  REQUIRE(outcome.ok());
  REQUIRE(std::holds_alternative<schedule::Schedule>(*outcome));
  const auto ops = static_cast<double>(graph.ops.size());
  const auto cache_ops = std::get<schedule::Schedule>(*outcome).cache_ops.size();
  return {static_cast<double>(heap.peak_bytes - before.live_bytes) / ops,
          static_cast<double>(heap.asked_bytes - before.asked_bytes) / ops,
          static_cast<double>(cache_ops) / ops};
}

/// Counts for steps of this many layers; 210 ops a layer. `peak_bytes` an op at most.
void check_growth(std::uint32_t layers, double peak_bytes) {
  const Cost small = cost_of(layers);
  const Cost large = cost_of(3 * layers);
  CAPTURE(small.peak_bytes, large.peak_bytes, small.asked_bytes, large.asked_bytes);
  CAPTURE(small.cache_ops, large.cache_ops);
  CHECK(small.cache_ops > 0.1);
  CHECK(large.cache_ops <= 1.1 * small.cache_ops);
  CHECK(large.peak_bytes <= peak_bytes);
  CHECK(large.peak_bytes <= 1.1 * small.peak_bytes);
  CHECK(large.asked_bytes <= 1.2 * small.asked_bytes);
}

}  // namespace

TEST_CASE("growth: a step of three times the ops asks for three times the memory, not more") {
  check_growth(10, 3328);
}

TEST_CASE("growth: a step of 63,000 ops asks for three times what one of 21,000 does", "[soak]") {
  check_growth(100, 2688);
}
