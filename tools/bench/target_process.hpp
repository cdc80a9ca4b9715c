#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::bench {

enum class Driver : std::uint8_t { kLocal, kUcx, kOfi, kTcp };

/// What UCX emulates over the loopback interface, where there is no RDMA device.
[[nodiscard]] transport::UcxDevices ucx_over_tcp();

/// A memory segment as the daemon makes them: a sealable memfd, faulted in, and mapped here too.
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

/// A transport's target in a separate process. It does the work of the daemon's data thread and
/// nothing else, for measurements of a driver alone and for the conformance suite. The process ends
/// with this object, and with its parent. Owner thread: the one that made it.
class TargetProcess {
 public:
  struct Options {
    Driver driver = Driver::kLocal;
    std::uint32_t rails = 1;        ///< on 127.0.0.1, 127.0.0.2, ...; only for tcp and ofi
    std::string ofi_provider = {};  ///< libfabric's name for a device's provider; empty: its TCP
    std::string ofi_address = {};   ///< numeric; then it is the only rail
    std::string tls_folder = {};    ///< for tcp: of node.crt, node.key, ca.crt; empty: none
    bool ucx_over_tcp = false;      ///< ucx_over_tcp() instead of devices
  };
  /// Forks a process that waits for begin(), for libraries that do not survive a fork in use
  /// (libfabric's verbs then has devices open). Call while the process has one thread. @return kIo.
  [[nodiscard]] static Result<std::unique_ptr<TargetProcess>> prepare();
  /// Makes its target, once. @return kUnsupported, kUnavailable, kIo.
  [[nodiscard]] Result<void> begin(const Options& options);
  /// prepare() and begin().
  [[nodiscard]] static Result<std::unique_ptr<TargetProcess>> start(const Options& options);
  TargetProcess(pid_t pid, UniqueFd socket, UniqueFd fences);
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;
  ~TargetProcess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The address of its only session; all exposures belong to that. Fences are requested on a
  /// separate thread, because the process may be stopped.
  [[nodiscard]] transport::PeerAddress peer(NodeId node = NodeId(1)) const;

  struct Exposed {
    transport::ExposureId id;
    std::string key;
  };
  [[nodiscard]] Result<Exposed> expose(const Segment& segment, transport::Rights rights);
  enum class Truncate { kNo, kYes };
  /// Ends an exposure. kYes then truncates the segment's memfd to nothing, as the daemon does.
  [[nodiscard]] Result<void> revoke(transport::ExposureId id, Truncate truncate);
  /// Sends a signal. SIGKILL waits until the process has ended, SIGSTOP until it has stopped.
  void signal(int number);
  /// True while the process has not ended.
  [[nodiscard]] bool alive();

 private:
  struct Fences;

  pid_t pid_;
  UniqueFd socket_;
  std::shared_ptr<Fences> fences_;
  bool reaped_ = false;
};

}  // namespace ho::bench
