#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/integration/client/two_nodes.hpp"

namespace ho::test {

/// A link to another machine. Somebody there lets down or pulls up its end of the link as the file
/// says, and writes what it did to the path with ".is" behind.
class FarLink {
 public:
  explicit FarLink(std::filesystem::path file) : file_(std::move(file)) {}

  /// Returns when it is so.
  void set(const std::string& state) {
    const std::string draft = file_.string() + ".new";
    std::ofstream(draft) << state << std::endl;
    std::filesystem::rename(draft, file_);
    REQUIRE(eventually(std::chrono::seconds(20), [&] {
      std::string is;
      std::ifstream(file_.string() + ".is") >> is;
      return is == state;
    }));
  }

 private:
  std::filesystem::path file_;
};

}  // namespace ho::test
