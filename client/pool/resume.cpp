// Sessions at a daemon that was restarted.
#include <chrono>
#include <thread>
#include <utility>

#include "client/pool/client_control.hpp"
#include "client/pool/session_rules.hpp"
#include "client/pool/sessions.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

constexpr auto kAwaitPause = std::chrono::milliseconds(5);
constexpr auto kCloseNoticed = std::chrono::milliseconds(200);

}  // namespace

Result<Sessions::Resumed> Sessions::resume(NodeIndex node, TimePoint deadline) {
  NodeSession& there = nodes_[node.value()];
  const auto last = there.control();
  auto made = ControlClient::connect(control_options(last->address(), there.fault), deadline);
  if (!made) {
    // It does not let us in as we are: that may pass, like a daemon that is not there yet.
    return Error(Errc::kUnavailable, made.error().context());
  }
  const std::shared_ptr<ControlClient> fresh = std::move(made).value();
  if (auto ok = check_next_daemon(last->hello(), fresh->hello()); !ok) {
    return ok.error().at(last->address());
  }
  auto resumed = fresh->resume(there.session, deadline);
  if (!resumed) return resumed.error();
  if (auto ok = reopen_flash(node, *fresh, deadline); !ok) return ok.error();
  return Resumed{std::move(*resumed), fresh};
}

void Sessions::settle(NodeIndex node, std::shared_ptr<ControlClient> control) {
  nodes_[node.value()].link->set(std::move(control));
}

/// While a node's daemon is restarted: waits for the next one. Elsewhere the connection as it is.
std::shared_ptr<ControlClient> Sessions::await_control(const NodeSession& node) const {
  auto control = node.control();
  const TimePoint end = clock_.now() + control->hello().resume;
  while (control->closed() && node.fault->resumable() && clock_.now() < end) {
    std::this_thread::sleep_for(kAwaitPause);
    control = node.control();
  }
  return control;
}

std::shared_ptr<ControlClient> Sessions::control_after(
    const NodeSession& node, const std::shared_ptr<ControlClient>& failed) const {
  // A request can fail before its connection counts as closed.
  const TimePoint end = clock_.now() + kCloseNoticed;
  while (!failed->closed() && clock_.now() < end) std::this_thread::sleep_for(kAwaitPause);
  if (!failed->closed() || !node.fault->resumable()) return nullptr;
  return await_control(node);
}

transport::FenceRequest Sessions::fence_of(NodeIndex node, ControlClient& control) const {
  return ClientControl(control, options_.name, clock_).fence_of(nodes_[node.value()].session);
}

}  // namespace ho::client
