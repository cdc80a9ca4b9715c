#include "tests/integration/flash/real_devices.hpp"

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>

namespace ho::test {

namespace {

/// Others take loop devices too, between our look and our grip.
constexpr int kTries = 20;

int open_flags(LoopDevice::Access access) {
  return (access == LoopDevice::Access::kReadOnly ? O_RDONLY : O_RDWR) | O_CLOEXEC;
}

}  // namespace

std::string own_mounts() {
  if (::unshare(CLONE_NEWNS) != 0) {
    return std::string("no mount namespace of its own: ") + std::strerror(errno);
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return std::string("mounts cannot be made private: ") + std::strerror(errno);
  }
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control.valid()) return std::string("/dev/loop-control: ") + std::strerror(errno);
  const int free = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
  if (free < 0) return std::string("no loop device: ") + std::strerror(errno);
  const std::string path = "/dev/loop" + std::to_string(free);
  return ::access(path.c_str(), R_OK | W_OK) == 0 ? "" : path + ": " + std::strerror(errno);
}

void mount_at(const std::string& what, const std::string& where, const char* type,
              unsigned long flags, const std::string& options) {
  const int result = ::mount(what.c_str(), where.c_str(), type, flags, options.c_str());
  INFO("mounting " << what << " at " << where << ": " << std::strerror(errno));
  REQUIRE(result == 0);
}

LoopDevice::LoopDevice(const std::string& file, Access access) {
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  const UniqueFd backing(::open(file.c_str(), open_flags(access)));
  REQUIRE(control.valid());
  REQUIRE(backing.valid());
  struct loop_config config {};
  config.fd = static_cast<__u32>(backing.get());
  config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
  if (access == Access::kReadOnly) config.info.lo_flags |= LO_FLAGS_READ_ONLY;
  for (int i = 0; i < kTries && !device_.valid(); ++i) {
    const int free = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    REQUIRE(free >= 0);
    path_ = "/dev/loop" + std::to_string(free);
    UniqueFd device(::open(path_.c_str(), open_flags(access)));
    REQUIRE(device.valid());
    if (::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) device_ = std::move(device);
  }
  REQUIRE(device_.valid());
}

}  // namespace ho::test
