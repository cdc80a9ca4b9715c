#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.hpp"
#include "proto/files/convert.hpp"

/// Parses any bytes as binary protobuf: an error, or a graph that all three encodings preserve.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ho::GraphEncoding;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto graph = ho::parse_graph(bytes, GraphEncoding::kBinary, "fuzz.pb");
  if (!graph) return 0;
  for (const auto encoding : {GraphEncoding::kBinary, GraphEncoding::kText, GraphEncoding::kJson}) {
    const auto again = ho::parse_graph(ho::serialize_graph(*graph, encoding), encoding, "again");
    HO_CHECK(again.ok());
    HO_CHECK(*again == *graph);
  }
  return 0;
}
