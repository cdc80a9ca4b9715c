#pragma once

#include <string>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// A listening Unix socket and its file, which goes away with it (if it is still ours).
class UnixListener {
 public:
  /// Binds with mode 0660. A socket file that nobody answers on is stale and replaced.
  /// @return kAlreadyExists: another daemon answers there. kConflict: the file is not a socket.
  /// kNotFound: no such folder. kPermissionDenied, kIo.
  [[nodiscard]] static Result<UnixListener> create(const std::string& path);

  /// A socket that an earlier process bound to `path`, whose file is there.
  [[nodiscard]] static Result<UnixListener> adopt(UniqueFd fd, const std::string& path);

  /// The socket's file, to know it again.
  [[nodiscard]] unsigned long device() const { return device_; }
  [[nodiscard]] unsigned long inode() const { return inode_; }

  /// The file stays when this ends: another process has the socket.
  void leave() { path_.clear(); }

  UnixListener(UnixListener&& other) noexcept;
  UnixListener& operator=(UnixListener&&) = delete;
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;
  ~UnixListener();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  UnixListener(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
  unsigned long device_ = 0;
  unsigned long inode_ = 0;
};

/// A listening TCP socket and where it really listens.
struct TcpListener {
  UniqueFd fd;
  std::string address;  ///< "tcp:HOST:PORT" with the port the system chose
};

/// @param field  of the configuration, for messages.
/// @return kAlreadyExists: the port is taken. kInvalidArgument: no such host. kIo.
[[nodiscard]] Result<TcpListener> listen_tcp(const TcpListen& where, const std::string& field);

/// Whether listen_tcp() would succeed now. Listens on nothing. @return its errors.
[[nodiscard]] Result<void> check_tcp(const TcpListen& where, const std::string& field);

}  // namespace ho::daemon
