#pragma once

#include <cstdint>

#include "common/base/error.hpp"
#include "common/base/strong.hpp"

namespace ho {

/// Names one accepted operation of a port; chosen by the caller, unique among its operations in
/// flight.
using OpId = Strong<struct OpIdTag, std::uint64_t>;

/// How one accepted operation ended. Exactly one per accepted operation.
struct Completion {
  OpId op;
  Errc code = Errc::kOk;
  std::uint64_t moved_bytes = 0;  ///< 0 unless code is kOk.
};

}  // namespace ho
