#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tools/hyperoffload/pool/pool_view.hpp"

namespace ho::cli {
namespace {

const std::vector<NodeInfo> kNamed = {
    {NodeId(1), "a", {}}, {NodeId(2), "5", {}}, {NodeId(5), "b", {}}, {NodeId(7), "a", {}}};

std::string found(const std::string& name, const OwnNames& own = {}) {
  const auto node = find_node(kNamed, name, own);
  return node ? std::to_string((*node)->node.value()) : node.error().context();
}

TEST_CASE("command: a node is named by its number, else by its name, if one node has it") {
  CHECK(found("b") == "5");
  CHECK(found("5") == "5");  // and not the node of that name, which comes first
  CHECK(found("2") == "2");
  CHECK(found("6") == "the pool has no node 6; it has 1 (a), 2 (5), 5 (b), 7 (a)");
  CHECK(found("a") == "several nodes are named a; write the number of one: 1, 7");
}

TEST_CASE("command: a node is named by what the pool calls it, or by what it calls itself") {
  const OwnNames own = {{NodeId(1), "a"}, {NodeId(5), "other"}, {NodeId(7), "b"}};
  CHECK(found("other", own) == "5");
  CHECK(found("b", own) == "several nodes are named b; write the number of one: 5, 7");
  CHECK(found("c", own) == "the pool has no node c; it has 1 (a), 2 (5), 5 (b, other), 7 (a, b)");
}

}  // namespace
}  // namespace ho::cli
