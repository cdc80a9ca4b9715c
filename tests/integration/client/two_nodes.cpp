#include "tests/integration/client/two_nodes.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace ho::test {
namespace {

std::string peer_text(int node, const std::string& address) {
  return "nodes { node_id: " + std::to_string(node) + " name: \"n" + std::to_string(node) +
         "\" control_addresses: \"" + address + "\" }\n";
}

}  // namespace

std::string TwoNodes::config(int node) const {
  const std::string number = std::to_string(node);
  std::string peers;
  for (int other = 0; other < spec_.nodes; ++other) {
    if (other != node) peers += peer_text(other, address(other));
  }
  return "node_id: " + number + "\nnode_name: \"n" + number +
         "\"\nddr_bytes: " + std::to_string(spec_.ddr_bytes) +
         "\nsegment_bytes: " + std::to_string(spec_.segment_bytes) +
         "\nlease_ms: " + std::to_string(spec_.lease_ms) +
         "\ndrain_ms: " + std::to_string(spec_.drain_ms) + "\nunix_socket: \"" +
         folder_.file("n" + number + ".sock") + "\"\n" +
         (spec_.tcp ? "tcp_listen: \"127.0.0.1:0\"\n" : "") +
         "tcp { address: \"127.0.0.1\" link_bytes_per_s: " +
         std::to_string(spec_.link_bytes_per_s) + " }\n" +
         (spec_.tcp || spec_.ucx ? "insecure: true\n" : "") + (spec_.ucx ? "ucx { }\n" : "") +
         (spec_.flash_bytes > 0 && node >= spec_.flash_from
              ? "flash { path: \"" + flash_path(node) + "\" }\n"
              : "") +
         (*spec_.racks != 0 ? std::string("rack: \"") + spec_.racks[node] + "\"\n" : "") +
         (spec_.blocks_bytes > 0
              ? "blocks { ddr_bytes: " + std::to_string(spec_.blocks_bytes) +
                    " flash_bytes: " + std::to_string(spec_.blocks_flash_bytes) + " }\n"
              : "") +
         peers;
}

TwoNodes::TwoNodes(const PoolSpec& spec) : spec_(spec) {
  for (int node = 0; node < spec.nodes && spec.flash_bytes > 0; ++node) {
    std::ofstream(flash_path(node)).close();
    std::filesystem::permissions(
        flash_path(node), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::resize_file(flash_path(node), spec.flash_bytes);
  }
  for (int node = 0; node < spec.nodes; ++node) {
    daemons_.push_back(std::make_unique<DaemonProcess>(folder_, "n" + std::to_string(node),
                                                       DaemonProcess::Spec{config(node), {}}));
  }
  for (int node = 0; node < spec.nodes; ++node) {
    INFO(daemon(node).err());
    (void)connect(address(node));
  }
}

void TwoNodes::restart(int node) {
  daemons_[static_cast<std::size_t>(node)] = std::make_unique<DaemonProcess>(
      folder_, "again" + std::to_string(node), DaemonProcess::Spec{config(node), {}});
  (void)connect(address(node));
}

std::string TwoNodes::flash_path(int node) const {
  return folder_.file("flash" + std::to_string(node));
}

std::string TwoNodes::address(int node) const {
  return "unix:" + folder_.file("n" + std::to_string(node) + ".sock");
}

std::string TwoNodes::tcp_address(int node) const {
  const auto nodes = connect(address(node))->nodes(soon());
  REQUIRE(nodes.ok());
  for (const std::string& known : nodes->front().control_addresses) {
    if (known.rfind("tcp:", 0) == 0) return known;
  }
  FAIL("the daemon names no TCP address");
  return {};
}

std::vector<SessionInfo> TwoNodes::sessions(int node) const {
  const auto sessions = connect(address(node))->sessions(soon());
  REQUIRE(sessions.ok());
  return *sessions;
}

std::uint64_t TwoNodes::granted_bytes(int node) const {
  const auto status = connect(address(node))->status(soon());
  REQUIRE(status.ok());
  return status->ddr_granted_bytes;
}

PoolHandle connect_pool(const std::string& addresses, const char* transport, const char* name,
                        std::uint64_t link_bytes_per_s, std::uint32_t op_deadline_ms) {
  ho_connect_options options{};
  options.struct_bytes = sizeof(options);
  options.pool = addresses.c_str();
  options.transport = transport;
  options.name = name;
  options.link_bytes_per_s = link_bytes_per_s;
  options.op_deadline_ms = op_deadline_ms;
  ho_pool* pool = nullptr;
  const ho_status status = ho_connect(&options, &pool);
  INFO(ho_last_error());
  REQUIRE(status == HO_OK);
  return PoolHandle(pool);
}

}  // namespace ho::test
