#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::test {

/// Two network namespaces with links between them: one that this process enters, and cannot leave,
/// and one for daemons. Neither has a name, so they and the links disappear with the last process
/// in them, however it ends. Links count from 0.
class Link {
 public:
  static constexpr const char* kFar = "10.99.7.2";        ///< the far end of the first link
  static constexpr const char* kSecondFar = "10.99.8.2";  ///< of the second link

  /// `links`: 1 or 2. Call while the process has one thread. @return kUnsupported with the reason:
  /// no permission to make namespaces, no veth, no `ip`.
  [[nodiscard]] static Result<std::unique_ptr<Link>> create(int links = 1);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// For DaemonProcess::Spec::network.
  [[nodiscard]] int far_namespace() const { return far_.get(); }
  /// Cuts a link at its far end as a pulled cable does: neither end gets a message.
  [[nodiscard]] bool down(int link = 0);
  [[nodiscard]] bool up(int link = 0);
  /// Bytes received and sent over a link, counted at its near end.
  [[nodiscard]] std::uint64_t carried_bytes(int link) const;
  /// Limits both directions of the first link to this rate (tc tbf). @return false: tbf is not
  /// available.
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
