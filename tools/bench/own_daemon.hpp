#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "tools/bench/leftover.hpp"

namespace ho::bench {

/// A real hyperoffloadd beside this program, with a socket in a temporary folder. It ends with this
/// object or this process. The folder is removed too, also after a signal.
class OwnDaemon {
 public:
  struct Options {
    std::uint64_t ddr_bytes = 0;  ///< a multiple of segment_bytes
    std::uint64_t segment_bytes = 0;
    std::filesystem::path flash_path = {};  ///< an existing file; empty: no flash
    std::uint64_t blocks_bytes = 0;  ///< what its KV block store may take of ddr_bytes; 0: none
    std::string network = {};        ///< "tcp", "ofi" or "ucx": serves that driver too; empty: none
  };

  /// Forks, and waits until the daemon answers. Call while the process has one thread.
  /// @return kNotFound (no such program), kUnavailable with the daemon's message, kDeadline, kIo.
  [[nodiscard]] static Result<std::unique_ptr<OwnDaemon>> start(const Options& options);
  ~OwnDaemon();
  OwnDaemon(const OwnDaemon&) = delete;
  OwnDaemon& operator=(const OwnDaemon&) = delete;

  [[nodiscard]] std::string address() const { return "unix:" + socket(); }

 private:
  explicit OwnDaemon(std::filesystem::path folder) : folder_(std::move(folder)) {}
  [[nodiscard]] std::filesystem::path config() const { return folder_ / "daemon.textproto"; }
  [[nodiscard]] std::filesystem::path errors() const { return folder_ / "daemon.err"; }
  [[nodiscard]] std::string socket() const { return (folder_ / "control.sock").string(); }
  [[nodiscard]] Result<void> wait_until_it_answers();

  std::filesystem::path folder_;
  const Leftover folder_goes_{folder_};
  const Leftover config_goes_{config()};
  const Leftover errors_go_{errors()};
  const Leftover socket_goes_{socket()};
  pid_t child_ = -1;
};

}  // namespace ho::bench
