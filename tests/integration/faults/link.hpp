#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"

namespace ho::test {

/// Two network namespaces with links between them: this process's (it leaves the machine's for
/// good) and one for daemons. Both are of the test's own making and have no name, so they and the
/// links go when the last process in them does, however it ends. Links count from 0.
class Link {
 public:
  static constexpr const char* kFar = "10.99.7.2";        ///< the first link's far end
  static constexpr const char* kSecondFar = "10.99.8.2";  ///< the second's

  /// `links`: 1 or 2. Call while the process has one thread. @return kUnsupported with the reason:
  /// no right to make namespaces, no veth, no `ip`.
  [[nodiscard]] static Result<std::unique_ptr<Link>> create(int links = 1);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// For DaemonProcess::Spec::network.
  [[nodiscard]] int far_namespace() const { return far_.get(); }
  /// Cuts a link at its far end, as a pulled cable does: nobody is told.
  [[nodiscard]] bool down(int link = 0);
  [[nodiscard]] bool up(int link = 0);
  /// Bytes that have come and gone over a link, as its near end counts them.
  [[nodiscard]] std::uint64_t carried_bytes(int link) const;
  /// Lets through this much each way of the first link (tc tbf). @return false: no tbf here.
  [[nodiscard]] bool limit(std::uint64_t bits_per_s);

 private:
  Link() = default;
  enum class End { kNear, kFar };
  [[nodiscard]] bool join(int link) const;
  [[nodiscard]] bool run(End end, const std::string& command) const;

  pid_t holder_ = -1;
  UniqueFd far_;
};

}  // namespace ho::test
