#include "common/transport/ofi/lanes.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/provider_names.hpp"
#include "common/transport/ofi/sockets.hpp"

namespace ho::transport {
namespace {

/// Of a connection that only tries a key.
constexpr std::uint32_t kTrialDepth = 16;
/// How long a target may take to accept it and to take or refuse the key. Devices' connections are
/// made by their managers, which takes 0.3 s to 1.3 s where one is emulated.
constexpr Duration kTrialLimit = std::chrono::seconds(1);
constexpr Duration kDeviceTrialLimit = std::chrono::seconds(5);

void log_left_out(const OfiAddress& address, std::string_view why) {
  log(LogLevel::kWarning, "left a rail of a node out",
      {{"rail", describe(address)}, {"why", std::string(why)}});
}

}  // namespace

Result<Lanes> Lanes::create(std::span<const OfiAddress> rails, const Options& options,
                            const Clock& clock, TimePoint deadline) {
  HO_CHECK(!rails.empty() && rails.size() <= kRailsMax);
  HO_CHECK(options.large > 0 && options.large <= kLargeMax && options.flight_bytes_max > 0);
  const auto there = knock(rails, clock, deadline);
  const auto count = static_cast<std::uint32_t>(rails.size());
  Lanes made;
  made.loads_ = LaneLoads({count, options.large, options.flight_bytes_max});
  made.connections_.resize(made.loads_.size());
  made.refused_.resize(made.loads_.size());
  made.lanes_of_rail_ = 1 + options.large;
  made.turns_.resize(count);
  made.whys_.resize(count);
  for (const OfiAddress& address : rails) made.rails_.push_back({address, options.how});
  if (!options.source_address.empty()) {
    for (Rail& rail : made.rails_) {
      auto source = source_name(options.source_address, rail.address.format);
      if (!source) return source.error();
      rail.how.source = std::move(*source);
    }
  }
  std::vector<std::optional<Error>> failures(count);
  for (std::uint32_t rail = 0; rail < count; ++rail) {
    // One that falls silent now must not use up the time of those behind it.
    const TimePoint now = clock.now();
    const TimePoint end = now + (deadline - now) / (count - rail);
    const Result<void> up = there[rail].ok() ? made.connect(rail, clock, end) : there[rail].error();
    if (up) continue;
    failures[rail] = up.error();
    made.drop(rail, up.error().message(), clock.now());
  }
  if (!made.open()) return *failures.front();
  for (std::uint32_t rail = 0; rail < count; ++rail) {
    if (failures[rail]) log_left_out(rails[rail], failures[rail]->message());
  }
  return made;
}

Result<void> Lanes::connect(std::uint32_t rail, const Clock& clock, TimePoint deadline) {
  const Rail& to = rails_[rail];
  const std::size_t first = loads_.small_lane(rail);
  for (std::size_t lane = first; lane < first + lanes_of_rail_; ++lane) {
    auto connection = Connection::create(to.address, to.how, clock, deadline);
    if (!connection) return connection.error();
    connections_[lane] = std::move(*connection);
  }
  return {};
}

void Lanes::close() {
  if (try_ && try_->done()) {
    try_.reset();  // with the connections it has made
  } else if (try_) {
    try_->stop();
  }
  connections_.clear();
  refused_.clear();
  leavings_ = Leavings();
  loads_ = LaneLoads();
}

void Lanes::drop(std::uint32_t rail, std::string_view why, TimePoint now) {
  whys_[rail] = why;
  turns_[rail].given_up(now);
  for (std::size_t lane = 0; lane < connections_.size(); ++lane) {
    if (loads_.rail_of(lane) == rail) connections_[lane].reset();
  }
  loads_.fail(rail);
}

void Lanes::fail(std::uint32_t rail, std::string_view why) {
  HO_CHECK(loads_.lives(rail) && loads_.living() > 1);
  log_left_out(rails_[rail].address, why);
  const auto alone = Leavings::alone();
  leavings_.hold(rails_[rail].address);
  drop(rail, why, loads_.now());
  leavings_.cut();
}

void Lanes::retry(const Memories& memories, const Clock& clock) {
  if (!open() || loads_.living() == loads_.rails()) return;
  const TimePoint now = loads_.now();
  if (try_) {
    if (!try_->done()) return;
    const std::uint32_t rail = try_->rail();
    if (const auto back = end_try(memories); back) {
      turns_[rail].taken_back(now);
    } else {
      still_out(rail, back.error());
    }
    return;
  }
  // What a rail has in this machine's kernel must be gone before there is more of it.
  if (!loads_.settled() || !leavings_.gone()) return;
  for (std::uint32_t rail = 0; rail < loads_.rails(); ++rail) {
    if (loads_.lives(rail) || !turns_[rail].has_come(now)) continue;
    const auto begun = begin_try(rail, clock);
    if (begun) return;
    still_out(rail, begun.error());
  }
}

void Lanes::still_out(std::uint32_t rail, const Error& error) {
  turns_[rail].try_failed(loads_.now());
  std::string why = error.message();
  if (why == whys_[rail]) return;
  log(LogLevel::kWarning, "a rail of a node stays out",
      {{"rail", describe(rails_[rail].address)}, {"why", why}});
  whys_[rail] = std::move(why);
}

Result<void> Lanes::begin_try(std::uint32_t rail, const Clock& clock) {
  const Rail& to = rails_[rail];
  auto begun = RailTry::begin({rail, to.address, to.how, lanes_of_rail_}, clock);
  if (!begun) return begun.error();
  try_ = std::move(*begun);
  return {};
}

/// The rail is back, or why it is not.
Result<void> Lanes::end_try(const Memories& memories) {
  const std::unique_ptr<RailTry> ended = std::move(try_);
  auto connections = ended->take();
  if (!connections) return connections.error();
  if (!loads_.settled()) return Error(Errc::kBusy, "another rail has failed meanwhile");
  for (const auto& connection : *connections) {
    for (const auto& [id, memory] : memories) {
      if (auto added = connection->add_memory(id, memory); !added) return added;
    }
  }
  const std::uint32_t rail = ended->rail();
  const std::size_t first = loads_.small_lane(rail);
  for (std::size_t i = 0; i < connections->size(); ++i) {
    connections_[first + i] = std::move((*connections)[i]);
    refused_[first + i] = false;
  }
  loads_.revive(rail);
  log(LogLevel::kInfo, "took a rail of a node back", {{"rail", describe(rails_[rail].address)}});
  return {};
}

Result<void> Lanes::try_keys(std::span<const RemoteKey> keys, const Clock& clock) const {
  HO_CHECK(open() && keys.size() == rails_.size());
  const bool tcp = runs_over_tcp(rails_.front().address.provider);
  const TimePoint deadline = clock.now() + (tcp ? kTrialLimit : kDeviceTrialLimit);
  std::uint32_t left = loads_.living();
  std::optional<Error> first;
  for (std::uint32_t rail = 0; rail < keys.size(); ++rail) {
    if (!loads_.lives(rail)) continue;
    const OfiAddress& address = rails_[rail].address;
    Endpoint::Reach how = rails_[rail].how;
    how.depth = kTrialDepth;
    const TimePoint now = clock.now();
    const TimePoint end = now + (deadline - now) / left--;
    auto trial = Connection::create(address, how, clock, end);
    if (trial) return (*trial)->probe(keys[rail], clock, end);
    const auto there = knock({&address, 1}, clock, clock.now()).front();
    const bool dead = !there && there.error().code() == Errc::kUnavailable;
    if (!first) first = dead ? there.error() : trial.error();
  }
  return *first;
}

Result<void> Lanes::add_memory(LocalId id, std::span<std::byte> memory) {
  for (const auto& connection : connections_) {
    if (!connection) continue;
    const auto added = connection->add_memory(id, memory);
    if (added) continue;
    remove_memory(id);
    return added.error();
  }
  return {};
}

void Lanes::remove_memory(LocalId id) {
  for (const auto& connection : connections_) {
    if (connection) connection->remove_memory(id);
  }
}

std::int64_t Lanes::post(Piece& piece, const Transfer& transfer) {
  std::array<std::uint32_t, kRailsMax> order{};
  const std::size_t count = loads_.candidates(transfer.kind, order);
  HO_CHECK(count > 0 && transfer.keys.size() == rails_.size());
  for (std::size_t i = 0; i < count; ++i) {
    piece.lane = order[i];
    const RemoteKey& key = transfer.keys[loads_.rail_of(piece.lane)];
    const Connection::Place place{transfer.local, transfer.memory, key.base + transfer.offset_bytes,
                                  key.key};
    Connection& connection = *connections_[piece.lane];
    const std::int64_t returned =
        transfer.is_get ? connection.read(piece, place) : connection.write(piece, place);
    if (returned == 0) loads_.began(piece.lane, piece.length_bytes);
    if (returned != -FI_EAGAIN) return returned;
    // Full, or its connection is being made anew.
    refused_[piece.lane] = true;
  }
  return -FI_EAGAIN;
}

std::optional<std::uint32_t> Lanes::tick() {
  if (!loads_.tick()) return std::nullopt;
  if (!leavings_.gone()) loads_.unsettle();
  for (std::uint32_t rail = 0; rail < loads_.rails(); ++rail) {
    if (!loads_.wants_sign(rail)) continue;
    const std::size_t lane = loads_.small_lane(rail);
    if (connections_[lane]->ask(rails_[rail].address.hello) == 0) {
      loads_.sign_began(lane);
    } else {
      refused_[lane] = true;
    }
  }
  const std::uint32_t failing = loads_.failing();
  if (failing == loads_.rails()) return std::nullopt;
  return failing;
}

}  // namespace ho::transport
