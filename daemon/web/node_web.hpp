#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/tls/context.hpp"
#include "daemon/control/server.hpp"
#include "daemon/control/service.hpp"
#include "daemon/data/loop.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/web/http_server.hpp"
#include "daemon/web/metrics.hpp"
#include "daemon/web/pool_look.hpp"

namespace ho::daemon {

/// What a node shows over HTTP: the status page, its data, those of the whole pool, and /metrics.
/// Owner: the control thread. All parts outlive it.
class NodeWeb {
 public:
  struct Parts {
    const Pool& pool;
    const Service& service;
    const Server& server;
    const DataLoop& data;
    std::shared_ptr<const tls::ContextSlot> tls;  ///< null: no TLS
    const Clock& clock;
  };

  NodeWeb(asio::io_context& io, Parts parts, const HttpServer::Options& options);

  /// As HttpServer::listen().
  [[nodiscard]] Result<void> listen(int listening_fd) { return server_.listen(listening_fd); }
  void stop() { server_.stop(); }

 private:
  [[nodiscard]] HttpServer::Answer answer(std::string_view path) const;
  [[nodiscard]] NodeFigures figures() const;
  [[nodiscard]] std::string status_json() const;
  [[nodiscard]] std::string pool_json() const;

  const Parts parts_;
  const std::unique_ptr<PoolLook> look_;
  HttpServer server_;
};

}  // namespace ho::daemon
