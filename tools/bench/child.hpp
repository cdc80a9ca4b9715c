#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::bench {

/// A forked process at the other end of a socket pair. The destructor kills it.
class Child {
 public:
  /// Forks; the child runs body(socket) and exits. It dies with its parent.
  [[nodiscard]] static Result<std::unique_ptr<Child>> start(const std::function<void(int)>& body);
  Child(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  pid_t pid_;
  UniqueFd socket_;
};

}  // namespace ho::bench
