#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "common/base/check.hpp"

namespace ho::test {

/// An empty temporary folder. The destructor removes it with all its contents.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ho-XXXXXX").string();
    HO_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string path(const std::string& name) const { return file(name); }
  [[nodiscard]] std::size_t file_count() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++count;
    return count;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace ho::test
