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

Result<Fit> yes(const Graph&) { return Fit::kYes; }

}  // namespace

TEST_CASE("longest context: found to one part in 64, with few graphs") {
  for (const std::uint64_t limit : {16U, 17U, 100U, 1000U, 65'537U, 1'000'000U}) {
    int asked = 0;
    const auto fits = [&](const Graph& graph) -> Result<Fit> {
      ++asked;
      return cache_bytes(graph) <= limit * 16 ? Fit::kYes : Fit::kNo;
    };
    const auto near = [limit](const Result<LongestContext>& found) {
      REQUIRE(found.ok());
      CHECK(found->tokens <= limit);
      CHECK(found->tokens + found->tokens / 64 + 1 > limit);
      CHECK_FALSE(found->graph_too_large);
    };
    near(longest_context(small(), 16, fits));
    CHECK(asked < 30);
    for (const std::uint64_t times : {1U, 2U, 50U}) {
      asked = 0;
      near(longest_context_below(small(), 16, limit * times, fits));
      CHECK(asked < 24);
      if (times == 1) CHECK(asked == 1);
    }
  }
}

TEST_CASE("longest context: far from a bound, contexts that are far too long are tried once") {
  std::uint64_t too_long = 0;
  const auto fits = [&](const Graph& graph) -> Result<Fit> {
    const std::uint64_t tokens = cache_bytes(graph) / 16;
    if (tokens <= 1000) return Fit::kYes;
    if (tokens > 4000) ++too_long;
    return Fit::kNo;
  };
  const auto found = longest_context_below(small(), 500, 100'000, fits);
  REQUIRE(found.ok());
  CHECK(found->tokens > 980);
  CHECK(too_long == 1);
}

TEST_CASE("longest context: a step that is too short for its links does not end the search") {
  const auto fits = [](const Graph& graph) -> Result<Fit> {
    const std::uint64_t tokens = cache_bytes(graph) / 16;
    if (tokens > 5000) return Fit::kNoMore;
    return tokens < 1000 ? Fit::kNo : Fit::kYes;
  };
  const auto found = longest_context(small(), 16, fits);
  REQUIRE(found.ok());
  CHECK(found->tokens > 4900);
  CHECK(found->tokens <= 5000);
}

TEST_CASE("longest context: 0 where not even the shortest fits, and errors come out") {
  for (const auto& search :
       {longest_context(small(), 16, [](const Graph&) -> Result<Fit> { return Fit::kNoMore; }),
        longest_context_below(small(), 16, 1000,
                              [](const Graph&) -> Result<Fit> { return Fit::kNo; })}) {
    REQUIRE(search.ok());
    CHECK(search->tokens == 0);
  }

  const auto failed = longest_context(
      small(), 16, [](const Graph&) -> Result<Fit> { return Error(Errc::kIo, "no"); });
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().code() == Errc::kIo);

  LlamaLike wrong = small();
  wrong.heads = 3;
  const auto refused = longest_context(wrong, 16, yes);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kInvalidArgument);
}

TEST_CASE("longest context: a graph that is too large to write down ends the search", "[soak]") {
  LlamaLike long_turns = small();
  long_turns.phase = Phase::kPrefill;
  long_turns.chunk_tokens = 1;
  const auto most = longest_context(long_turns, 16, yes);
  REQUIRE(most.ok());
  CHECK(most->tokens > 16);
  CHECK(most->graph_too_large);
}
