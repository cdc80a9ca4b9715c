#include "proto/config/config.hpp"

#include <config.pb.h>
#include <google/protobuf/text_format.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fstream>
#include <set>
#include <utility>

#include "proto/config/config_errors.hpp"
#include "proto/config/config_fields.hpp"
#include "proto/config/config_network.hpp"
#include "proto/config/config_sizes.hpp"
#include "proto/control/control_address.hpp"

namespace ho {

namespace {

namespace pb = hyperoffload::v1;
using google::protobuf::TextFormat;

constexpr int kFlashPathsMax = 64;
constexpr std::size_t kRackBytesMax = 63;
constexpr std::size_t kConfigBytesMax = kMiB;

std::string sized(std::uint64_t bytes) {
  return std::to_string(bytes) + " (" + format_bytes(bytes) + ")";
}

/// Commands name a node by its number or its name.
bool is_another_number(const std::string& name, std::uint32_t own) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos &&
         name != std::to_string(own);
}

std::string number_words(const std::string& name) {
  return "\"" + name + "\" is a number, which would name the node of that node_id";
}

/// Converts the parsed message to a DaemonConfig and reports errors per field.
class Checker {
 public:
  Checker(const pb::DaemonConfig& from, const FieldErrors& out) : from_(from), out_(out) {}

  DaemonConfig run() {
    list_fields();
    identity();
    memory();
    blocks();
    numa();
    control_socket();
    access();
    check_network_config(from_, out_, config_);
    links();
    times();
    others();
    flash();
    level();
    return std::move(config_);
  }

 private:
  void complain(const std::string& field, const std::string& message, int index = 0) {
    out_.add(field, message, index);
  }
  void list_fields() {
    config_.fields = fields_of(from_);
    for (auto& [name, field] : config_.fields) field.line = out_.line(name) + 1;
    for (const std::string& name : fields_without_utf8(from_)) complain(name, "is not UTF-8");
  }

  void identity() {
    if (from_.node_id() > kNodeIdMax) {
      complain("node_id", std::to_string(from_.node_id()) + " is not in 0 .. 4095");
    } else {
      config_.node = NodeId(static_cast<std::uint16_t>(from_.node_id()));
    }
    config_.node_given = from_.has_node_id() || !from_.has_etcd();
    config_.node_name = from_.node_name();
    if (config_.node_name.empty()) {
      std::array<char, 256> name{};
      ::gethostname(name.data(), name.size() - 1);
      config_.node_name = name.data();
    }
    if (config_.node_name.size() > 255) complain("node_name", "longer than 255 bytes");
    if (std::any_of(config_.node_name.begin(), config_.node_name.end(),
                    [](unsigned char c) { return c < ' ' || c == 0x7f; })) {
      complain("node_name", "has control characters");
    }
    if (is_another_number(from_.node_name(), from_.node_id())) {
      complain("node_name", number_words(from_.node_name()));
    }
    config_.rack = from_.rack();
    const bool plain = std::all_of(config_.rack.begin(), config_.rack.end(),
                                   [](unsigned char c) { return c > ' ' && c < 0x7f; });
    if (config_.rack.size() > kRackBytesMax || !plain) {
      complain("rack", "must be at most 63 printable ASCII characters without spaces");
    }
  }

  void memory() {
    if (from_.segment_bytes() != 0) config_.segment_bytes = from_.segment_bytes();
    const std::uint64_t segment = config_.segment_bytes;
    if (!std::has_single_bit(segment)) {
      complain("segment_bytes", sized(segment) + " is not a power of two");
      return;
    }
    if (segment < kSegmentBytesMin || segment > kSegmentBytesMax) {
      complain("segment_bytes",
               sized(segment) + " is not in 2097152 (2 MiB) .. 1073741824 (1 GiB)");
      return;
    }
    config_.ddr_bytes = from_.ddr_bytes();
    config_.ddr_reserve = from_.ddr_reserve();
    if (config_.ddr_bytes == 0) {
      complain("ddr_bytes",
               "missing or 0: set the number of bytes that this node gives to the pool");
    } else if (config_.ddr_bytes % segment != 0) {
      complain("ddr_bytes", sized(config_.ddr_bytes) + " is not a multiple of segment_bytes " +
                                std::to_string(segment) + "; the next lower multiple is " +
                                std::to_string(config_.ddr_bytes / segment * segment));
    } else if (config_.ddr_bytes - 1 > kTierOffsetMax) {
      complain("ddr_bytes", "exceeds the address space of a tier (1 PiB)");
    }
  }

