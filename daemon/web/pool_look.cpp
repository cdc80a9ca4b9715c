#include "daemon/web/pool_look.hpp"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/base/log.hpp"
#include "common/system/signals.hpp"

namespace ho::daemon {

PoolLook::PoolLook(std::shared_ptr<const tls::ContextSlot> tls, const Clock& clock,
                   const Options& options)
    : tls_(std::move(tls)), clock_(clock), options_(options) {}

PoolLook::~PoolLook() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  bell_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::vector<PoolLook::Seen> PoolLook::look(const std::vector<NodeInfo>& others) {
  std::vector<Seen> out;
  const std::lock_guard lock(mutex_);
  wanted_ = others;
  watched_until_ = clock_.now() + options_.watched;
  if (!thread_.joinable() && !others.empty()) start();
  bell_.notify_all();
  for (const NodeInfo& node : others) {
    const auto found = seen_.find(node.node);
    out.push_back(found == seen_.end() ? Seen{node} : found->second);
    out.back().node = node;
  }
  return out;
}

/// A system that has no thread left may have one at the next look.
void PoolLook::start() {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "ho-look");
  } catch (const std::system_error& error) {
    log(LogLevel::kWarning, "other nodes cannot be asked", {{"error", error.what()}});
  }
}

void PoolLook::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (clock_.now() >= watched_until_) {
      lock.unlock();
      lines_.clear();
      lock.lock();
      bell_.wait(lock, [this] { return stopping_ || clock_.now() < watched_until_; });
      continue;
    }
    const std::vector<NodeInfo> nodes = wanted_;
    lock.unlock();
    std::erase_if(lines_, [&](const auto& line) {
      return std::none_of(nodes.begin(), nodes.end(),
                          [&](const NodeInfo& node) { return node.node == line.first; });
    });
    for (const NodeInfo& node : nodes) {
      Line& line = lines_[node.node];
      if (clock_.now() < line.next) continue;
      Seen seen = ask(node, line);
      const std::lock_guard each(mutex_);
      if (stopping_) return;
      seen_[node.node] = std::move(seen);
    }
    lock.lock();
    std::erase_if(seen_, [&](const auto& one) { return lines_.count(one.first) == 0; });
    bell_.wait_for(lock, options_.period, [this] { return stopping_; });
  }
}

PoolLook::Seen PoolLook::ask(const NodeInfo& node, Line& line) const {
  Seen out{node};
  const TimePoint deadline = clock_.now() + options_.patience;
  const auto asked = [&]() -> Result<void> {
    if (!line.client || line.client->closed()) {
      auto client = connect(node, deadline);
      if (!client) return client.error();
      line.client = std::move(*client);
    }
    auto status = line.client->status(deadline);
    if (!status) return status.error();
    auto sessions = line.client->sessions(deadline, ControlClient::Names::kPublic);
    if (!sessions) return sessions.error();
    out.status = std::move(*status);
    out.sessions = std::move(*sessions);
    return {};
  }();
  out.asked = clock_.now();
  out.trouble = asked ? "" : asked.error().message();
  if (!asked) line.client.reset();
  line.next = out.asked + (asked ? std::chrono::milliseconds(0) : options_.retry);
  return out;
}

Result<std::unique_ptr<ControlClient>> PoolLook::connect(const NodeInfo& node,
                                                         TimePoint deadline) const {
  Error last(Errc::kUnavailable, "the pool gives no address for it");
  for (const std::string& address : node.control_addresses) {
    ControlClient::Options options;
    options.address = address;
    if (tls_) options.tls = tls_->get();
    auto client = ControlClient::connect(std::move(options), deadline);
    if (!client) {
      last = client.error();
    } else if ((*client)->hello().node == node.node) {
      return client;
    } else {
      last = Error(Errc::kUnavailable, address + " is another node");
    }
  }
  return last;
}

}  // namespace ho::daemon
