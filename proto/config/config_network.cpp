#include "proto/config/config_network.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/tls/certificate.hpp"
#include "common/transport/driver_names.hpp"
#include "proto/config/announced.hpp"
#include "proto/control/control_address.hpp"

namespace ho {
namespace {

namespace pb = hyperoffload::v1;

constexpr int kRailsMax = 8;  // the limit of each driver

/// The providers of libfabric that run over TCP or UDP, without a device.
bool is_emulation(const std::string& provider) {
  const std::string core = provider.substr(0, provider.find(';'));
  return core == "net" || core == "tcp" || core == "sockets" || core == "udp";
}

class NetworkChecker {
 public:
  NetworkChecker(const pb::DaemonConfig& from, const FieldErrors& out, DaemonConfig& config)
      : from_(from), out_(out), config_(config) {}

  void run() {
    config_.insecure = from_.insecure();
    if (from_.has_tls()) config_.tls = files("tls", from_.tls());
    if (!from_.tcp_listen().empty()) {
      const auto address = ControlAddress::parse("tcp:" + from_.tcp_listen());
      if (!address) {
        complain("tcp_listen", address.error().context());
      } else if (!config_.insecure && !from_.has_tls()) {
        complain("tcp_listen",
                 "without TLS everybody who reaches " + address->host +
                     " uses the pool, other users of this machine too; add tls { } with "
                     "certificates (hyperoffload ca makes them), or set insecure: true");
      } else {
        config_.tcp_listen = TcpListen{address->host, address->port};
      }
    }
    http();
    for (int rail = 0; rail < from_.tcp_size(); ++rail) tcp(rail);
    for (int rail = 0; rail < from_.ofi_size(); ++rail) ofi(rail);
    for (const auto& [block, count] :
         {std::pair("tcp", from_.tcp_size()), std::pair("ofi", from_.ofi_size())}) {
      if (count > kRailsMax) complain(block, "more than " + std::to_string(kRailsMax) + " rails");
    }
    if (from_.has_ucx()) ucx();
    if (from_.has_etcd()) etcd();
    transport();
    ports();
  }

 private:
  void complain(const std::string& field, const std::string& message) { out_.add(field, message); }

  /// Each of this daemon's listeners has a port of its own. Names of hosts and interfaces are
  /// compared as they are written: the start finds what is the same by another name.
  void ports() {
    std::vector<std::pair<std::string, TcpListen>> known;  // by field
    const auto clash = [&known](const TcpListen& at) -> std::optional<std::string> {
      for (const auto& [field, other] : known) {
        const bool same_host =
            other.host == at.host || is_wildcard(other.host) || is_wildcard(at.host);
        const bool same_port = std::stoul(other.port) == std::stoul(at.port);
        if (same_host && same_port && at.port != "0")
          return "port " + at.port + " is that of " + field;
      }
      return std::nullopt;
    };
    if (config_.tcp_listen) known.emplace_back("tcp_listen", *config_.tcp_listen);
    if (config_.http_listen) {
      if (const auto why = clash(*config_.http_listen)) complain("http_listen", *why);
      known.emplace_back("http_listen", *config_.http_listen);
    }
    for (int rail = 0; rail < from_.tcp_size(); ++rail) {
      const TcpSettings& one = config_.tcp[static_cast<std::size_t>(rail)];
      const auto why = clash({one.address.text, std::to_string(one.port)});
      if (why) out_.add_in("tcp", "port", *why, rail);
    }
  }

  void http() {
    if (from_.http_listen().empty()) return;
    const auto address = ControlAddress::parse("tcp:" + from_.http_listen());
    if (!address) {
      complain("http_listen", address.error().context());
    } else if (!config_.insecure && !is_loopback(address->host)) {
      complain(
          "http_listen",
          address->host +
              " is not a loopback address, and everybody who reaches it reads the names and "
              "figures of all jobs; listen on 127.0.0.1 and put a proxy with TLS before it, or "
              "set insecure: true");
    } else {
      config_.http_listen = TcpListen{address->host, address->port};
    }
  }

  template <typename Block>
  [[nodiscard]] tls::Files files(const std::string& block, const Block& from) {
    for (const auto& [field, file] :
         {std::pair("certificate", from.certificate()), std::pair("key", from.key()),
          std::pair("authority", from.authority())}) {
      if (!file.empty() && file.front() == '/') continue;
      out_.add_in(
          block, field,
          file.empty() ? "missing: name a PEM file" : "\"" + file + "\" is not an absolute path");
    }
    return {from.certificate(), from.key(), from.authority()};
  }

