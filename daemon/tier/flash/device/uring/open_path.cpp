#include "daemon/tier/flash/device/uring/open_path.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "common/base/units.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::flash {

namespace {

// The last transfers of a killed daemon may hold its lock a little longer.
constexpr int kLockTries = 20;
constexpr auto kLockPause = std::chrono::milliseconds(100);

Error open_error(const std::string& name, DeviceMode mode) {
  const std::string what = "flash path " + name;
  switch (errno) {
    case ENOENT:
      return Error(Errc::kNotFound,
                   what + ": does not exist; make it with: fallocate -l SIZE " + name);
    case EACCES:
    case EPERM:
    case EROFS:
      return Error(Errc::kPermissionDenied,
                   what + (mode == DeviceMode::kReadWrite ? ": not writable for this user"
                                                          : ": not readable for this user"));
    case EINVAL:
      return Error(
          Errc::kUnsupported,
          what + ": its file system does not support direct I/O (O_DIRECT); use another one");
    case EBUSY: return Error(Errc::kConflict, what + ": is mounted or otherwise in use");
    default: return errno_error(errno, what);
  }
}

Result<std::uint64_t> size_of(const std::string& name, int fd, const struct stat& info) {
  if (S_ISREG(info.st_mode)) return static_cast<std::uint64_t>(info.st_size);
  std::uint64_t size = 0;
  if (::ioctl(fd, BLKGETSIZE64, &size) != 0) return errno_error(errno, "flash path " + name);
  return size;
}

/// tmpfs accepts O_DIRECT since Linux 6.6, but it is memory.
Result<void> check_file_system(const std::string& name, int fd) {
  struct statfs about {};
  if (::fstatfs(fd, &about) != 0) return errno_error(errno, "flash path " + name);
  if (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC ||
      about.f_type == HUGETLBFS_MAGIC) {
    return Error(Errc::kUnsupported,
                 "flash path " + name + ": is in memory (tmpfs), not on a device");
  }
  return {};
}

/// The required alignment of a memory span's first byte. Each page of registered memory counts as a
/// separate piece, whose length must be whole sectors. So a device that accepts an alignment of
/// four bytes (like NVMe) still refuses registered memory that begins inside a sector.
Result<std::uint32_t> direct_alignment(const std::string& name, int fd) {
  struct statx about {};
  const unsigned mask = STATX_DIOALIGN;
  // Kernels before 6.1 do not report it; there it was 512 for every block device.
  if (::statx(fd, "", AT_EMPTY_PATH, mask, &about) != 0 || (about.stx_mask & mask) == 0) return 512;
  if (about.stx_dio_mem_align == 0 || about.stx_dio_offset_align == 0) {
    return Error(Errc::kUnsupported, "flash path " + name +
                                         ": does not allow reading and writing "
                                         "directly (O_DIRECT)");
  }
  if (about.stx_dio_offset_align > kBlockBytes) {
    return Error(Errc::kUnsupported, "flash path " + name + ": direct I/O in units of " +
                                         format_bytes(about.stx_dio_offset_align) +
                                         "; at most 4 KiB are supported");
  }
  return std::max(about.stx_dio_mem_align, about.stx_dio_offset_align);
}

Result<void> lock(const std::string& name, int fd, DeviceMode mode) {
  const int how = (mode == DeviceMode::kReadWrite ? LOCK_EX : LOCK_SH) | LOCK_NB;
  for (int i = 0; i < kLockTries; ++i) {
    if (::flock(fd, how) == 0) return {};
    if (errno != EWOULDBLOCK && errno != EINTR) return errno_error(errno, "flash path " + name);
    std::this_thread::sleep_for(kLockPause);
  }
  return Error(Errc::kConflict, "flash path " + name + ": in use by another daemon (locked)");
}

}  // namespace

Result<OpenPath> open_path(const std::string& name, DeviceMode mode) {
  struct stat before {};
  const bool there = ::stat(name.c_str(), &before) == 0;
  if (there && !S_ISREG(before.st_mode) && !S_ISBLK(before.st_mode)) {
    return Error(Errc::kInvalidArgument,
                 "flash path " + name + ": is neither a file nor a block device");
  }
  const bool device = there && S_ISBLK(before.st_mode);
  // O_EXCL on a block device fails if it is mounted.
  const int access = mode == DeviceMode::kReadWrite ? O_RDWR | (device ? O_EXCL : 0) : O_RDONLY;
  OpenPath out;
  out.fd = UniqueFd(::open(name.c_str(), access | O_DIRECT | O_CLOEXEC));
  if (!out.fd.valid()) return open_error(name, mode);
  struct stat info {};
  if (::fstat(out.fd.get(), &info) != 0) return errno_error(errno, "flash path " + name);
  if (S_ISREG(info.st_mode)) {
    auto kept = check_file_system(name, out.fd.get());
    if (!kept) return kept.error();
  }
  auto alignment = direct_alignment(name, out.fd.get());
  if (!alignment) return alignment.error();
  if (auto locked = lock(name, out.fd.get(), mode); !locked) return locked.error();
  auto size = size_of(name, out.fd.get(), info);
  if (!size) return size.error();
  // Allocates holes now: later a write into one could fail in the middle of a job.
  if (S_ISREG(info.st_mode) && mode == DeviceMode::kReadWrite && *size > 0 &&
      ::fallocate(out.fd.get(), 0, 0, static_cast<off_t>(*size)) != 0) {
    const std::string what = "flash path " + name +
                             ": the file system cannot allocate its full length of " +
                             format_bytes(*size);
    if (errno != EOPNOTSUPP) return errno_error(errno, what);
  }
  out.size_bytes = *size / kBlockBytes * kBlockBytes;
  out.memory_alignment = *alignment;
  return out;
}

}  // namespace ho::flash
