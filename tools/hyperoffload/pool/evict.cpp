// evict: an administrator ends a job's session.
#include <algorithm>

#include "tools/hyperoffload/pool/item_command.hpp"

namespace ho::cli {

void add_evict(Program& program, const PoolOptions& defaults) {
  ItemCommand command;
  command.name = "evict";
  command.about = "End sessions, and free their memory";
  command.item = "session";
  command.shown_by = "sessions";
  command.done = "evicted";
  command.act = [](ControlClient& client, std::uint64_t session, TimePoint deadline) {
    return client.evict(SessionId(session), deadline);
  };
  command.has = [](ControlClient& client, std::uint64_t session,
                   TimePoint deadline) -> Result<bool> {
    const auto sessions = client.sessions(deadline);
    if (!sessions) return sessions.error();
    return std::any_of(sessions->begin(), sessions->end(),
                       [&](const SessionInfo& one) { return one.id.value() == session; });
  };
  command.manual = {
      "A session's number alone will do where only one node has that number. The job loses its "
      "memory of this node and fails. With copies elsewhere it goes on, and opens a new session on "
      "the node: to free a node, use `hyperoffload drain`. Its durable flash stays. "
      "Run it on the session's node as root, as the daemon's user or as one in access { admins }, "
      "or anywhere with a certificate of role admin.",
      {"hyperoffload sessions", "hyperoffload evict 0:17"},
      {{kExitDone, "all have ended"},
       {kExitNo, "some session did not end; the message says why"},
       {kExitPoolFailed, "the pool cannot be reached"}}};
  add_item_command(program, program.root(), defaults, command);
}

}  // namespace ho::cli