  void complain_of_etcd(const std::string& field, const std::string& message) {
    out_.add_in("etcd", field, message);
  }

  void etcd() {
    const pb::EtcdConfig& from = from_.etcd();
    EtcdSettings to;
    if (from_.nodes_size() > 0) complain("nodes", "the nodes are those that etcd lists");
    if (from.endpoints().empty()) {
      complain_of_etcd("endpoints", "missing: name one or more, such as http://127.0.0.1:2379");
    }
    for (const std::string& endpoint : from.endpoints()) etcd_endpoint(endpoint, to);
    if (!from.prefix().empty()) to.prefix = from.prefix();
    if (to.prefix.front() != '/' || to.prefix.back() == '/') {
      complain_of_etcd("prefix", "\"" + to.prefix + "\" is not like /NAME or /NAME/NAME");
    }
    to.machine_id = from.machine_id();
    const bool plain = std::all_of(to.machine_id.begin(), to.machine_id.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    });
    if (!plain || to.machine_id.size() > 64) {
      complain_of_etcd("machine_id", "may have up to 64 letters, digits, '.', '_' and '-'");
    }
    if (!from.id_file().empty()) to.id_file = from.id_file();
    if (to.id_file.front() != '/') {
      complain_of_etcd("id_file", "\"" + to.id_file + "\" is not an absolute path");
    }
    etcd_addresses(to);
    if (!from.certificate().empty() || !from.key().empty() || !from.authority().empty()) {
      to.tls = files("etcd", from);
    }
    config_.etcd = std::move(to);
  }

  void etcd_endpoint(const std::string& endpoint, EtcdSettings& to) {
    const bool tls = endpoint.rfind("https://", 0) == 0;
    const auto address = tls || endpoint.rfind("http://", 0) == 0
                             ? ControlAddress::parse("tcp:" + endpoint.substr(tls ? 8 : 7))
                             : Result<ControlAddress>(Error(Errc::kInvalidArgument, ""));
    if (!address) {
      complain_of_etcd("endpoints",
                       "\"" + endpoint + "\" is not http://HOST:PORT or https://HOST:PORT");
    } else if (!tls && !config_.insecure && !is_loopback(address->host)) {
      complain_of_etcd("endpoints", endpoint +
                                        " is not encrypted, and not on this machine; use https, or "
                                        "set insecure: true to allow it");
    }
    to.endpoints.push_back(endpoint);
  }