  void blocks() {
    if (!from_.has_blocks()) return;
    const std::uint64_t bytes = from_.blocks().ddr_bytes();
    config_.blocks_ddr_bytes = bytes;
    if (bytes == 0) {
      complain("blocks", "ddr_bytes: missing or 0: set how much of ddr_bytes the store may take");
    } else if (bytes % config_.segment_bytes != 0) {
      complain("blocks", "ddr_bytes: " + sized(bytes) + " is not a multiple of segment_bytes " +
                             std::to_string(config_.segment_bytes));
    } else if (bytes > config_.ddr_bytes) {
      complain("blocks", "ddr_bytes: " + sized(bytes) + " exceeds the node's ddr_bytes " +
                             std::to_string(config_.ddr_bytes));
    }
    const std::uint64_t flash_bytes = from_.blocks().flash_bytes();
    config_.blocks_flash_bytes = flash_bytes;
    if (flash_bytes % config_.segment_bytes != 0) {
      complain("blocks", "flash_bytes: " + sized(flash_bytes) +
                             " is not a multiple of segment_bytes " +
                             std::to_string(config_.segment_bytes));
    } else if (flash_bytes > 0 && from_.flash_size() == 0) {
      complain("blocks", "flash_bytes: the node has no flash; add flash { path: ... }");
    }
  }

  void numa() {
    config_.numa.off = from_.numa() == "off";
    if (from_.numa().empty() || from_.numa() == "auto" || config_.numa.off) return;
    auto nodes = parse_numa_nodes(from_.numa());
    if (nodes) {
      config_.numa.nodes = std::move(*nodes);
    } else {
      complain("numa", nodes.error().context() + ", auto or off");
    }
  }

  void control_socket() {
    if (!from_.unix_socket().empty()) config_.unix_socket = from_.unix_socket();
    const std::size_t path_bytes_max = sizeof(sockaddr_un::sun_path) - 1;
    if (config_.unix_socket.front() != '/') {
      complain("unix_socket", "\"" + config_.unix_socket + "\" is not an absolute path");
    } else if (config_.unix_socket.size() > path_bytes_max) {
      complain("unix_socket", "longer than " + std::to_string(path_bytes_max) + " bytes");
    }
  }

  void access() {
    const auto take = [&](const auto& from, const char* name, AccessSettings::Names& to) {
      for (const std::string& one : from) {
        if (one.empty() || one == "@") complain("access", std::string(name) + ": an empty name");
        to.push_back(one);
      }
    };
    take(from_.access().jobs(), "jobs", config_.access.jobs);
    take(from_.access().admins(), "admins", config_.access.admins);
    take(from_.access().viewers(), "viewers", config_.access.viewers);
    std::set<std::pair<std::string, std::string>> seen;
    for (int i = 0; i < from_.quotas_size(); ++i) {
      const pb::QuotaConfig& one = from_.quotas(i);
      const auto wrong = [&](const std::string& message) { complain("quotas", message, i); };
      if (!one.user().empty() && !one.certificate().empty()) {
        wrong("set user or certificate, not both");
      }
      if (!seen.emplace(one.user(), one.certificate()).second) wrong("given twice");
      QuotaSettings quota;
      quota.user = one.user();
      quota.certificate = one.certificate();
      if (one.has_ddr_bytes()) quota.ddr_bytes = one.ddr_bytes();
      if (one.has_sessions()) quota.sessions = one.sessions();
      if (one.has_flash_bytes()) quota.flash_bytes = one.flash_bytes();
      if (one.has_blocks_bytes()) quota.blocks_bytes = one.blocks_bytes();
      if (one.has_link_weight()) quota.link_weight = one.link_weight();
      if (quota.link_weight < 1 || quota.link_weight > kLinkWeightMax) {
        wrong("link_weight: " + std::to_string(quota.link_weight) + " is not in 1 .. " +
              std::to_string(kLinkWeightMax));
      }
      quota.link_bytes_per_s_min = one.link_bytes_per_s_min();
      if (quota.link_bytes_per_s_min > 0 && one.user().empty() && one.certificate().empty()) {
        wrong("link_bytes_per_s_min: name a user or certificate; a link cannot promise it to all");
      }
      config_.access.quotas.push_back(std::move(quota));
    }
  }

  /// What users are promised of the links has to fit into them.
  void links() {
    std::uint64_t carried = 0;
    for (const TcpSettings& rail : config_.tcp) {
      if (rail.link_bytes_per_s == 0) return;  // not known
      carried += rail.link_bytes_per_s;
    }
    std::uint64_t promised = 0;
    for (const QuotaSettings& one : config_.access.quotas) promised += one.link_bytes_per_s_min;
    if (config_.tcp.empty() || promised <= carried) return;
    complain("quotas", "link_bytes_per_s_min: " + sized(promised) +
                           " for all users is more than link_bytes_per_s of tcp, " +
                           sized(carried));
  }

  void times() {
    if (from_.lease_ms() != 0) config_.lease = std::chrono::milliseconds(from_.lease_ms());
    if (from_.lease_ms() != 0 && (from_.lease_ms() < 100 || from_.lease_ms() > 3'600'000)) {
      complain("lease_ms", std::to_string(from_.lease_ms()) + " is not in 100 .. 3600000");
    }
    if (from_.has_drain_ms()) config_.drain = std::chrono::milliseconds(from_.drain_ms());
    if (from_.drain_ms() > 3'600'000) {
      complain("drain_ms", std::to_string(from_.drain_ms()) + " is not in 0 .. 3600000");
    }
    constexpr std::uint64_t kDecade = 315'360'000;
    const std::uint64_t unused_s = std::min(from_.flash_unused_s_max(), kDecade);
    config_.flash_unused_max = std::chrono::seconds(unused_s);
    if (unused_s != from_.flash_unused_s_max()) {
      complain("flash_unused_s_max",
               std::to_string(from_.flash_unused_s_max()) + " is not in 0 .. 315360000");
    }
  }

