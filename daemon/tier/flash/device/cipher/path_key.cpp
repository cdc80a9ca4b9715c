#include "daemon/tier/flash/device/cipher/path_key.hpp"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "common/base/check.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::flash {

Result<PathKey> PathKey::read(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return errno_error(errno, "key_file " + file);
  }
  if (!S_ISREG(info.st_mode)) {
    return Error(Errc::kInvalidArgument, "key_file " + file + ": not a file");
  }
  // A group may read it, as with the key of a certificate: the daemon's.
  if ((info.st_mode & (S_IWGRP | S_IXGRP | S_IRWXO)) != 0) {
    return Error(Errc::kPermissionDenied,
                 "key_file " + file + ": others can read or change it; run: chmod 0600 " + file);
  }
  std::array<std::byte, kBytes> bytes{};
  const ssize_t got = info.st_size == kBytes ? ::read(fd.get(), bytes.data(), bytes.size()) : 0;
  if (got != static_cast<ssize_t>(bytes.size())) {
    return Error(Errc::kInvalidArgument, "key_file " + file + ": not " + std::to_string(kBytes) +
                                             " bytes; make one with: (umask 077; head -c 64 "
                                             "/dev/urandom > " +
                                             file + ")");
  }
  PathKey key(bytes);
  ::OPENSSL_cleanse(bytes.data(), bytes.size());
  const auto middle = key.bytes_.begin() + kBytes / 2;
  if (std::equal(key.bytes_.begin(), middle, middle)) {
    return Error(Errc::kInvalidArgument, "key_file " + file + ": its halves are equal");
  }
  return key;
}

PathKey::~PathKey() { ::OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

KeyCheck PathKey::check() const {
  // Without a configuration file: reading one leaves an allocation behind in this thread.
  ::OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  constexpr std::string_view kUse = "HyperOffload: check value of a flash key";
  std::array<std::byte, kUse.size() + kBytes> text{};
  std::memcpy(text.data(), kUse.data(), kUse.size());
  std::memcpy(text.data() + kUse.size(), bytes_.data(), kBytes);
  std::array<std::byte, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  const int hashed =
      ::EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()),
                   &length, ::EVP_sha256(), nullptr);
  ::OPENSSL_cleanse(text.data(), text.size());
  KeyCheck out{};
  HO_CHECK(hashed == 1 && length >= out.size());
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

}  // namespace ho::flash
