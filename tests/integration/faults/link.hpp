#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"

namespace ho::test {

/// Two network namespaces with one link between them: this process's (it leaves the machine's for
/// good) and one for daemons. Both are of the test's own making and have no name, so they and the
/// link go when the last process in them does, however it ends.
class Link {
 public:
  static constexpr const char* kNear = "10.99.7.1";
  static constexpr const char* kFar = "10.99.7.2";

  /// Call while the process has one thread. @return kUnsupported with the reason: no right to make
  /// namespaces, no veth, no `ip`.
  [[nodiscard]] static Result<std::unique_ptr<Link>> create();
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// For DaemonProcess::Spec::network.
  [[nodiscard]] int far_namespace() const { return far_.get(); }
  /// Cuts the link at its far end, as a pulled cable does: nobody is told.
  [[nodiscard]] bool down();
  [[nodiscard]] bool up();
  /// Lets through this much each way (tc tbf). @return false: no tbf here.
  [[nodiscard]] bool limit(std::uint64_t bits_per_s);

 private:
  Link() = default;
  enum class End { kNear, kFar };
  [[nodiscard]] bool run(End end, const std::string& command) const;

  pid_t holder_ = -1;
  UniqueFd far_;
};

}  // namespace ho::test
