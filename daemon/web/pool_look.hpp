#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/tls/context.hpp"
#include "proto/control/control_client.hpp"

namespace ho::daemon {

/// What the other nodes of the pool say of themselves, for the status page.
///
/// A thread ("ho-look") asks them over control connections, since it has to wait for their answers.
/// It works only while somebody looks; then it closes the connections. A node that does not answer
/// is tried again more rarely, so that it costs the others little.
/// Owner: the control thread; the destructor waits for one request at most.
class PoolLook {
 public:
  struct Seen {
    NodeInfo node;
    std::string trouble = "not asked yet";  ///< why it does not answer; empty: it does
    NodeStatus status = {};                 ///< the last answer, and so are the sessions
    std::vector<SessionInfo> sessions = {};
    TimePoint asked = {};  ///< when it answered, or did not
  };
  struct Options {
    std::chrono::milliseconds period{1500};     ///< between two rounds
    std::chrono::milliseconds patience{500};    ///< for one node
    std::chrono::milliseconds retry{10'000};    ///< a node that did not answer
    std::chrono::milliseconds watched{10'000};  ///< so long somebody looks, after look()
  };

  /// @param tls  null: without TLS.
  PoolLook(std::shared_ptr<const tls::ContextSlot> tls, const Clock& clock, const Options& options);
  ~PoolLook();
  PoolLook(const PoolLook&) = delete;
  PoolLook& operator=(const PoolLook&) = delete;

  /// Somebody looks now. Does not wait. @return what was seen last of these nodes, in their order.
  [[nodiscard]] std::vector<Seen> look(const std::vector<NodeInfo>& others);

 private:
  /// The thread's view of one node.
  struct Line {
    std::unique_ptr<ControlClient> client;  ///< null: not connected
    TimePoint next = {};                    ///< when it is asked again
  };

  void start();
  void run();
  [[nodiscard]] Seen ask(const NodeInfo& node, Line& line) const;
  [[nodiscard]] Result<std::unique_ptr<ControlClient>> connect(const NodeInfo& node,
                                                               TimePoint deadline) const;

  const std::shared_ptr<const tls::ContextSlot> tls_;
  const Clock& clock_;
  const Options options_;
  std::mutex mutex_;  ///< for what both threads use: small values, seldom
  std::condition_variable bell_;
  std::vector<NodeInfo> wanted_;  ///< under mutex_
  TimePoint watched_until_{};     ///< under mutex_
  std::map<NodeId, Seen> seen_;   ///< under mutex_
  bool stopping_ = false;         ///< under mutex_
  std::map<NodeId, Line> lines_;  ///< the thread's
  std::thread thread_;            ///< starts with the first look
};

}  // namespace ho::daemon
