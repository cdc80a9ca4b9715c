#include "tools/models/longest_context.hpp"

#include <catch2/catch.hpp>
#include <cstdint>

using namespace ho;
using namespace ho::models;

namespace {

LlamaLike small() {
  LlamaLike model;
  model.layers = 1;
  model.hidden = 8;
  model.heads = 1;
  model.kv_heads = 1;
  model.vocab = 8;
  model.element_bytes = 1;
  return model;
}

std::uint64_t cache_bytes(const Graph& graph) {
  std::uint64_t sum = 0;
  for (const Storage& storage : graph.storages) {
    if (storage.kind == StorageKind::kKvCache) sum += storage.bytes;
  }
  return sum;
}

}  // namespace

TEST_CASE("longest context: found to one part in 64, with few graphs") {
  for (const std::uint64_t limit : {16U, 17U, 100U, 1000U, 65'537U, 1'000'000U}) {
    int asked = 0;
    const auto found = longest_context(small(), 16, [&](const Graph& graph) -> Result<bool> {
      ++asked;
      return cache_bytes(graph) <= limit * 16;
    });
    REQUIRE(found.ok());
    CHECK(*found <= limit);
    CHECK(*found + *found / 64 + 1 > limit);
    CHECK(asked < 30);
  }
}

TEST_CASE("longest context: 0 where not even the shortest fits, and errors come out") {
  const auto none = longest_context(small(), 16, [](const Graph&) { return Result<bool>(false); });
  REQUIRE(none.ok());
  CHECK(*none == 0);

  const auto failed = longest_context(
      small(), 16, [](const Graph&) { return Result<bool>(Error(Errc::kIo, "no")); });
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().code() == Errc::kIo);

  LlamaLike wrong = small();
  wrong.heads = 3;
  const auto refused = longest_context(wrong, 16, [](const Graph&) { return Result<bool>(true); });
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kInvalidArgument);
}

TEST_CASE("longest context: a graph that is too large to write down ends the search", "[soak]") {
  LlamaLike long_turns = small();
  long_turns.phase = Phase::kPrefill;
  long_turns.chunk_tokens = 1;
  const auto most =
      longest_context(long_turns, 16, [](const Graph&) { return Result<bool>(true); });
  REQUIRE(most.ok());
  CHECK(*most > 16);
}
