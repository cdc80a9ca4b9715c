#include "proto/files/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/system/signals.hpp"
#include "common/system/unique_fd.hpp"

namespace ho {

Result<std::string> read_whole_file(const std::string& path, std::uint64_t bytes_max) {
  // O_NONBLOCK: opening a named pipe would otherwise block forever.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return errno_error(errno, path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_error(errno, path);
  if (!S_ISREG(info.st_mode)) return Error(Errc::kInvalidArgument, path + ": not a regular file");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > bytes_max) {
    return Error(Errc::kOutOfRange, path + ": " + std::to_string(size) +
                                        " bytes, more than the limit of " +
                                        std::to_string(bytes_max));
  }
  std::string bytes(size, '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(errno, path);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

namespace {

Result<void> write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno_error(errno, path);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

/// Creates a new file beside `path` and returns its name in `name`.
Result<UniqueFd> create_temporary(const std::string& path, std::string& name) {
  constexpr int kAttempts = 64;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    name = path + ".tmp" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    UniqueFd fd(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.valid()) return fd;
    if (errno != EEXIST) break;
  }
  return errno_error(errno, path);
}

}  // namespace

Result<void> write_whole_file(const std::string& path, std::string_view bytes) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    // A device or a pipe cannot be replaced, so write into it. For a directory this open fails with
    // a clear message.
    const UniqueFd device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!device.valid()) return errno_error(errno, path);
    return write_all(device.get(), bytes, path);
  }
  // "/dev/stdout > FILE": later prints must not go to the replaced file, so write into it.
  struct stat out {};
  if (exists && ::fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == info.st_dev &&
      out.st_ino == info.st_ino) {
    return write_all(STDOUT_FILENO, bytes, path);
  }
  // Keep a link and replace the file behind it.
  std::error_code unresolved;
  const std::string target = exists ? std::filesystem::canonical(path, unresolved).string() : path;
  if (unresolved) return Error(Errc::kIo, path + ": " + unresolved.message());
  const SignalsBlocked until_renamed;  // an interrupted program leaves no temporary file
  std::string temporary;
  auto fd = create_temporary(target, temporary);
  if (!fd) return fd.error();
  auto written = write_all(fd->get(), bytes, path);
  if (written.ok() && ::fsync(fd->get()) != 0) written = errno_error(errno, path);
  if (written.ok() && std::rename(temporary.c_str(), target.c_str()) != 0) {
    written = errno_error(errno, path);
  }
  if (!written.ok()) ::unlink(temporary.c_str());
  return written;
}

}  // namespace ho
