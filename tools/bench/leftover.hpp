#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace ho::bench {

/// A file or an empty folder that is removed with this object, and too when SIGINT, SIGTERM or
/// SIGHUP ends this process (not a child of it). Where one of several lies in another, the folder
/// is made first. At most 16 at a time. Any thread.
class Leftover {
 public:
  explicit Leftover(const std::filesystem::path& path);
  ~Leftover();
  Leftover(const Leftover&) = delete;
  Leftover& operator=(const Leftover&) = delete;

 private:
  const std::string path_;
  std::size_t place_;
};

}  // namespace ho::bench
