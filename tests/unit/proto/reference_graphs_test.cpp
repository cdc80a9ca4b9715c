#include <catch2/catch.hpp>

#include "tests/support/test_data.hpp"

namespace ho::test {
namespace {

TEST_CASE("graph: the reference graphs and machines are read, and read back as written") {
  for (const char* const name : {"BERT_Base-256", "Inceptionv3-512", "ResNet152-1280", "VIT-1280",
                                 "gpt2-train", "torch-gpt4x256"}) {
    INFO(name);
    const Graph graph = reference_graph(name);
    for (const auto encoding :
         {GraphEncoding::kJson, GraphEncoding::kText, GraphEncoding::kBinary}) {
      const auto again = parse_graph(serialize_graph(graph, encoding), encoding, name);
      REQUIRE(again.ok());
      CHECK(*again == graph);
    }
  }
  for (const char* const name : {"g10", "h100-node-rank", "supernode-die"}) {
    CHECK(reference_hardware(name).device_bytes > 0);
  }
}

}  // namespace
}  // namespace ho::test
