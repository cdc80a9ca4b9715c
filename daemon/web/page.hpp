#pragma once

#include <string_view>

#include "daemon/web/http_server.hpp"

namespace ho::daemon {

/// page.html: self-contained; "NONCE" stands where its style and script name theirs.
extern const std::string_view kPageText;

/// The status page, with a Content-Security-Policy under which only its own style and script run
/// and only this server is read.
[[nodiscard]] HttpServer::Answer page();

}  // namespace ho::daemon
