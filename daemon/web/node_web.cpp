#include "daemon/web/node_web.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/text/json.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"
#include "daemon/web/page.hpp"
#include "proto/control/status_json.hpp"

namespace ho::daemon {
namespace {

/// Sessions of each other node: the page is about this one.
constexpr std::size_t kSessionsShownElsewhere = 32;

void begin_node(const NodeInfo& node, JsonWriter& json) {
  json.begin_object().field("node_id", node.node.value()).field("name", node.name);
  json.key("control_addresses").begin_array();
  for (const std::string& address : node.control_addresses) json.value(address);
  json.end();
}

}  // namespace

NodeWeb::NodeWeb(asio::io_context& io, Parts parts, const HttpServer::Options& options)
    : parts_(std::move(parts)),
      look_(std::make_unique<PoolLook>(parts_.tls, parts_.clock, PoolLook::Options())),
      server_(
          io, [this](std::string_view path) { return answer(path); }, options) {}

HttpServer::Answer NodeWeb::answer(std::string_view path) const {
  if (path == "/metrics") {
    return {"text/plain; version=0.0.4; charset=utf-8", metrics_text(figures())};
  }
  if (path == "/status.json") return {"application/json", status_json()};
  if (path == "/pool.json") return {"application/json", pool_json()};
  if (path == "/") return page();
  return {};
}

std::string NodeWeb::status_json() const {
  const NodeFacts& facts = parts_.service.facts();
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  begin_node(facts.nodes.front(), json);
  json.field("reachable", true);
  add_status_json(parts_.service.node_status(), json);
  std::vector<DriverOffer> offers;
  for (const transport::TargetCaps& driver : parts_.data.drivers()) {
    offers.push_back({std::string(driver.name), static_cast<std::uint32_t>(driver.rails)});
  }
  add_drivers_json(offers, facts.drivers_off, json);
  json.end().end().key("others").begin_array();
  for (std::size_t i = 1; i < facts.nodes.size(); ++i) {
    begin_node(facts.nodes[i], json);
    json.end();
  }
  json.end().key("sessions").begin_array();
  const auto sessions = parts_.service.session_infos();
  for (std::size_t i = 0; i < std::min(sessions.size(), kSessionsShown); ++i) {
    json.begin_object();
    add_session_json(sessions[i], json);
    json.end();
  }
  return std::move(json.end().end()).text();
}

/// The other nodes, as they answered last. Asking for it is looking.
std::string NodeWeb::pool_json() const {
  const auto& nodes = parts_.service.facts().nodes;
  const TimePoint now = parts_.clock.now();
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  for (PoolLook::Seen& seen : look_->look({nodes.begin() + 1, nodes.end()})) {
    begin_node(seen.node, json);
    json.field("asked", seen.asked != TimePoint()).field("reachable", seen.trouble.empty());
    if (!seen.trouble.empty()) {
      json.field("error", seen.trouble).end();
      continue;
    }
    json.field("seen_ms", std::chrono::floor<std::chrono::milliseconds>(now - seen.asked).count());
    seen.status.users.clear();  // that node shows them to this daemon, not to everybody
    add_status_json(seen.status, json);
    json.key("session_list").begin_array();
    for (std::size_t i = 0; i < std::min(seen.sessions.size(), kSessionsShownElsewhere); ++i) {
      seen.sessions[i].progress.last.clear();
      json.begin_object();
      add_session_json(seen.sessions[i], json);
      json.end();
    }
    json.end().end();
  }
  return std::move(json.end().end()).text();
}

NodeFigures NodeWeb::figures() const {
  NodeFigures out{parts_.service.node_status(), parts_.service.session_infos(),
                  parts_.service.activity(), parts_.service.stages(),
                  parts_.service.facts().tcp.get()};
  for (const auto& [id, segment] : parts_.pool.segments()) {
    switch (segment.state) {
      case SegmentRecord::State::kPreparing: ++out.segments_preparing; break;
      case SegmentRecord::State::kLive: ++out.segments_live; break;
      case SegmentRecord::State::kEnding: ++out.segments_ending; break;
    }
  }
  if (const auto* const flash = parts_.service.facts().flash) {
    out.flash_extents = flash->status().extents;
    out.flash_requests = flash->under_way();
  }
  out.blocks = parts_.service.block_figures();
  out.data_requests = parts_.data.waiting();
  out.control_connections = parts_.server.connections();
  if (parts_.tls) out.certificate_ends = parts_.tls->get()->facts().ends;
  return out;
}

}  // namespace ho::daemon
