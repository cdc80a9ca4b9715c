#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/model/address.hpp"
#include "common/model/check_graph.hpp"
#include "common/model/graph.hpp"
#include "common/model/links.hpp"

namespace ho::test {
namespace {

Graph graph() {
  Graph graph;
  graph.name = "g";
  graph.storages = {{1, "w", 64, StorageKind::kWeight, true, false},
                    {2, "a", 64, StorageKind::kActivation, false, false}};
  graph.ops = {{1, "f", 10, {StorageIndex(0)}, {StorageIndex(1)}, {}, "forward", false, false},
               {2, "b", 20, {StorageIndex(1)}, {StorageIndex(0)}, {OpIndex(0)}, "", false, false}};
  return graph;
}

TEST_CASE("address: parts and number convert both ways") {
  const GlobalAddress::Parts parts{NodeId(kNodeIdMax), Tier::kFlash, kTierOffsetMax};
  const auto address = GlobalAddress::from_parts(parts);
  REQUIRE(address.ok());
  const auto back = GlobalAddress::from_bits(address->bits());
  REQUIRE(back.ok());
  CHECK(back->parts().node == parts.node);
  CHECK(back->parts().tier == parts.tier);
  CHECK(back->parts().offset_bytes == parts.offset_bytes);
}

TEST_CASE("address: its text has node, tier and offset") {
  CHECK(GlobalAddress::from_parts({NodeId(3), Tier::kDdr, 0x10000000})->text() ==
        "3:ddr:0x10000000");
  CHECK(GlobalAddress::from_parts({NodeId(kNodeIdMax), Tier::kDevice, kTierOffsetMax})->text() ==
        "4095:device:0x3ffffffffffff");
}

TEST_CASE("address: a part that does not fit and bits that name no tier are refused") {
  CHECK(!GlobalAddress::from_parts({NodeId(4096), Tier::kDdr, 0}).ok());
  CHECK(!GlobalAddress::from_parts({NodeId(0), Tier::kDdr, kTierOffsetMax + 1}).ok());
  CHECK(!GlobalAddress::from_bits(std::uint64_t{3} << 50U).ok());
}

TEST_CASE("fingerprint: every field counts") {
  const std::vector<std::function<void(Graph&)>> changes{
      [](Graph& g) { g.name = "h"; },
      [](Graph& g) { g.storages[0].id = 9; },
      [](Graph& g) { g.storages[0].name = "v"; },
      [](Graph& g) { g.storages[0].bytes = 65; },
      [](Graph& g) { g.storages[0].kind = StorageKind::kGradient; },
      [](Graph& g) { g.storages[0].persistent = false; },
      [](Graph& g) { g.storages[0].pinned = true; },
      [](Graph& g) { g.storages[0].hint = OffloadHint::kNever; },
      [](Graph& g) { g.storages[0].hint = OffloadHint::kPreferRemote; },
      [](Graph& g) { g.ops[0].id = 9; },
      [](Graph& g) { g.ops[0].name = "e"; },
      [](Graph& g) { g.ops[0].duration_ns = 11; },
      [](Graph& g) { g.ops[0].reads.push_back(StorageIndex(1)); },
      [](Graph& g) { g.ops[0].writes.clear(); },
      [](Graph& g) { g.ops[1].after.clear(); },
      [](Graph& g) { g.ops[0].phase = "backward"; },
      [](Graph& g) { g.ops[0].fixed = true; },
      [](Graph& g) { g.ops[0].recomputable = true; },
      [](Graph& g) { g.ops.pop_back(); },
  };
  std::set<std::uint64_t> seen{fingerprint(graph())};
  for (const auto& change : changes) {
    Graph changed = graph();
    change(changed);
    seen.insert(fingerprint(changed));
  }
  CHECK(seen.size() == changes.size() + 1);
  CHECK(fingerprint(graph()) == fingerprint(graph()));
}

TEST_CASE("check_graph: a graph that a job builds obeys the same rules") {
  CHECK(check_graph(graph()).ok());
  const auto error_after = [](const std::function<void(Graph&)>& change) {
    Graph changed = graph();
    change(changed);
    const auto checked = check_graph(changed);
    return checked ? "" : checked.error().context();
  };
  CHECK(error_after([](Graph& g) { g.ops[0].reads[0] = StorageIndex(2); }) ==
        "op 1 (\"f\"): reads: storage index 2 does not exist");
  CHECK(error_after([](Graph& g) { g.ops[1].after[0] = OpIndex(7); }) ==
        "op 2 (\"b\"): after: op index 7 does not exist");
  CHECK(error_after([](Graph& g) { g.ops[1].after[0] = OpIndex(1); }) ==
        "op 2 (\"b\"): after: names the op itself: a cycle");
  CHECK(error_after([](Graph& g) { g.storages[1].bytes = 0; }) ==
        "storage 2 (\"a\"): bytes: must be at least 1");
  CHECK(error_after([](Graph& g) { g.name = "\xff"; }) == "name: not UTF-8");
  CHECK(error_after([](Graph& g) { g.storages[0].name = "w\xff"; }).find("name: not UTF-8") !=
        std::string::npos);
  CHECK(error_after([](Graph& g) { g.ops[0].name = "f\xff"; }).find("name: not UTF-8") !=
        std::string::npos);
  CHECK(error_after([](Graph& g) { g.ops[0].phase = "\xc3"; }) == "op 1 (\"f\"): phase: not UTF-8");
  CHECK(error_after([](Graph& g) { g.storages[0].persistent = false; }) != "");
  CHECK(error_after([](Graph& g) { g.storages[0].kind = static_cast<StorageKind>(9); }) != "");
  CHECK(error_after([](Graph& g) { g.ops.clear(); }) == "ops: the graph has none");
}

TEST_CASE("check_graph: an OUTPUT outlives its step, and each step overwrites it first") {
  Graph good = graph();
  good.storages[1].kind = StorageKind::kOutput;
  good.storages[1].persistent = true;
  CHECK(check_graph(good).ok());
  const auto error_after = [&good](const std::function<void(Graph&)>& change) {
    Graph changed = good;
    change(changed);
    const auto checked = check_graph(changed);
    return checked ? "" : checked.error().context();
  };
  CHECK(error_after([](Graph& g) { g.storages[1].persistent = false; }) ==
        "storage 2 (\"a\"): persistent: an OUTPUT outlives its step");
  CHECK(error_after([](Graph& g) { g.ops[0].reads.push_back(StorageIndex(1)); }) ==
        "op 1 (\"f\"): reads: storage 2 (\"a\") is an OUTPUT, but no op before this one overwrites "
        "it");
  CHECK(error_after([](Graph& g) {
          g.ops[0].writes.clear();
          g.ops[1].reads.clear();
        }) == "storage 2 (\"a\"): kind: an OUTPUT must be in the writes of an op");
}

TEST_CASE("describe: names from outside are cut and cleaned") {
  CHECK(describe_op(3, "") == "op 3");
  CHECK(describe_op(3, "a\n\"b") == "op 3 (\"a??b\")");
  CHECK(describe_storage(3, std::string(500, 'x')).size() < 120);
}

TEST_CASE("transfer time: it is exact in the narrow and in the wide computation") {
  __extension__ using Wide = unsigned __int128;
  std::mt19937_64 random(7);
  constexpr auto kLongest = static_cast<Wide>(std::numeric_limits<std::int64_t>::max() / 1024);
  for (int i = 0; i < 20'000; ++i) {
    const auto any = [&] { return random() >> (random() % 64); };
    const Link link{std::max<std::uint64_t>(1, any()), any()};
    const std::uint64_t bytes = any();
    const Wide exact =
        (static_cast<Wide>(bytes) * 1'000'000'000 + link.bytes_per_s - 1) / link.bytes_per_s +
        link.latency_ns;
    CAPTURE(bytes, link.bytes_per_s, link.latency_ns);
    REQUIRE(ho::transfer_ns(link, bytes) == static_cast<std::int64_t>(std::min(exact, kLongest)));
  }
}

}  // namespace
}  // namespace ho::test
