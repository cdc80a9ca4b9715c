#include "common/transport/driver_names.hpp"

#include <algorithm>

#include "common/text/split_text.hpp"

namespace ho::transport {

Result<std::vector<std::string>> parse_driver_names(std::string_view text) {
  if (text == "auto") return std::vector<std::string>(kDriverNames.begin(), kDriverNames.end());
  std::vector<std::string> names;
  for (const std::string_view name : split_text(text, ',')) {
    if (std::find(kDriverNames.begin(), kDriverNames.end(), name) == kDriverNames.end()) {
      return Error(
          Errc::kInvalidArgument,
          "transport is auto, local, ucx, ofi, tcp or a list of these, not " + std::string(text));
    }
    names.emplace_back(name);
  }
  return names;
}

}  // namespace ho::transport
