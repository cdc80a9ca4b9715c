#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/net/stream.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/tcp/check.hpp"
#include "common/transport/tcp/frames.hpp"
#include "common/transport/tcp/link_turns.hpp"
#include "common/transport/tcp/wire.hpp"
#include "common/transport/traffic.hpp"

namespace ho::transport::tcp {

/// A session's parts of one rail, of one class of traffic.
struct RailFlows {
  LinkTurns::Flow* in = nullptr;
  LinkTurns::Flow* out = nullptr;
};

/// What a target knows of one session.
struct Session {
  std::array<std::uint8_t, kTokenBytes> token{};
  std::string certificate;  ///< "job trainer": who opened it; empty: came by the Unix socket
  Segments segments;
  std::array<std::uint32_t, kRailsMax> fenced{};  ///< by rail: the last generation that has ended
  /// By rail and class; empty once it is dismissed.
  std::vector<std::array<RailFlows, kTrafficClasses>> flows;
  std::size_t connections = 0;
  bool dismissed = false;  ///< goes with its last segment
};

class Connection;

/// What an answer is to.
struct Served {
  std::optional<OpCode> op;  ///< nullopt: a hello
  TimePoint begun;           ///< when its header was there
  std::uint64_t length_bytes = 0;
  bool denied = false;
};

/// Decides about hellos, for connections.
class HelloCheck {
 public:
  virtual ~HelloCheck() = default;
  /// @return the session that the hello belongs to; nullptr: refused.
  /// @param peer  by its certificate; null: without TLS.
  [[nodiscard]] virtual Session* admit(const Hello& hello, const tls::CertificateFacts* peer) = 0;
  /// Whether a handshake may go on in this round: each step costs the thread some 0.3 ms.
  [[nodiscard]] virtual bool may_shake() = 0;
  /// Counts a refusal. `cause` is one of few texts.
  virtual void refused(const char* cause, const Connection& connection) = 0;
  /// Counts a request of a session whose answer has gone out.
  virtual void answered(const Served& request, TimePoint now) = 0;
};

/// One connection from an initiator, at the target.
///
///   greeting --hello is right--> serving --anything wrong, fence, revoke, end--> ended
///
/// Owner thread: the target's. The session outlives it.
class Connection {
 public:
  /// Requests that are answered only in part. It is not read on until some answers have gone out.
  static constexpr std::size_t kAnswersMax = 1024;

  Connection(std::unique_ptr<net::Stream> stream, std::uint8_t rail, TimePoint now)
      : stream_(std::move(stream)), rail_(rail), since_(now), moved_(now) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() = default;

  /// What one call moved.
  struct Progress {
    std::size_t bytes = 0;
    bool moved = false;  ///< bytes, or the connection's state
  };
  /// One call's worth of what comes in: headers, and a put's bytes up to the limit.
  Progress receive(std::span<std::byte> staging, std::size_t put_bytes_max, TimePoint now,
                   HelloCheck& check);
  /// One call's worth of answers.
  Progress send(std::size_t bytes_max, TimePoint now, HelloCheck& check);
  /// A put's bytes are to come.
  [[nodiscard]] bool amid_put() const { return !in_.place().empty(); }
  /// Whether there is something to send that the socket takes.
  [[nodiscard]] bool sends() const {
    return !ended() && stream_->established() && (!out_.empty() || stream_->unsent() > 0) &&
           stream_->writable();
  }
  /// Takes memory out of its reach. Where an answer is half sent from there, it ends.
  void let_go(std::span<const std::byte> memory);
  void end();

  [[nodiscard]] bool ended() const { return stream_ == nullptr; }
  [[nodiscard]] net::Stream& stream() { return *stream_; }
  [[nodiscard]] Session* session() const { return session_; }
  [[nodiscard]] std::uint8_t rail() const { return rail_; }
  [[nodiscard]] std::uint32_t generation() const { return generation_; }
  [[nodiscard]] bool small() const { return session_ != nullptr && lane_ == LaneKind::kSmall; }
  [[nodiscard]] TrafficClass traffic() const {
    if (lane_ == LaneKind::kBulk) return TrafficClass::kBulk;
    return lane_ == LaneKind::kBackground ? TrafficClass::kBackground : TrafficClass::kDeadline;
  }
  [[nodiscard]] TimePoint since() const { return since_; }
  /// A request is half read or an answer is not sent, and nothing has moved since then.
  [[nodiscard]] bool stuck(TimePoint before) const {
    return (in_.amid() || !out_.empty() || stream_->unsent() > 0) && moved_ < before;
  }

  bool hot = false;        ///< the target's: served without an event
  std::uint32_t idle = 0;  ///< the target's: rounds in which nothing moved
  bool waits_in = false;   ///< the target's: for its turn on the link, to receive
  bool waits_out = false;  ///< likewise, to send
  [[nodiscard]] bool waits() const { return waits_in || waits_out; }

 private:
  [[nodiscard]] bool establish(HelloCheck& check);
  [[nodiscard]] bool take_head(std::span<const std::byte, kFrameBytes> head, HelloCheck& check);
  [[nodiscard]] bool greet(const Hello& hello, HelloCheck& check);
  [[nodiscard]] bool begin(const Request& request, HelloCheck& check);
  void answer(const Answer& answer, const Served& to, std::span<const std::byte> data) {
    served(out_.size()) = to;
    out_.push(answer, data.data(), data.size());
  }
  /// What the answer at `index` of out_ is to.
  [[nodiscard]] Served& served(std::size_t index) {
    return served_[(first_served_ + index) % served_.size()];
  }
  [[nodiscard]] net::Moved flush(std::size_t chunk_bytes, HelloCheck& check);

  std::unique_ptr<net::Stream> stream_;  ///< null: ended
  const std::uint8_t rail_;
  const TimePoint since_;
  TimePoint moved_;
  Session* session_ = nullptr;
  std::uint32_t generation_ = 0;
  LaneKind lane_ = LaneKind::kSmall;
  Inbox<kFrameBytes> in_;
  Outbox<Answer> out_{0};
  std::vector<Served> served_;  ///< a ring beside out_
  std::size_t first_served_ = 0;
  Answer put_answer_;  ///< to the put whose bytes come in
  Served put_;
  TimePoint now_;  ///< when this round began
};

}  // namespace ho::transport::tcp
