#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/clock.hpp"
#include "common/transport/tcp/connection.hpp"
#include "common/transport/tcp/link_turns.hpp"

namespace ho::transport::tcp {

/// The links of a target's rails, and the turns that connections have on them. Owner thread: the
/// target's.
class RailLinks {
 public:
  /// The next rail. @param bytes_per_s  that it carries each way; 0: not known.
  void add(std::uint64_t bytes_per_s);

  [[nodiscard]] std::uint64_t bytes_per_s(std::size_t rail) const {
    return links_[rail]->bytes_per_s;
  }

  /// A session's parts of all rails; leave() ends them, after the session's connections.
  void join(Session& session, const LinkShare& share);
  void leave(Session& session);

  /// Begins a round, in which each connection is served once. `hot` gets the order: first those
  /// whose owners have not had their minimum, then those that did not move in the last round, as a
  /// session's connections share its turns.
  void begin_round(std::vector<Connection*>& hot, TimePoint now);
  /// Serves a connection as much as its session may move now; sets what it waits for.
  /// @return whether anything moved.
  bool serve(Connection& connection, std::span<std::byte> staging, std::size_t chunk_bytes,
             HelloCheck& check);
  /// How long those that wait may do so, where nothing moved in the last round; nullopt: none does.
  [[nodiscard]] std::optional<Duration> pause(std::span<Connection* const> hot) const;

 private:
  struct Link {
    explicit Link(std::uint64_t rate)
        : bytes_per_s(rate), in(LinkTurns::Way::kIn, rate), out(LinkTurns::Way::kOut, rate) {}
    const std::uint64_t bytes_per_s;  ///< each way; 0: not known
    LinkTurns in;
    LinkTurns out;
  };
  [[nodiscard]] static RailFlows flows_of(const Connection& connection);
  [[nodiscard]] bool owed(const Connection& connection) const;

  std::vector<std::unique_ptr<Link>> links_;  ///< by rail
  std::vector<Connection*> order_;            ///< of a round that begins
  TimePoint now_{};
  bool minimums_ = false;   ///< some session has one
  bool some_wait_ = false;  ///< for their turn, since the last round
};

}  // namespace ho::transport::tcp
