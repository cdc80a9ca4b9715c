#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/check.hpp"
#include "tools/importers/bytes/unpack.hpp"
#include "tools/importers/import.hpp"

/// Unpacks any bytes: an error, or at most the limit.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto out = ho::importers::unpack(std::string(reinterpret_cast<const char*>(data), size));
  if (out) HO_CHECK(out->size() <= ho::importers::kInputBytesMax);
  return 0;
}
