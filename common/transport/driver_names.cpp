#include "common/transport/driver_names.hpp"

#include <algorithm>

namespace ho::transport {

Result<std::vector<std::string>> parse_driver_names(std::string_view text) {
  if (text == "auto") return std::vector<std::string>(kDriverNames.begin(), kDriverNames.end());
  std::vector<std::string> names;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    if (std::find(kDriverNames.begin(), kDriverNames.end(), name) == kDriverNames.end()) {
      return Error(
          Errc::kInvalidArgument,
          "transport is auto, local, ucx, ofi, tcp or a list of these, not " + std::string(text));
    }
    names.emplace_back(name);
    if (comma == std::string_view::npos) return names;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace ho::transport
