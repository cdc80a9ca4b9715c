#pragma once

#include <cstdint>

#include "common/base/error.hpp"
#include "common/base/strong.hpp"

namespace ho {

/// Identifies one accepted operation of a port. The caller chooses it; it is unique among the
/// caller's operations in flight.
using OpId = Strong<struct OpIdTag, std::uint64_t>;

/// The outcome of one accepted operation. Each accepted operation has exactly one.
struct Completion {
  OpId op;
  Errc code = Errc::kOk;
  std::uint64_t moved_bytes = 0;  ///< 0 unless code is kOk.
};

}  // namespace ho
