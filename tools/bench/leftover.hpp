#pragma once

#include <cstddef>
#include <filesystem>

namespace ho::bench {

/// A file or an empty folder that is removed with this object, and too when SIGINT, SIGTERM or
/// SIGHUP ends this process (not a child of it). Where one lies in another, the folder is made
/// first. At most 16 at a time; made and removed by one thread, the signal may come to any.
class Leftover {
 public:
  explicit Leftover(const std::filesystem::path& path);
  ~Leftover();
  Leftover(const Leftover&) = delete;
  Leftover& operator=(const Leftover&) = delete;

 private:
  std::size_t place_ = 0;
};

}  // namespace ho::bench
