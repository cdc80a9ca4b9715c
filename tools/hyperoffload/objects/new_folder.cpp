#include "tools/hyperoffload/objects/new_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace ho::cli {

namespace {

namespace fs = std::filesystem;

/// The path without slashes at its end, where a folder can be made there.
Result<std::string> check_target(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const fs::path name = fs::path(path).filename();
  if (name.empty() || name == "." || name == "..") {
    return Error(Errc::kInvalidArgument, path + " is not the name of a new folder");
  }
  const fs::path parent = fs::path(path).parent_path();
  struct stat above {};
  if (::stat(parent.empty() ? "." : parent.c_str(), &above) != 0) {
    return errno_error(errno, parent.string());
  }
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) return path;
  std::error_code error;
  if (!S_ISDIR(there.st_mode) || !fs::is_empty(path, error)) {
    return Error(Errc::kAlreadyExists, path + " is there already, and not an empty folder");
  }
  if (there.st_dev != above.st_dev) {
    return Error(Errc::kInvalidArgument, path + " is a mount point; name a new folder in it");
  }
  return path;
}

/// Waits for the end of the pipe, and removes the folder.
[[noreturn]] void clean_up_later(int read_end, const std::string& folder) {
  ::setsid();  // Ctrl-C is for the parent
  const UniqueFd nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int standard : {0, 1, 2}) ::dup2(nowhere.get(), standard);
  char byte = 0;
  while (::read(read_end, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  ::_exit(0);
}

}  // namespace

Result<NewFolder> NewFolder::create(const std::string& path) {
  auto target = check_target(path);
  if (!target) return target.error();
  NewFolder out;
  out.path_ = std::move(*target);
  std::string part = out.path_ + ".XXXXXX";
  if (::mkdtemp(part.data()) == nullptr) return errno_error(errno, part);
  out.part_ = part;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  int ends[2];
  if (::chmod(part.c_str(), 0777 & ~mask) != 0 || ::pipe2(ends, O_CLOEXEC) != 0) {
    return errno_error(errno, part);
  }
  const UniqueFd read_end(ends[0]);
  out.alive_ = UniqueFd(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return errno_error(errno, "fork");
  if (child == 0) {
    out.alive_.reset();
    clean_up_later(read_end.get(), part);
  }
  return out;
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : path_(std::move(other.path_)),
      part_(std::exchange(other.part_, {})),
      alive_(std::move(other.alive_)) {}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!part_.empty()) fs::remove_all(part_, ignored);
}

Result<void> NewFolder::keep() {
  std::error_code error;
  fs::rename(part_, path_, error);
  if (error) return errno_error(error.value(), path_);
  part_.clear();
  return {};
}

}  // namespace ho::cli
