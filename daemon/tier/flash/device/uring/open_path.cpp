#include "daemon/tier/flash/device/uring/open_path.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::flash {

namespace {

// The last transfers of a daemon that has ended may hold its path a little longer.
constexpr int kLockTries = 20;
constexpr auto kLockPause = std::chrono::milliseconds(100);

Error open_error(const std::string& name, DeviceMode mode) {
  const std::string what = "flash path " + name;
  switch (errno) {
    case ENOENT:
      return Error(Errc::kNotFound,
                   what + ": does not exist" +
                       (mode != DeviceMode::kReadOnly
                            ? "; make it with: (umask 077; fallocate -l SIZE " + name + ")"
                            : ""));
    case EACCES:
    case EPERM:
    case EROFS:
      return Error(Errc::kPermissionDenied,
                   what + (mode != DeviceMode::kReadOnly ? ": not writable for this user"
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

/// A file holds what jobs keep in it, and secrets: only its owner may open it, who is this user or
/// root. A block device may have a group, as distributions give one to all disks.
Result<void> check_private(const std::string& name, const struct stat& info, DeviceMode mode) {
  const bool file = S_ISREG(info.st_mode);
  const mode_t others = info.st_mode & (file ? S_IRWXG | S_IRWXO : S_IRWXO);
  if ((others & (S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH)) != 0) {
    std::array<char, 8> bits{};
    std::snprintf(bits.data(), bits.size(), "%04o", info.st_mode & 07777U);
    return Error(Errc::kPermissionDenied, "flash path " + name +
                                              ": other users can read or write it (mode " +
                                              bits.data() + "); chmod 600 it");
  }
  // Root tries for another user, who will run the daemon.
  const bool for_another = mode == DeviceMode::kTrial && ::geteuid() == 0;
  if (file && info.st_uid != 0 && info.st_uid != ::geteuid() && !for_another) {
    return Error(Errc::kPermissionDenied, "flash path " + name + ": belongs to another user (uid " +
                                              std::to_string(info.st_uid) + ")");
  }
  return {};
}

/// The lock of a path is on its first byte, for writing: the system gives that lock only to a
/// process that may write the path. One that can only read it could hold a lock for reading, or
/// flock()'s, and so keep a daemon from starting.
Result<void> lock(const std::string& name, int fd, DeviceMode mode) {
  struct flock mine {};
  mine.l_type = mode != DeviceMode::kReadOnly ? F_WRLCK : F_RDLCK;
  mine.l_whence = SEEK_SET;
  mine.l_len = 1;
  for (int i = 0; i < kLockTries; ++i) {
    if (::fcntl(fd, F_OFD_SETLK, &mine) == 0) return {};
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      return errno_error(errno, "flash path " + name);
    }
    // Asked for a lock for reading, the system names only locks for writing as being in the way.
    struct flock writer = mine;
    writer.l_type = F_RDLCK;
    if (::fcntl(fd, F_OFD_GETLK, &writer) != 0) return errno_error(errno, "flash path " + name);
    if (writer.l_type == F_UNLCK && mode != DeviceMode::kReadOnly) {
      log(LogLevel::kWarning, "a flash path is locked by a process that only reads it",
          {{"path", name}});
      return {};
    }
    std::this_thread::sleep_for(kLockPause);
  }
  return Error(Errc::kConflict, "flash path " + name + ": in use by another daemon (locked)");
}

/// Whether a file system allocates a file's holes ahead, and says in st_blocks what it has of them:
/// others compress, and files that ext2 or ext3 mapped without extents have no fallocate().
bool allocates_ahead(int fd) {
  struct statfs about {};
  if (::fstatfs(fd, &about) != 0) return false;
  if (about.f_type == XFS_SUPER_MAGIC) return true;
  unsigned int flags = 0;  // The request is declared with a long, but writes an int.
  return about.f_type == EXT4_SUPER_MAGIC && ::ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 &&
         (flags & FS_EXTENT_FL) != 0;
}

/// Bytes that a file lacks to its full length, where fallocate() would allocate them.
std::uint64_t hole_bytes(int fd, std::uint64_t size_bytes) {
  constexpr std::uint64_t kStatUnit = 512;
  struct stat info {};
  if (!allocates_ahead(fd) || ::fstat(fd, &info) != 0) return 0;
  const std::uint64_t has_bytes = static_cast<std::uint64_t>(info.st_blocks) * kStatUnit;
  return size_bytes - std::min(size_bytes, has_bytes);
}

/// Allocates holes now: later a write into one could fail in the middle of a job. Where they have
/// no room, nothing is allocated, which would fill the file system.
Result<void> allocate(const std::string& name, int fd, std::uint64_t size_bytes, DeviceMode mode) {
  const std::string what = "flash path " + name +
                           ": the file system cannot allocate its full length of " +
                           format_bytes(size_bytes);
  struct statvfs room {};
  if (::fstatvfs(fd, &room) == 0) {
    const std::uint64_t free = ::geteuid() == 0 ? room.f_bfree : room.f_bavail;
    if (hole_bytes(fd, size_bytes) > free * room.f_frsize) return errno_error(ENOSPC, what);
  }
  if (mode != DeviceMode::kReadWrite || size_bytes == 0) return {};
  if (::fallocate(fd, 0, 0, static_cast<off_t>(size_bytes)) == 0) return {};
  return errno == EOPNOTSUPP ? Result<void>() : errno_error(errno, what);
}

UniqueFd open_free(const std::string& name, int flags) {
  for (int i = 0; i < kLockTries; ++i) {
    UniqueFd fd(::open(name.c_str(), flags));
    if (fd.valid() || errno != EBUSY) return fd;
    std::this_thread::sleep_for(kLockPause);
  }
  return UniqueFd(::open(name.c_str(), flags));
}

}  // namespace

Result<void> check_path(const std::string& name) {
  struct stat info {};
  if (::stat(name.c_str(), &info) != 0) return open_error(name, DeviceMode::kReadWrite);
  return check_private(name, info, DeviceMode::kReadWrite);
}

Result<OpenPath> open_path(const std::string& name, DeviceMode mode) {
  struct stat before {};
  const bool there = ::stat(name.c_str(), &before) == 0;
  if (there && !S_ISREG(before.st_mode) && !S_ISBLK(before.st_mode)) {
    return Error(Errc::kInvalidArgument,
                 "flash path " + name + ": is neither a file nor a block device");
  }
  const bool device = there && S_ISBLK(before.st_mode);
  // O_EXCL on a block device fails if it is mounted.
  const int access = mode != DeviceMode::kReadOnly ? O_RDWR | (device ? O_EXCL : 0) : O_RDONLY;
  OpenPath out;
  out.fd = open_free(name, access | O_DIRECT | O_CLOEXEC);
  if (!out.fd.valid()) return open_error(name, mode);
  struct stat info {};
  if (::fstat(out.fd.get(), &info) != 0) return errno_error(errno, "flash path " + name);
  if (mode != DeviceMode::kReadOnly) {
    if (auto own = check_private(name, info, mode); !own) return own.error();
  }
  if (S_ISREG(info.st_mode)) {
    auto kept = check_file_system(name, out.fd.get());
    if (!kept) return kept.error();
  }
  auto alignment = direct_alignment(name, out.fd.get());
  if (!alignment) return alignment.error();
  if (auto locked = lock(name, out.fd.get(), mode); !locked) return locked.error();
  auto size = size_of(name, out.fd.get(), info);
  if (!size) return size.error();
  if (S_ISREG(info.st_mode) && mode != DeviceMode::kReadOnly) {
    if (auto whole = allocate(name, out.fd.get(), *size, mode); !whole) return whole.error();
  }
  out.size_bytes = *size / kBlockBytes * kBlockBytes;
  out.memory_alignment = *alignment;
  return out;
}

}  // namespace ho::flash
