#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/model/address.hpp"
#include "common/system/numa.hpp"
#include "common/tls/certificate.hpp"
#include "proto/control/control_values.hpp"

namespace ho {

/// The text of a field and its line in the file, for error messages of later checks.
struct Located {
  std::string text;
  int line = 0;  ///< counts from 1; the line of the enclosing block if the field is not in the file
};

/// A field of the file.
struct ConfigField {
  int line = 0;       ///< the first one that has it, from 1
  std::string value;  ///< as text, for comparisons
};

/// One rail of the `tcp` driver.
struct TcpSettings {
  Located interface;  ///< empty: by address
  Located address;    ///< numeric; empty: by interface
  std::uint16_t port = 0;
  std::uint64_t link_bytes_per_s = 0;  ///< each way; 0: no limit
};

/// One rail of the `ofi` driver.
struct OfiSettings {
  Located provider;
  Located domain;                ///< empty: any
  Located interface;             ///< empty: by address
  Located address;               ///< numeric; empty: by interface, else chosen by the provider
  bool allow_emulation = false;  ///< equal in all rails
};

struct UcxSettings {
  std::string devices;     ///< empty: all
  std::string transports;  ///< "rc", "dc" or "rc,dc"; with emulation any transports of UCX
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
  std::string key_file = {};                  ///< absolute; empty: not encrypted
};

/// The largest QuotaSettings::link_weight: the part of the lightest of two users is still worth
/// something then.
inline constexpr std::uint32_t kLinkWeightMax = 100;

struct QuotaSettings {
  std::string user;         ///< name or number
  std::string certificate;  ///< both empty: everybody else
  std::optional<std::uint64_t> ddr_bytes;
  std::optional<std::size_t> sessions;
  std::optional<std::uint64_t> flash_bytes;
  std::optional<std::uint64_t> blocks_bytes;
  std::uint32_t link_weight = 1;
  std::uint64_t link_bytes_per_s_min = 0;
};

/// Rights of local users, and quotas. Names are not looked up yet: "alice", "1000", "@trainers".
struct AccessSettings {
  using Names = std::vector<std::string>;
  Names jobs;     ///< empty: everybody
  Names admins;   ///< besides root and the daemon's user
  Names viewers;  ///< empty: everybody
  std::vector<QuotaSettings> quotas;
};

/// The NUMA nodes over which a pool is divided.
struct NumaSettings {
  bool off = false;
  std::vector<NumaNode> nodes;  ///< empty: the nodes that the machine has
};

/// The etcd in which the daemons of a pool list themselves.
struct EtcdSettings {
  std::vector<std::string> endpoints;  ///< "http://HOST:PORT", without a path
  std::string prefix = "/hyperoffload";
  std::string machine_id;  ///< empty: derived from /etc/machine-id
  std::string id_file = "/var/lib/hyperoffload/node_id";
  std::vector<std::string> control_addresses;  ///< "tcp:HOST:PORT"; empty: what tcp_listen says
  std::optional<tls::Files> tls;
};

/// The configuration of hyperoffloadd, checked, with defaults filled in. config.proto describes the
/// fields.
struct DaemonConfig {
  std::string file;                           ///< for messages
  std::map<std::string, ConfigField> fields;  ///< the fields that the file has, by name
  NodeId node;
  bool node_given = true;  ///< false: etcd gives `node`
  std::string node_name;
  std::string rack;             ///< nodes of one rack can be lost together; empty: not known
  std::uint64_t ddr_bytes = 0;  ///< a multiple of segment_bytes
  bool ddr_reserve = false;     ///< all of it is taken at the start
  std::uint64_t segment_bytes = 256 * kMiB;
  NumaSettings numa;
  std::string unix_socket = "/run/hyperoffload/control.sock";
  std::optional<TcpListen> tcp_listen;
  std::optional<TcpListen> http_listen;  ///< serves the status page and /metrics
  std::optional<tls::Files> tls;
  AccessSettings access;
  bool insecure = false;
  std::chrono::milliseconds lease{10'000};
  std::chrono::milliseconds drain{5'000};
  /// The only drivers that the daemon may use, each of which must be usable. Empty: all that are
  /// usable.
  std::vector<std::string> transport;
  std::vector<OfiSettings> ofi;  ///< same provider, different addresses; empty: no ofi driver
  std::vector<TcpSettings> tcp;  ///< different addresses; empty: no tcp driver
  std::optional<UcxSettings> ucx;
  std::vector<NodeInfo> nodes;       ///< the others
  std::optional<EtcdSettings> etcd;  ///< lists the others, in place of `nodes`
  std::vector<FlashPathSettings> flash;
  std::uint64_t blocks_ddr_bytes = 0;    ///< a multiple of segment_bytes; 0: no KV block store
  std::uint64_t blocks_flash_bytes = 0;  ///< the same; 0: its blocks are in DDR only
  /// A durable extent that no session had open for so long is freed; 0: never.
  std::chrono::seconds flash_unused_max{0};
  LogLevel log_level = LogLevel::kInfo;

  /// The error behind the place of a field: "FILE:LINE: ...", or "FILE: ..." if the file lacks it.
  [[nodiscard]] Error at_field(const std::string& name, const Error& error) const;
};

/// The names of the fields whose values differ.
[[nodiscard]] std::vector<std::string> changed_fields(const DaemonConfig& before,
                                                      const DaemonConfig& after);

/// Parses and checks a configuration. Errors begin with `file`.
/// @return kInvalidArgument with all errors found, one per line: "FILE:LINE: field: what is wrong".
[[nodiscard]] Result<DaemonConfig> parse_daemon_config(const std::string& text,
                                                       const std::string& file);

/// Reads and parses a file. @return also kNotFound, kPermissionDenied, kIo.
[[nodiscard]] Result<DaemonConfig> read_daemon_config(const std::string& path);

}  // namespace ho
