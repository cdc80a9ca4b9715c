#pragma once

#include <cstdint>
#include <vector>

#include "common/layout/reshard.hpp"

namespace ho::layout {

/// Appends the gets that copy `part` out of a buffer that holds `source` into one that holds
/// `destination`, both row-major: as few and as long runs as the two have in common.
/// @param like  gives from and combine. @pre both boxes contain `part`, which is not empty.
void append_gets(const Box& source, const Box& destination, const Box& part,
                 std::uint64_t element_bytes, const Get& like, std::vector<Get>& out);
/// How many it appends.
[[nodiscard]] std::uint64_t count_gets(const Box& source, const Box& destination, const Box& part);

}  // namespace ho::layout
