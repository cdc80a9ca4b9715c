#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "common/tls/authority.hpp"
#include "tests/support/temp_folder.hpp"

namespace ho::test {

inline constexpr std::chrono::hours kDay{24};

/// An authority in a folder of its own, and the certificates that it issues.
class Certificates {
 public:
  Certificates() {
    REQUIRE(tls::make_authority(folder_.file("ca"), "test-ca", tls::valid_from_now(kDay)).ok());
  }

  /// @return the folder with node.crt, node.key and ca.crt.
  std::string issue(const std::string& name, tls::Role role,
                    const std::vector<std::string>& addresses = {},
                    const tls::Validity& validity = tls::valid_from_now(kDay)) {
    const std::string out = folder_.file(name + "-" + std::to_string(count_++));
    const auto made = tls::issue(folder_.file("ca"), {name, role, addresses, validity}, out);
    INFO((made ? "" : made.error().message()));
    REQUIRE(made.ok());
    return out;
  }
  std::string daemon() { return issue("node3", tls::Role::kDaemon, {"127.0.0.1", "localhost"}); }

  /// What a configuration says of such a folder.
  static std::string config(const std::string& folder) {
    const tls::Files files = tls::files_in(folder);
    return "tls { certificate: \"" + files.certificate + "\" key: \"" + files.key +
           "\" authority: \"" + files.authority + "\" }\n";
  }
  /// Valid until an hour ago.
  static tls::Validity expired() {
    return {std::chrono::system_clock::now() - kDay, kDay - std::chrono::hours(1)};
  }

 private:
  TempFolder folder_;
  int count_ = 0;
};

}  // namespace ho::test
