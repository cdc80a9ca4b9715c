#include "proto/config.hpp"

#include <arpa/inet.h>
#include <config.pb.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cerrno>
#include <climits>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "common/transport/driver_names.hpp"
#include "proto/config_fields.hpp"
#include "proto/control_address.hpp"

namespace ho {

namespace {

namespace pb = hyperoffload::v1;
using google::protobuf::TextFormat;

constexpr int kFlashPathsMax = 64;
constexpr int kOfiRailsMax = 8;  // the limit of the driver
constexpr std::size_t kConfigBytesMax = kMiB;

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Collects the parser's errors, each with the name of the field that it was reading.
class Complaints final : public google::protobuf::io::ErrorCollector {
 public:
  Complaints(const std::string& file, const std::string& text)
      : file_(file), lines_(split_lines(text)) {}

  void AddError(int line, int column, const std::string& message) override {
    add(line, field_on(line, column), message);
  }

  /// `line` counts from 0; -1 if the field is not in the file.
  void add(int line, const std::string& field, const std::string& message) {
    if (!text_.empty()) text_ += '\n';
    text_ += file_;
    if (line >= 0) text_ += ":" + std::to_string(line + 1);
    text_ += ": ";
    if (!field.empty()) text_ += field + ": ";
    text_ += message;
  }
  [[nodiscard]] bool any() const { return !text_.empty(); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  /// The last name before the column; on an earlier line if this line has none.
  [[nodiscard]] std::string field_on(int line, int column) const {
    for (; line >= 0; --line, column = INT_MAX) {
      if (static_cast<std::size_t>(line) >= lines_.size()) return {};
      const std::string& text = lines_[static_cast<std::size_t>(line)];
      const std::string name =
          last_name(text.substr(0, static_cast<std::size_t>(std::max(column, 0))));
      if (!name.empty()) return name;
    }
    return {};
  }

  static std::string last_name(const std::string& head) {
    std::string found;
    std::string word;
    char quote = 0;
    for (const char c : head + " ") {
      if (c == '#' && quote == 0) break;
      if (quote != 0 || c == '"' || c == '\'') {
        quote = quote == 0 ? c : (c == quote ? '\0' : quote);
      } else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
        word += c;
        continue;
      }
      if (!word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) == 0) {
        found = word;
      }
      word.clear();
    }
    return found;
  }

  const std::string& file_;
  const std::vector<std::string> lines_;
  std::string text_;
};

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24U) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool is_numeric(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> parsed{};
  return ::inet_pton(AF_INET, host.c_str(), parsed.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), parsed.data()) == 1;
}

