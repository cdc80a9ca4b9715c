#pragma once

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"

// Parts that several messages share. Forward declarations keep generated headers out of our
// headers.
namespace hyperoffload::v1 {
class Hardware;
class Storage;
}  // namespace hyperoffload::v1

namespace ho::wire {

/// @return kInvalidArgument for a kind that this version does not know.
[[nodiscard]] Result<Storage> from_wire(const hyperoffload::v1::Storage& in);
void to_wire(const Storage& storage, hyperoffload::v1::Storage& out);
[[nodiscard]] Hardware from_wire(const hyperoffload::v1::Hardware& in);
void to_wire(const Hardware& hardware, hyperoffload::v1::Hardware& out);

}  // namespace ho::wire
