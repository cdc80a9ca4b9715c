#pragma once

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"
#include "tools/importers/import.hpp"

namespace ho::test {

/// An error with its reason, or a graph that obeys every rule.
inline void check_import(const Result<importers::Imported>& made) {
  if (!made) {
    HO_CHECK(!made.error().context().empty());
    return;
  }
  HO_CHECK(check_graph(made->graph).ok());
  HO_CHECK(made->notes.measured_ops + made->notes.derived_ops == made->graph.ops.size());
}

}  // namespace ho::test