  /// Others must be able to use what this node lists of itself.
  void etcd_addresses(EtcdSettings& to) {
    for (const std::string& text : from_.etcd().control_addresses()) {
      const auto address = ControlAddress::parse(text);
      if (!address || address->kind != ControlAddress::Kind::kTcp) {
        complain_of_etcd("control_addresses", "\"" + text + "\" is not tcp:HOST:PORT");
      }
      to.control_addresses.push_back(text);
    }
    if (to.control_addresses.empty() && config_.tcp_listen &&
        is_wildcard(config_.tcp_listen->host)) {
      complain_of_etcd("control_addresses", "tcp_listen is " + config_.tcp_listen->host +
                                                ": name the addresses by which others reach it");
    }
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

  /// A field of a repeated block.
  [[nodiscard]] Located located(const std::string& block, int index, const std::string& field,
                                const std::string& text) const {
    return {text, out_.line(block, index, field) + 1};
  }

  void tcp(int rail) {
    const pb::TcpConfig& from = from_.tcp(rail);
    TcpSettings settings{located("tcp", rail, "interface", from.interface()),
                         located("tcp", rail, "address", from.address()),
                         static_cast<std::uint16_t>(from.port()), from.link_bytes_per_s()};
    if (from.port() > UINT16_MAX) {
      out_.add_in("tcp", "port", std::to_string(from.port()) + " is not in 0 .. 65535", rail);
    }
    if (settings.interface.text.empty()) {
      if (settings.address.text.empty()) settings.address.text = "127.0.0.1";
      listening_address("tcp", rail, settings.address);
    } else {
      listening_interface("tcp", rail, settings.interface, settings.address);
    }
    for (const TcpSettings& other : config_.tcp) {
      const bool same = settings.address.text == other.address.text &&
                        settings.interface.text == other.interface.text;
      if (!same) continue;
      const bool named = !settings.interface.text.empty();
      out_.add_in("tcp", named ? "interface" : "address",
                  "the same rail as in line " +
                      std::to_string(named ? other.interface.line : other.address.line) +
                      "; each rail needs its own address",
                  rail);
      break;
    }
    config_.tcp.push_back(std::move(settings));
  }

  /// Whether a driver may listen on a network: with TLS, which only tcp has, or without.
  [[nodiscard]] bool allowed(const std::string& block) const {
    return config_.insecure || (block == "tcp" && from_.has_tls());
  }
  [[nodiscard]] static std::string remedy(const std::string& block) {
    return std::string(block == "tcp" ? "add tls { }, or " : "") + "set insecure: true to allow it";
  }

  void listening_interface(const std::string& block, int rail, const Located& interface,
                           const Located& address) {
    if (!address.text.empty()) {
      out_.add_in(block, "address", "set address or interface, not both", rail);
    } else if (!allowed(block) && interface.text != "lo") {
      out_.add_in(block, "interface",
                  interface.text +
                      " is not the loopback interface, and transfers are not encrypted; " +
                      remedy(block),
                  rail);
    }
  }

  void listening_address(const std::string& block, int rail, const Located& address) {
    if (!tls::is_numeric(address.text)) {
      out_.add_in(block, "address", "\"" + address.text + "\" is not a numeric IP address", rail);
    } else if (is_wildcard(address.text)) {
      out_.add_in(
          block, "address",
          address.text + " is not an address that peers can connect to; set the one that they use",
          rail);
    } else if (!allowed(block) && !is_loopback(address.text)) {
      out_.add_in(block, "address",
                  address.text + " is not a loopback address, and transfers are not encrypted; " +
                      remedy(block),
                  rail);
    }
  }

  void ofi(int rail) {
    const pb::OfiConfig& from = from_.ofi(rail);
    const std::string usual = config_.ofi.empty() ? "" : config_.ofi.front().provider.text;
    OfiSettings settings{
        located("ofi", rail, "provider", from.provider().empty() ? usual : from.provider()),
        located("ofi", rail, "domain", from.domain()),
        located("ofi", rail, "interface", from.interface()),
        located("ofi", rail, "address", from.address()),
        from.allow_emulation() || (!config_.ofi.empty() && config_.ofi.front().allow_emulation)};
    const std::string& provider = settings.provider.text;
    std::string& address = settings.address.text;
    const bool emulated = settings.allow_emulation && (provider.empty() || is_emulation(provider));
    if (is_emulation(provider) && !emulated) {
      out_.add_in("ofi", "provider",
                  provider +
                      " does not check what peers send; between nodes without RDMA write "
                      "tcp { } in place of ofi { } (for tests, allow_emulation: true "
                      "allows it)",
                  rail);
    } else if (!settings.interface.text.empty()) {
      listening_interface("ofi", rail, settings.interface, settings.address);
    } else if (!address.empty()) {
      listening_address("ofi", rail, settings.address);
    } else if (emulated) {
      address = "127.0.0.1";
    } else if (!config_.insecure) {
      out_.add_in("ofi", "provider",
                  "transfers over " + (provider.empty() ? "devices" : provider) +
                      " are not encrypted; set insecure: true to allow them",
                  rail);
    }
    ofi_beside_others(settings, rail);
    config_.ofi.push_back(std::move(settings));
  }

  void ofi_beside_others(const OfiSettings& rail, int index) {
    for (const OfiSettings& other : config_.ofi) {
      if (rail.provider.text != other.provider.text) {
        const auto called = [](const std::string& name) { return name.empty() ? "none" : name; };
        out_.add_in("ofi", "provider",
                    called(rail.provider.text) + " and " + called(other.provider.text) +
                        " in line " + std::to_string(other.provider.line) +
                        "; all rails need the same provider",
                    index);
        return;
      }
      const bool same = rail.address.text == other.address.text &&
                        rail.interface.text == other.interface.text &&
                        rail.domain.text == other.domain.text;
      if (!same) continue;
      const bool named = !rail.interface.text.empty();
      out_.add_in("ofi", named ? "interface" : "address",
                  "the same rail as in line " +
                      std::to_string(named ? other.interface.line : other.address.line) +
                      "; each rail needs its own address",
                  index);
      return;
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
      const bool missing = (name == "tcp" && from_.tcp_size() == 0) ||
                           (name == "ofi" && from_.ofi_size() == 0) ||
                           (name == "ucx" && !from_.has_ucx());
      if (missing)
        complain("transport", name + " is listed, but the block is missing: " + name + " { }");
    }
    config_.transport = std::move(*names);
  }

  const pb::DaemonConfig& from_;
  FieldErrors out_;
  DaemonConfig& config_;
};

}  // namespace

void check_network_config(const pb::DaemonConfig& from, const FieldErrors& errors,
                          DaemonConfig& config) {
  NetworkChecker(from, errors, config).run();
}

}  // namespace ho
