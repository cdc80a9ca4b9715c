#pragma once

#include <string>
#include <vector>

#include "common/tls/context.hpp"

namespace ho::tls {

/// Whether peers that dial these hosts, names or numeric addresses, will accept our certificate.
/// @return empty; or which it lacks, in words.
[[nodiscard]] std::string find_missing_names(const Context& own,
                                             const std::vector<std::string>& hosts);

}  // namespace ho::tls
