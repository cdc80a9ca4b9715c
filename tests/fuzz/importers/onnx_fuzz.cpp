#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/importers/check_import.hpp"

/// Imports any bytes as an ONNX model.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ho::test::check_import(ho::importers::import_onnx(bytes, {}));
  return 0;
}
