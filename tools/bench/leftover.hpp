#pragma once

#include <cstddef>
#include <filesystem>

namespace ho::bench {

/// A file or an empty folder that is removed with this object, and also when SIGINT, SIGTERM or
/// SIGHUP ends this process (but not a child of it). Make the object of a folder before those of
/// its files. At most 16 at a time. One thread makes and removes them; the signal may arrive on
/// any.
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
