#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.hpp"
#include "common/base/numa.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/model/address.hpp"
#include "proto/control_values.hpp"

namespace ho {

/// A field's text and where the file says it, for complaints of those who use it.
struct Located {
  std::string text;
  int line = 0;  ///< from 1; of the block around it where the field is not in the file
};

/// One rail of the `ofi` driver.
struct OfiSettings {
  Located provider;
  Located domain;     ///< empty: any
  Located interface;  ///< empty: by address
  Located address;    ///< numeric; empty: by interface, or as the provider likes
};

struct UcxSettings {
  std::string devices;     ///< empty: all
  std::string transports;  ///< "rc", "dc" or "rc,dc"; with emulation any of UCX's
  std::string module;      ///< absolute; empty: the one installed with the daemon
  bool allow_emulation = false;
};

/// A TCP address to listen on.
struct TcpListen {
  std::string host;
  std::string port;
};

struct FlashPathSettings {
  std::string path;
  std::uint64_t write_bytes_per_day_max = 0;  ///< 0: no budget
};

/// Which NUMA nodes a pool is divided over.
struct NumaSettings {
  bool off = false;
  std::vector<NumaNode> nodes;  ///< empty: whichever there are
  int line = 0;                 ///< where the file says it, from 1; for messages
};

/// hyperoffloadd's configuration, checked, defaults filled in. config.proto has the fields' words.
struct DaemonConfig {
  NodeId node;
  std::string node_name;
  std::uint64_t ddr_bytes = 0;  ///< a multiple of segment_bytes
  int ddr_bytes_line = 0;       ///< where the file says it, from 1; for messages
  std::uint64_t segment_bytes = 256 * kMiB;
  NumaSettings numa;
  std::string unix_socket = "/run/hyperoffload/control.sock";
  std::optional<TcpListen> tcp_listen;
  bool insecure = false;
  std::chrono::milliseconds lease{10'000};
  std::chrono::milliseconds drain{5'000};
  /// The only drivers that may be used, and must be usable; empty: whichever there are.
  std::vector<std::string> transport;
  std::vector<OfiSettings> ofi;  ///< one provider, different addresses; empty: no such driver
  std::optional<UcxSettings> ucx;
  std::vector<NodeInfo> nodes;  ///< the others
  std::vector<FlashPathSettings> flash;
  LogLevel log_level = LogLevel::kInfo;
};

/// Reads and checks one configuration. `file` is the name that errors begin with.
/// @return kInvalidArgument: every error found, one a line, "FILE:LINE: field: what is wrong".
[[nodiscard]] Result<DaemonConfig> parse_daemon_config(const std::string& text,
                                                       const std::string& file);

/// The same from a file. @return also kNotFound, kPermissionDenied, kIo.
[[nodiscard]] Result<DaemonConfig> read_daemon_config(const std::string& path);

}  // namespace ho
