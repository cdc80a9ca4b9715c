#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/check.hpp"
#include "proto/files/convert.hpp"

/// Parses any bytes as protobuf text: an error, or a graph that writing and reading preserve.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ho::GraphEncoding;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto graph = ho::parse_graph(bytes, GraphEncoding::kText, "fuzz.textproto");
  if (!graph) {
    HO_CHECK(!graph.error().context().empty());
    return 0;
  }
  const std::string text = ho::serialize_graph(*graph, GraphEncoding::kText);
  const auto again = ho::parse_graph(text, GraphEncoding::kText, "again.textproto");
  HO_CHECK(again.ok());
  HO_CHECK(*again == *graph);
  return 0;
}
