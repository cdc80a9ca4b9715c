#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.hpp"
#include "proto/files/convert.hpp"

/// Parses any bytes as JSON: an error, or a graph that writing and reading preserve.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto graph = ho::parse_graph(bytes, ho::GraphEncoding::kJson, "fuzz.json");
  if (!graph) return 0;
  const auto again =
      ho::parse_graph(ho::graph_to_json(*graph), ho::GraphEncoding::kJson, "again.json");
  HO_CHECK(again.ok());
  HO_CHECK(*again == *graph);
  return 0;
}
