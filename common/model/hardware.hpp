#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ho {

/// One direction of a path. A transfer of n bytes takes latency_ns + n / bytes_per_s.
struct Link {
  std::uint64_t bytes_per_s = 0;  ///< > 0 if the link exists
  std::uint64_t latency_ns = 0;

  bool operator==(const Link&) const = default;
};

/// Memory below the device. `read` is the direction toward the device.
struct TierSpec {
  std::uint64_t capacity_bytes = 0;
  Link read;
  Link write;

  bool operator==(const TierSpec&) const = default;
};

/// A link that the transfers of several ranks cross: a root port, a switch, a pool's own port.
struct SharedLink {
  std::string name;
  std::uint64_t read_bytes_per_s = 0;  ///< toward the devices, of all ranks together; > 0
  std::uint64_t write_bytes_per_s = 0;

  bool operator==(const SharedLink&) const = default;
};

/// The names of the shared links that a rank's transfers cross, by tier.
struct RankPath {
  std::vector<std::string> local_ddr;
  std::vector<std::string> remote_ddr;
  std::vector<std::string> flash;

  bool operator==(const RankPath&) const = default;
};

/// What a plan may assume about the machine. Mirrors hardware.proto.
struct Hardware {
  std::string name;
  std::uint64_t device_bytes = 0;
  std::optional<TierSpec> local_ddr;
  std::optional<TierSpec> remote_ddr;
  std::optional<TierSpec> flash;         ///< flash <-> local DDR
  std::optional<Link> device_port_read;  ///< limits the sum of local and remote DDR
  std::optional<Link> device_port_write;
  std::uint32_t failure_domains = 0;  ///< racks, or machines, that fail independently; 0: unknown
  /// What ranks share. Everything above is one rank's own.
  std::vector<SharedLink> links;
  std::vector<RankPath> paths;  ///< per rank, or one for all of them

  bool operator==(const Hardware&) const = default;
};

}  // namespace ho
