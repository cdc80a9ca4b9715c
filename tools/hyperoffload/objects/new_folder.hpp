#pragma once

#include <string>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::cli {

/// A folder that appears under its name with all its files, or not at all. Until keep() it lies
/// beside that name under another, and is removed with this object. Where this process is ended
/// before, also by a signal, a child process removes it. One thread; to be made before any other
/// thread.
class NewFolder {
 public:
  /// @param path  absent, or an empty folder. @return kAlreadyExists: it is something else;
  /// kInvalidArgument: not a name, or a mount point; kNotFound, ...: of the folder that it is in.
  [[nodiscard]] static Result<NewFolder> create(const std::string& path);
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  ~NewFolder();

  /// Where a file is to be made.
  [[nodiscard]] std::string file(const std::string& name) const { return part_ + "/" + name; }
  /// Gives the folder its name.
  [[nodiscard]] Result<void> keep();

 private:
  NewFolder() = default;

  std::string path_;
  std::string part_;  ///< empty: kept, or moved from
  UniqueFd alive_;    ///< its end tells the child
};

}  // namespace ho::cli