/// True for a numeric address that stands for "any address".
bool is_wildcard(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return v4.s_addr == htonl(INADDR_ANY);
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

/// The providers of libfabric whose addresses are IP addresses on every machine. An empty name
/// means the provider for TCP.
bool has_ip_addresses(const std::string& provider) {
  const std::string core = provider.substr(0, provider.find(';'));
  return core.empty() || core == "net" || core == "tcp" || core == "sockets" || core == "udp";
}

std::string sized(std::uint64_t bytes) {
  return std::to_string(bytes) + " (" + format_bytes(bytes) + ")";
}

/// Converts the parsed message to a DaemonConfig and reports errors per field.
class Checker {
 public:
  Checker(const pb::DaemonConfig& from, const TextFormat::ParseInfoTree& lines, Complaints& out)
      : from_(from), lines_(lines), out_(out) {}

  DaemonConfig run() {
    list_fields();
    identity();
    memory();
    numa();
    listening();
    times();
    others();
    flash();
    level();
    return std::move(config_);
  }

 private:
  void complain(const std::string& field, const std::string& message) {
    out_.add(line_of(field), field, message);
  }
  void list_fields() {
    config_.fields = fields_of(from_);
    for (auto& [name, field] : config_.fields) field.line = line_of(name) + 1;
    for (const std::string& name : fields_without_utf8(from_)) complain(name, "is not UTF-8");
  }
  [[nodiscard]] int line_of(const std::string& field) const {
    const auto* descriptor = pb::DaemonConfig::descriptor()->FindFieldByName(field);
    return descriptor == nullptr
               ? -1
               : lines_.GetLocation(descriptor, descriptor->is_repeated() ? 0 : -1).line;
  }

  void identity() {
    if (from_.node_id() > kNodeIdMax) {
      complain("node_id", std::to_string(from_.node_id()) + " is not in 0 .. 4095");
    } else {
      config_.node = NodeId(static_cast<std::uint16_t>(from_.node_id()));
    }
    config_.node_name = from_.node_name();
    if (config_.node_name.empty()) {
      std::array<char, 256> name{};
      ::gethostname(name.data(), name.size() - 1);
      config_.node_name = name.data();
    }
    if (config_.node_name.size() > 255) complain("node_name", "longer than 255 bytes");
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

  void listening() {
    config_.insecure = from_.insecure();
    if (!from_.unix_socket().empty()) config_.unix_socket = from_.unix_socket();
    const std::size_t path_bytes_max = sizeof(sockaddr_un::sun_path) - 1;
    if (config_.unix_socket.front() != '/') {
      complain("unix_socket", "\"" + config_.unix_socket + "\" is not an absolute path");
    } else if (config_.unix_socket.size() > path_bytes_max) {
      complain("unix_socket", "longer than " + std::to_string(path_bytes_max) + " bytes");
    }
    if (!from_.tcp_listen().empty()) {
      const auto address = ControlAddress::parse("tcp:" + from_.tcp_listen());
      if (!address) {
        complain("tcp_listen", address.error().context());
      } else if (!config_.insecure && !is_loopback(address->host)) {
        complain("tcp_listen", address->host +
                                   " is not a loopback address, and control is not encrypted yet; "
                                   "set insecure: true to allow it");
      } else {
        config_.tcp_listen = TcpListen{address->host, address->port};
      }
    }
    for (int rail = 0; rail < from_.ofi_size(); ++rail) ofi(rail);
    if (from_.ofi_size() > kOfiRailsMax) {
      complain("ofi", "more than " + std::to_string(kOfiRailsMax) + " rails");
    }
    if (from_.has_ucx()) ucx();
    transport();
  }

  void ucx() {
    UcxSettings settings{from_.ucx().devices(), "rc", from_.ucx().module(),
                         from_.ucx().allow_emulation()};
    if (!from_.ucx().transports().empty()) settings.transports = from_.ucx().transports();
    const std::string& names = settings.transports;
    if (!settings.module.empty() && settings.module.front() != '/') {
      complain("ucx", "module: \"" + settings.module + "\" is not an absolute path");
    } else if (!settings.allow_emulation && names != "rc" && names != "dc" && names != "rc,dc") {
      complain("ucx", "transports: \"" + names + "\" is not one of rc, dc and rc,dc, which " +
                          "access memory without the peer's CPU (allow_emulation: true allows " +
                          "others, for experiments)");
    } else if (!config_.insecure) {
      complain("ucx", "transfers over RDMA are not encrypted; set insecure: true to allow them");
    }
    config_.ucx = settings;
  }

  /// A field of an `ofi` block.
  [[nodiscard]] Located located(int rail, const std::string& field, const std::string& text) const {
    const auto* block = pb::DaemonConfig::descriptor()->FindFieldByName("ofi");
    const auto* inside = lines_.GetTreeForNested(block, rail);
    const int line =
        inside == nullptr
            ? -1
            : inside->GetLocation(pb::OfiConfig::descriptor()->FindFieldByName(field), -1).line;
    return {text, (line >= 0 ? line : lines_.GetLocation(block, rail).line) + 1};
  }
  void complain_of_ofi(const std::string& field, const Located& where, const std::string& message) {
    out_.add(where.line - 1, "ofi", field + ": " + message);
  }

  void ofi(int rail) {
    const pb::OfiConfig& from = from_.ofi(rail);
    const std::string usual = config_.ofi.empty() ? "" : config_.ofi.front().provider.text;
    OfiSettings settings{
        located(rail, "provider", from.provider().empty() ? usual : from.provider()),
        located(rail, "domain", from.domain()), located(rail, "interface", from.interface()),
        located(rail, "address", from.address())};
    const std::string& provider = settings.provider.text;
    std::string& address = settings.address.text;
    if (!settings.interface.text.empty()) {
      if (!address.empty()) {
        complain_of_ofi("address", settings.address, "set address or interface, not both");
      } else if (!config_.insecure && settings.interface.text != "lo") {
        complain_of_ofi("interface", settings.interface,
                        settings.interface.text +
                            " is not the loopback interface, and transfers are not encrypted; set "
                            "insecure: true to allow it");
      }
    } else if (address.empty() && has_ip_addresses(provider)) {
      address = "127.0.0.1";
    } else if (address.empty() && provider != "shm" && !config_.insecure) {
      complain_of_ofi(
          "provider", settings.provider,
          "transfers over " + provider + " are not encrypted; set insecure: true to allow them");
    } else if (!address.empty()) {
      ofi_address(settings.address);
    }
    ofi_beside_others(settings);
    config_.ofi.push_back(std::move(settings));
  }

  void ofi_beside_others(const OfiSettings& rail) {
    for (const OfiSettings& other : config_.ofi) {
      if (rail.provider.text != other.provider.text) {
        const auto called = [](const std::string& name) { return name.empty() ? "none" : name; };
        complain_of_ofi("provider", rail.provider,
                        called(rail.provider.text) + " and " + called(other.provider.text) +
                            " in line " + std::to_string(other.provider.line) +
                            "; all rails need the same provider");
        return;
      }
      const bool same = rail.address.text == other.address.text &&
                        rail.interface.text == other.interface.text &&
                        rail.domain.text == other.domain.text;
      if (!same) continue;
      const bool named = !rail.interface.text.empty();
      complain_of_ofi(named ? "interface" : "address", named ? rail.interface : rail.address,
                      "the same rail as in line " +
                          std::to_string(named ? other.interface.line : other.address.line) +
                          "; each rail needs its own address");
      return;
    }
  }

  void ofi_address(const Located& address) {
    if (!is_numeric(address.text)) {
      complain_of_ofi("address", address, "\"" + address.text + "\" is not a numeric IP address");
    } else if (is_wildcard(address.text)) {
      complain_of_ofi(
          "address", address,
          address.text + " is not an address that peers can connect to; set the one that they use");
    } else if (!config_.insecure && !is_loopback(address.text)) {
      complain_of_ofi("address", address,
                      address.text +
                          " is not a loopback address, and transfers are not encrypted; "
                          "set insecure: true to allow it");
    }
  }

  void transport() {
    if (from_.transport().empty() || from_.transport() == "auto") return;
    auto names = transport::parse_driver_names(from_.transport());
    if (!names) {
      complain("transport", names.error().context());
      return;
    }
    for (const std::string& name : *names) {
      const bool missing =
          (name == "ofi" && from_.ofi_size() == 0) || (name == "ucx" && !from_.has_ucx());
      if (missing)
        complain("transport", name + " is listed, but the block is missing: " + name + " { }");
    }
    config_.transport = std::move(*names);
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
    for (int i = 0; i < from_.nodes_size(); ++i) {
      const pb::PeerNode& peer = from_.nodes(i);
      const auto wrong = [&](const std::string& message) {
        const auto* field = pb::DaemonConfig::descriptor()->FindFieldByName("nodes");
        out_.add(lines_.GetLocation(field, i).line, "nodes", message);
      };
      if (peer.node_id() > kNodeIdMax) {
        wrong("node_id " + std::to_string(peer.node_id()) + " is not in 0 .. 4095");
        continue;
      }
      if (!seen.insert(peer.node_id()).second) {
        wrong("node_id " + std::to_string(peer.node_id()) + " is used twice in the pool");
      }
      if (peer.control_addresses().empty()) wrong("control_addresses: at least one is needed");
      NodeInfo info;
      info.node = NodeId(static_cast<std::uint16_t>(peer.node_id()));
      info.name = peer.name().empty() ? "node-" + std::to_string(peer.node_id()) : peer.name();
      for (const std::string& address : peer.control_addresses()) {
        if (const auto parsed = ControlAddress::parse(address); !parsed) {
          wrong("control_addresses: " + parsed.error().context());
        }
        info.control_addresses.push_back(address);
      }
      config_.nodes.push_back(std::move(info));
    }
  }

  void flash() {
    std::set<std::string> seen;
    for (int i = 0; i < from_.flash_size(); ++i) {
      const pb::FlashPath& path = from_.flash(i);
      const auto wrong = [&](const std::string& message) {
        const auto* field = pb::DaemonConfig::descriptor()->FindFieldByName("flash");
        out_.add(lines_.GetLocation(field, i).line, "flash", message);
      };
      if (path.path().empty() || path.path().front() != '/') {
        wrong("path: \"" + path.path() + "\" is not an absolute path");
      } else if (!seen.insert(path.path()).second) {
        wrong("path: \"" + path.path() + "\" is given twice");
      }
      config_.flash.push_back({path.path(), path.write_bytes_per_day_max()});
    }
    if (from_.flash_size() > kFlashPathsMax) {
      complain("flash", "more than " + std::to_string(kFlashPathsMax) + " paths");
    }
  }

  void level() {
    const std::string& name = from_.log_level();
    if (name.empty() || name == "info") {
      config_.log_level = LogLevel::kInfo;
    } else if (name == "debug") {
      config_.log_level = LogLevel::kDebug;
    } else if (name == "warning") {
      config_.log_level = LogLevel::kWarning;
    } else if (name == "error") {
      config_.log_level = LogLevel::kError;
    } else {
      complain("log_level", "\"" + name + "\" is not one of debug, info, warning, error");
    }
  }

  const pb::DaemonConfig& from_;
  const TextFormat::ParseInfoTree& lines_;
  Complaints& out_;
  DaemonConfig config_;
};

}  // namespace

Result<DaemonConfig> parse_daemon_config(const std::string& text, const std::string& file) {
  if (text.size() > kConfigBytesMax) {
    return Error(Errc::kInvalidArgument,
                 file + ": larger than 1 MiB, the limit for a configuration");
  }
  Complaints complaints(file, text);
  TextFormat::ParseInfoTree lines;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&complaints);
  parser.WriteLocationsTo(&lines);
  pb::DaemonConfig message;
  const bool parsed = parser.ParseFromString(text, &message);
  if (!parsed && !complaints.any()) complaints.add(-1, "", "not protobuf text");
  if (complaints.any()) return Error(Errc::kInvalidArgument, complaints.text());
  DaemonConfig config = Checker(message, lines, complaints).run();
  config.file = file;
  if (complaints.any()) return Error(Errc::kInvalidArgument, complaints.text());
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
