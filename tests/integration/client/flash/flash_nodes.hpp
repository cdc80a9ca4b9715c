#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include "common/base/units.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/skip.hpp"

// Nodes with flash.
namespace ho::test {

/// Whether this machine cannot have such nodes. The test is skipped then.
inline bool no_flash() {
  const TempFolder folder;
  make_file(folder.file("flash"), 2 * kMiB);
  const std::string why = no_flash_here(folder.file("flash"));
  if (!why.empty()) skip(why);
  return !why.empty();
}

/// Bytes of a node's flash that end with their sessions.
inline std::uint64_t flash_on(const TwoNodes& nodes, int node) {
  const auto status = connect(nodes.address(node))->status(soon());
  REQUIRE(status.ok());
  return status->scratch_flash_bytes;
}

}  // namespace ho::test
