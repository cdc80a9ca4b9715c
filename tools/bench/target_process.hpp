#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"

namespace ho::bench {

enum class Driver : std::uint8_t { kLocal, kUcx, kOfi, kTcp };

/// A memory segment as the daemon makes them: a sealable memfd, faulted in, mapped here too.
class Segment {
 public:
  /// @return kExhausted, kIo.
  [[nodiscard]] static Result<std::unique_ptr<Segment>> create(std::uint64_t length_bytes);
  Segment(UniqueFd fd, std::span<std::byte> bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] UniqueFd duplicate() const;

 private:
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

/// A transport's target in a process of its own: what the daemon's data thread does and nothing
/// else. For measurements of a driver by itself, and for its conformance suite. The process dies
/// with this object, and with its parent. Owner thread: the maker's.
class TargetProcess {
 public:
  struct Options {
    Driver driver = Driver::kLocal;
    std::uint32_t rails = 1;        ///< on 127.0.0.1, 127.0.0.2, ...; of tcp and ofi alone
    std::string ofi_provider = {};  ///< libfabric's name of a device's; empty: its TCP
    std::string ofi_address = {};   ///< numeric; then it is the only rail
    std::string tls_folder = {};  ///< of tcp: a daemon's node.crt, node.key and ca.crt; empty: none
  };
  /// Forks a process that waits for begin(): for libraries that do not survive a fork once they
  /// are in use (libfabric's verbs has its devices open then). Call while the process has one
  /// thread. @return kIo.
  [[nodiscard]] static Result<std::unique_ptr<TargetProcess>> prepare();
  /// Has it make its target, once. @return kUnsupported, kUnavailable, kIo.
  [[nodiscard]] Result<void> begin(const Options& options);
  /// Both.
  [[nodiscard]] static Result<std::unique_ptr<TargetProcess>> start(const Options& options);
  TargetProcess(pid_t pid, UniqueFd socket, UniqueFd fences);
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;
  ~TargetProcess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// How its one session is reached; everything is exposed for that. A fence is asked for on a
  /// thread of its own, since the process may stand still.
  [[nodiscard]] transport::PeerAddress peer(NodeId node = NodeId(1)) const;

  struct Exposed {
    transport::ExposureId id;
    std::string key;
  };
  [[nodiscard]] Result<Exposed> expose(const Segment& segment, transport::Rights rights);
  enum class Truncate { kNo, kYes };
  /// Ends an exposure; kYes cuts the segment's memfd to nothing afterwards, as the daemon does.
  [[nodiscard]] Result<void> revoke(transport::ExposureId id, Truncate truncate);
  /// Sends a signal. SIGKILL waits until the process is gone, SIGSTOP until it stands still.
  void signal(int number);
  /// True while the process has not ended.
  [[nodiscard]] bool alive();

 private:
  struct Fences;

  pid_t pid_;
  UniqueFd socket_;
  std::shared_ptr<Fences> fences_;
  std::string address_;
  bool reaped_ = false;
};

}  // namespace ho::bench