  void others() {
    std::set<std::uint32_t> seen{from_.node_id()};
    // Not the host's name, where that is the default: its other daemons may have it, too.
    std::set<std::string> names{from_.node_name()};
    std::set<std::string> addresses{"unix:" + config_.unix_socket};
    for (int i = 0; i < from_.nodes_size(); ++i) {
      const pb::PeerNode& peer = from_.nodes(i);
      const auto wrong = [&](const std::string& message) { complain("nodes", message, i); };
      if (!peer.has_node_id()) {
        wrong("node_id is missing");
        continue;
      }
      if (peer.node_id() > kNodeIdMax) {
        wrong("node_id " + std::to_string(peer.node_id()) + " is not in 0 .. 4095");
        continue;
      }
      if (!seen.insert(peer.node_id()).second) {
        wrong("node_id " + std::to_string(peer.node_id()) + " is used twice in the pool");
        continue;
      }
      if (peer.control_addresses().empty()) wrong("control_addresses: at least one is needed");
      NodeInfo info;
      info.node = NodeId(static_cast<std::uint16_t>(peer.node_id()));
      info.name = peer.name().empty() ? "node-" + std::to_string(peer.node_id()) : peer.name();
      if (is_another_number(info.name, peer.node_id())) wrong("name: " + number_words(info.name));
      if (!names.insert(info.name).second) {
        wrong("name \"" + info.name + "\" is used twice in the pool");
      }
      for (const std::string& address : peer.control_addresses()) {
        if (addresses.contains(address)) {
          wrong("control_addresses: " + address + " is another node's, too");
        }
        if (const auto parsed = ControlAddress::parse(address); !parsed) {
          wrong("control_addresses: " + parsed.error().context());
        }
        info.control_addresses.push_back(address);
      }
      addresses.insert(info.control_addresses.begin(), info.control_addresses.end());
      config_.nodes.push_back(std::move(info));
    }
  }

  void flash() {
    std::set<std::string> seen;
    for (int i = 0; i < from_.flash_size(); ++i) {
      const pb::FlashPath& path = from_.flash(i);
      const auto wrong = [&](const std::string& message) { complain("flash", message, i); };
      if (path.path().empty() || path.path().front() != '/') {
        wrong("path: \"" + path.path() + "\" is not an absolute path");
      } else if (!seen.insert(path.path()).second) {
        wrong("path: \"" + path.path() + "\" is given twice");
      }
      if (!path.key_file().empty() && path.key_file().front() != '/') {
        wrong("key_file: \"" + path.key_file() + "\" is not an absolute path");
      }
      config_.flash.push_back({path.path(), path.write_bytes_per_day_max(), path.key_file()});
    }
    if (from_.flash_size() > kFlashPathsMax) {
      complain("flash", "more than " + std::to_string(kFlashPathsMax) + " paths");
    }
  }

  void level() {
    const std::string& name = from_.log_level();
    if (name.empty()) return;
    const auto level = parse_log_level(name);
    if (!level) {
      complain("log_level", "\"" + name + "\" is not one of " + std::string(kLogLevelNames));
      return;
    }
    config_.log_level = *level;
  }

  const pb::DaemonConfig& from_;
  FieldErrors out_;
  DaemonConfig config_;
};

}  // namespace

Result<DaemonConfig> parse_daemon_config(const std::string& text, const std::string& file) {
  if (text.size() > kConfigBytesMax) {
    return Error(Errc::kInvalidArgument,
                 file + ": larger than 1 MiB, the limit for a configuration");
  }
  ConfigErrors misread(file, text);
  const std::string plain = resolve_sizes(text, misread);
  if (misread.any()) return Error(Errc::kInvalidArgument, misread.text());
  ConfigErrors errors(file, plain);
  TextFormat::ParseInfoTree lines;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&lines);
  pb::DaemonConfig message;
  const bool parsed = parser.ParseFromString(plain, &message);
  if (!parsed && !errors.any()) errors.add(-1, "", "not protobuf text");
  if (errors.any()) return Error(Errc::kInvalidArgument, errors.text());
  DaemonConfig config = Checker(message, FieldErrors(lines, errors)).run();
  config.file = file;
  if (errors.any()) return Error(Errc::kInvalidArgument, errors.text());
  return config;
}

Result<DaemonConfig> read_daemon_config(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return errno_error(errno, path);
  std::string text(kConfigBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return Error(Errc::kIo, path + ": cannot be read");
  text.resize(static_cast<std::size_t>(in.gcount()));
  return parse_daemon_config(text, path);
}

}  // namespace ho
