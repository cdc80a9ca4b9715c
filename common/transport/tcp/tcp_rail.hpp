#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/net/address.hpp"
#include "common/net/stream.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/tcp/frames.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/tcp/wire.hpp"

namespace ho::transport::tcp {

/// What the rails of one initiator share.
class TcpDriver final : public RailDriver {
 public:
  TcpDriver(const TcpOptions& options, std::optional<net::SocketAddress> source,
            const Clock& clock);

  [[nodiscard]] const Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::vector<std::string>> rails_of(const std::string& address) override {
    return decode_rails(address);
  }
  [[nodiscard]] Result<std::unique_ptr<Rail>> connect(const RailSpec& spec) override;
  [[nodiscard]] Result<std::unique_ptr<LocalMemory>> register_memory(
      std::span<std::byte> /*memory*/) override {
    return std::make_unique<LocalMemory>();  // sockets take any
  }
  [[nodiscard]] Result<std::unique_ptr<RemoteRegion>> open_region(const RegionGrant& grant,
                                                                  std::size_t rails) override;
  void progress() override { now_ = clock_.now(); }

  /// How a rail's connections are made.
  struct Route {
    RailAddress to;
    std::shared_ptr<const tls::Context> tls;  ///< null: without
  };
  /// Begins to connect.
  [[nodiscard]] Result<std::unique_ptr<net::Stream>> open_stream(const Route& route) const;

  [[nodiscard]] std::uint32_t connections() const { return options_.connections; }
  [[nodiscard]] std::span<std::byte> staging() { return staging_; }
  /// As Inbox and Outbox want it.
  [[nodiscard]] std::size_t chunk_bytes() const;
  void small_moved() { small_moved_ = now_; }

 private:
  const TcpOptions options_;
  const std::optional<net::SocketAddress> source_;
  const Clock& clock_;
  Caps caps_;
  TimePoint now_{};
  TimePoint small_moved_{};
  std::array<std::byte, kStagingBytes> staging_;
};

/// The connections to one address of a target: one for small operations and some for large ones.
/// Each other class of traffic gets one, from when its first operation is posted; until it is open,
/// and where it cannot be had, that class goes with large operations.
class TcpRail final : public Rail {
 public:
  /// Operations in flight on one connection.
  static constexpr std::size_t kLaneOpsMax = 512;

  TcpRail(TcpDriver& driver, const RailDriver::RailSpec& spec, TcpDriver::Route route,
          std::vector<std::unique_ptr<net::Stream>> streams);

  [[nodiscard]] State state() const override { return state_; }
  [[nodiscard]] Error failure() const override { return *failure_; }
  [[nodiscard]] Result<void> add(RemoteRegion& /*region*/, Trial /*trial*/,
                                 TimePoint /*deadline*/) override {
    return {};  // a refused request costs nothing
  }
  [[nodiscard]] bool post(RailOp& op) override;
  bool progress(std::vector<RailOp*>& ended) override;
  void give_back(RailOp& op) override;
  void close() override;

 private:
  struct Lane {
    Lane(LaneKind of, std::unique_ptr<net::Stream> socket) : kind(of), stream(std::move(socket)) {}
    LaneKind kind;
    std::unique_ptr<net::Stream> stream;
    bool asked = false;   ///< the hello is sent
    bool open = false;    ///< and answered
    bool absent = false;  ///< it could not be had; only of classes that can do without
    Outbox<Request> out{kLaneOpsMax};
    Inbox<sizeof(Answer)> in;
    /// Sent or to be sent, in the order in which their answers come: a ring.
    std::vector<RailOp*> waiting{std::vector<RailOp*>(kLaneOpsMax)};
    std::uint64_t first = 0;  ///< also its request's id
    std::uint64_t next = 0;
    std::uint64_t bytes = 0;         ///< sum over those waiting
    std::size_t unacknowledged = 0;  ///< after the last bytes were sent
    /// What puts that were given back have not sent, by request.
    std::map<std::uint64_t, std::vector<std::byte>> kept;
    [[nodiscard]] bool idle() const { return first == next; }
    [[nodiscard]] RailOp*& at(std::uint64_t id) { return waiting[id % kLaneOpsMax]; }
  };

  [[nodiscard]] Lane& lane_for(LaneKind kind);
  void open_lane(LaneKind kind);
  [[nodiscard]] Result<bool> greet(Lane& lane);
  bool move(Lane& lane, std::vector<RailOp*>& ended);
  [[nodiscard]] bool take_answer(Lane& lane, const Answer& answer, std::vector<RailOp*>& ended);
  void end_first(Lane& lane, Errc outcome, std::vector<RailOp*>& ended);
  void fail(const Error& why);

  TcpDriver& driver_;
  const RailDriver::RailSpec spec_;
  const TcpDriver::Route route_;
  State state_ = State::kConnecting;
  std::optional<Error> failure_;
  std::vector<Lane> lanes_;
};

}  // namespace ho::transport::tcp
