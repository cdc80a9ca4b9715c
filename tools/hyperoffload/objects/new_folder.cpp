#include "tools/hyperoffload/objects/new_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
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

/// Makes a folder by mkdtemp()'s pattern, as others make theirs. @return 0; errno.
int make_folder(std::string& pattern) {
  if (::mkdtemp(pattern.data()) == nullptr) return errno;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::chmod(pattern.c_str(), 0777 & ~mask) == 0) return 0;
  const int error = errno;
  ::rmdir(pattern.c_str());
  return error;
}

/// Makes the folder, tells its name by `told`, waits for the end of `alive` and removes it. The
/// parent may be killed at any moment, so it never has the folder alone.
[[noreturn]] void keep_for_parent(UniqueFd alive, UniqueFd told, std::string folder) {
  ::setsid();  // Ctrl-C is for the parent
  const UniqueFd nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int standard : {0, 1, 2}) ::dup2(nowhere.get(), standard);
  const int error = make_folder(folder);
  const std::string text = error == 0 ? folder : std::to_string(error);
  const bool whole = ::write(told.get(), text.data(), text.size()) >= 0;
  told.reset();
  if (error != 0) ::_exit(0);
  char byte = 0;
  while (whole && ::read(alive.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  ::_exit(0);
}

/// Reads until the other end is closed.
std::string read_all(int fd) {
  std::string all;
  std::array<char, 4096> some{};
  for (;;) {
    const ssize_t got = ::read(fd, some.data(), some.size());
    if (got > 0) all.append(some.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return all;
  }
}

}  // namespace

Result<NewFolder> NewFolder::create(const std::string& path) {
  auto target = check_target(path);
  if (!target) return target.error();
  NewFolder out;
  out.path_ = std::move(*target);
  const std::string pattern = out.path_ + ".XXXXXX";
  int alive[2];
  int told[2];
  if (::pipe2(alive, O_CLOEXEC) != 0) return errno_error(errno, "pipe");
  UniqueFd alive_end(alive[0]);
  out.alive_ = UniqueFd(alive[1]);
  if (::pipe2(told, O_CLOEXEC) != 0) return errno_error(errno, "pipe");
  const UniqueFd told_end(told[0]);
  UniqueFd tells(told[1]);
  const pid_t child = ::fork();
  if (child < 0) return errno_error(errno, "fork");
  if (child == 0) {
    out.alive_.reset();
    keep_for_parent(std::move(alive_end), std::move(tells), pattern);
  }
  tells.reset();
  std::string said = read_all(told_end.get());
  if (said.size() != pattern.size()) {
    return errno_error(said.empty() ? EIO : std::atoi(said.c_str()), pattern);
  }
  out.part_ = std::move(said);
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
