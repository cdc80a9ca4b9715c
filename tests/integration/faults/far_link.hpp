#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/integration/client/two_nodes.hpp"

namespace ho::test {

/// A link to another machine. A program there takes its end of the link down or up as the file
/// says, and confirms it in a second file, whose name has ".is" appended.
class FarLink {
 public:
  explicit FarLink(std::filesystem::path file) : file_(std::move(file)) {}

  /// Returns when the other machine has confirmed it.
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
