#include "common/transport/striping/rails.hpp"

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::transport {
namespace {

/// While connect() waits: short enough not to be seen in a connection's time.
constexpr auto kNap = std::chrono::microseconds(50);

std::size_t index_of(LaneKind kind) { return static_cast<std::size_t>(kind); }

bool ready(const std::future<Result<std::string>>& answer) {
  return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

Rails::Rails(RailDriver& driver, std::uint32_t& generation, const PeerAddress& peer,
             std::vector<std::string> addresses)
    : driver_(driver), generation_(generation), peer_(peer), rails_(addresses.size()) {
  for (std::uint32_t i = 0; i < count(); ++i) {
    rails_[i].number = i;
    rails_[i].address = std::move(addresses[i]);
  }
}

Result<std::unique_ptr<Rails>> Rails::connect(RailDriver& driver, std::uint32_t& generation,
                                              const PeerAddress& peer, const Clock& clock,
                                              TimePoint deadline) {
  auto addresses = driver.rails_of(peer.address);
  if (!addresses) return addresses.error();
  HO_CHECK(!addresses->empty() && addresses->size() <= kRailsMax);
  std::unique_ptr<Rails> made(new Rails(driver, generation, peer, std::move(*addresses)));
  for (std::uint32_t i = 0; i < made->count(); ++i) {
    if (const auto begun = made->begin(i, clock.now(), true); !begun) {
      made->rails_[i].why = begun.error().message();
      if (made->count() == 1) return begun.error();
    }
  }
  made->wait_for_some(clock, deadline);
  const TimePoint now = clock.now();
  std::optional<Error> first;
  for (Entry& entry : made->rails_) {
    const bool failed = entry.rail != nullptr && entry.rail->state() == Rail::State::kFailed;
    if (failed && !first) first = entry.rail->failure();
  }
  if (made->open_count() == 0) {
    return first ? *first : Error(Errc::kDeadline, "no answer from the target");
  }
  for (Entry& entry : made->rails_) {
    if (entry.state == State::kConnecting) {
      made->advance_connecting(entry, now, {});  // those that have failed; the others go on
    } else if (entry.state == State::kOut) {
      entry.retry.failed(now);
    }
  }
  return made;
}

Result<void> Rails::begin(std::uint32_t number, TimePoint now, bool may_block) {
  Entry& entry = rails_[number];
  HO_CHECK(entry.state == State::kOut && entry.rail == nullptr);
  RailDriver::RailSpec spec;
  spec.address = entry.address;
  spec.number = number;
  spec.generation = entry.generation = ++generation_;
  spec.session = peer_.session;
  spec.may_block = may_block;
  auto rail = driver_.connect(spec);
  if (!rail) return rail.error();
  entry.rail = std::move(*rail);
  entry.state = State::kConnecting;
  entry.connect_end = now + kConnectTime;
  return {};
}

/// Until each rail is open or has failed, or one is open and the others had their time.
void Rails::wait_for_some(const Clock& clock, TimePoint end) {
  std::vector<RailOp*> none;
  while (true) {
    driver_.progress();
    bool moved = false;
    bool connecting = false;
    const TimePoint now = clock.now();
    for (Entry& entry : rails_) {
      if (entry.state != State::kConnecting) continue;
      moved = entry.rail->progress(none) || moved;
      if (entry.rail->state() == Rail::State::kOpen) {
        entry.state = State::kOpen;
        entry.moved = now;
        entry.retry.opened(now);
        end = std::min(end, now + kOthersTime);
      } else if (entry.rail->state() == Rail::State::kConnecting) {
        connecting = true;
      }
    }
    if (!connecting || now >= end) return;
    if (!moved) std::this_thread::sleep_for(kNap);
  }
}

Result<void> Rails::add(RemoteRegion& region, TimePoint now, TimePoint deadline) {
  const auto usable = [](const Entry& entry) {
    return entry.state == State::kOpen && entry.rail->state() == Rail::State::kOpen;
  };
  // A rail that does not answer must not use up the others' time.
  const auto each = (deadline - now) / std::max<std::ptrdiff_t>(
                                           std::count_if(rails_.begin(), rails_.end(), usable), 1);
  bool tried = false;
  std::optional<Error> first;
  for (Entry& entry : rails_) {
    if (!usable(entry)) continue;
    now += each;
    // A target whose key is good on one rail gave out good keys for all.
    const auto added = entry.rail->add(region, tried ? Rail::Trial::kNo : Rail::Trial::kYes, now);
    if (added) {
      tried = true;
      continue;
    }
    const Errc code = added.error().code();
    if (code != Errc::kUnavailable && code != Errc::kDeadline) return added.error();
    if (!first) first = added.error();
  }
  if (tried) return {};
  return first ? *first : Error(Errc::kUnavailable, "no rail of the peer is open");
}

std::optional<std::uint32_t> Rails::post(RailOp& op) {
  const std::size_t kind = index_of(op.kind());
  std::array<std::uint32_t, kRailsMax> order{};
  std::size_t open = 0;
  for (std::uint32_t i = 0; i < count(); ++i) {
    if (rails_[i].state == State::kOpen) order[open++] = i;
  }
  if (open > 1) {
    // The one with the least in flight: so a slower rail gets less.
    const auto load = [&](std::uint32_t i) {
      return std::make_tuple(rails_[i].bytes[kind], rails_[i].all_bytes(), i);
    };
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(open),
              [&](std::uint32_t a, std::uint32_t b) { return load(a) < load(b); });
  }
  for (std::size_t i = 0; i < open; ++i) {
    Entry& entry = rails_[order[i]];
    if (entry.rail->state() != Rail::State::kOpen || !entry.rail->post(op)) continue;
    entry.bytes[kind] += op.length_bytes;
    entry.rested = entry.rested || entry.ops == 0;
    ++entry.ops;
    bytes_[kind] += op.length_bytes;
    return order[i];
  }
  return std::nullopt;
}

void Rails::ended(std::uint32_t rail, const RailOp& op) {
  Entry& entry = rails_[rail];
  const std::size_t kind = index_of(op.kind());
  std::uint64_t& bytes = entry.bytes[kind];
  HO_CHECK(entry.ops > 0 && bytes >= op.length_bytes);
  bytes -= op.length_bytes;
  --entry.ops;
  bytes_[kind] -= op.length_bytes;
}

void Rails::progress(const Turn& turn, std::vector<RailOp*>& ended) {
  for (Entry& entry : rails_) {
    if (entry.rail == nullptr) continue;
    entry.connect_end += turn.forgiven;
    const bool idle = entry.ops == 0 && entry.rail->state() == Rail::State::kOpen;
    const bool rested = std::exchange(entry.rested, false);
    if (idle || entry.rail->progress(ended)) {
      entry.moved = turn.now;
      entry.silent = {};
    } else {
      entry.moved = rested ? turn.now : entry.moved + turn.forgiven;
      entry.silent += turn.watched;
    }
  }
}

bool Rails::silent(const Entry& entry, TimePoint now) const {
  return entry.ops > 0 && now - entry.moved > kSilence && open_count() > 1;
}

Duration Rails::silence() const {
  std::optional<Duration> shortest;
  for (const Entry& entry : rails_) {
    if (entry.ops == 0 || entry.state != State::kOpen) continue;
    shortest = std::min(shortest.value_or(entry.silent), entry.silent);
  }
  return shortest.value_or(Duration{0});
}

TimePoint Rails::moved_at() const {
  TimePoint latest{};
  for (const Entry& entry : rails_) {
    if (entry.state == State::kOpen) latest = std::max(latest, entry.moved);
  }
  return latest;
}

std::optional<Error> Rails::advance(TimePoint now, std::span<RemoteRegion* const> regions) {
  for (std::uint32_t i = 0; i < count(); ++i) {
    Entry& entry = rails_[i];
    switch (entry.state) {
      case State::kOpen:
        if (entry.rail->state() == Rail::State::kFailed) {
          if (auto lost = lose(i, entry.rail->failure())) return lost;
        } else if (silent(entry, now)) {
          const Error why(Errc::kUnavailable, "nothing moves on it");
          if (auto lost = lose(i, why)) return lost;
        }
        break;
      case State::kEnding:
        if (auto lost = advance_ending(entry, now)) return lost;
        break;
      case State::kConnecting: advance_connecting(entry, now, regions); break;
      case State::kOut:
        if (!entry.retry.due(now)) break;
        if (const auto begun = begin(i, now, false); !begun) stay_out(entry, begun.error(), now);
        break;
    }
  }
  return std::nullopt;
}

/// Closes an open rail here and asks the peer to do so there. @return the peer is lost with it.
std::optional<Error> Rails::lose(std::uint32_t number, const Error& why) {
  // What a device refuses on one rail it refuses on all.
  if (!peer_.fence || why.code() == Errc::kPermissionDenied) return why;
  Entry& entry = rails_[number];
  log(LogLevel::kWarning, "lost a rail of a node",
      {{"node", std::to_string(peer_.node.value())},
       {"rail", std::to_string(entry.number)},
       {"why", why.message()}});
  entry.why = why.message();
  entry.state = State::kEnding;
  entry.rail->close();
  entry.fence = peer_.fence({number, entry.generation});
  return std::nullopt;
}

std::optional<Error> Rails::advance_ending(Entry& entry, TimePoint now) {
  if (entry.fence && ready(*entry.fence)) {
    auto answer = entry.fence->get();
    entry.fence.reset();
    if (!answer) return answer.error().at("ending a rail at its target");
    if (!answer->empty()) {
      const auto addresses = driver_.rails_of(*answer);
      if (!addresses) return addresses.error();
      if (addresses->size() != count()) {
        return Error(Errc::kInvalidArgument, "the target has another number of rails now");
      }
      entry.address = (*addresses)[entry.number];
    }
  }
  if (entry.rail != nullptr && entry.ops == 0 && entry.rail->state() == Rail::State::kClosed) {
    entry.rail.reset();
  }
  if (entry.fence || entry.rail != nullptr) return std::nullopt;
  entry.state = State::kOut;
  entry.retry.ended(now);
  return std::nullopt;
}

void Rails::advance_connecting(Entry& entry, TimePoint now,
                               std::span<RemoteRegion* const> regions) {
  switch (entry.rail->state()) {
    case Rail::State::kConnecting:
      if (now < entry.connect_end) return;
      stay_out(entry, Error(Errc::kDeadline, "no answer from the target"), now);
      entry.rail->close();
      return;
    case Rail::State::kFailed:
      stay_out(entry, entry.rail->failure(), now);
      entry.rail->close();
      return;
    case Rail::State::kClosing: return;
    case Rail::State::kClosed:
      entry.rail.reset();
      entry.state = State::kOut;
      return;
    case Rail::State::kOpen: break;
  }
  for (RemoteRegion* const region : regions) {
    if (const auto added = entry.rail->add(*region, Rail::Trial::kNo, now); !added) {
      stay_out(entry, added.error(), now);
      entry.rail->close();
      return;
    }
  }
  entry.state = State::kOpen;
  entry.moved = now;
  entry.silent = {};
  entry.retry.opened(now);
  entry.why.clear();
  log(LogLevel::kInfo, "took a rail of a node back",
      {{"node", std::to_string(peer_.node.value())}, {"rail", std::to_string(entry.number)}});
}

/// An attempt has failed. The log says why, unless it said so last time.
void Rails::stay_out(Entry& entry, const Error& why, TimePoint now) {
  entry.retry.failed(now);
  std::string text = why.message();
  if (text == entry.why) return;
  log(LogLevel::kWarning, "a rail of a node is out",
      {{"node", std::to_string(peer_.node.value())},
       {"rail", std::to_string(entry.number)},
       {"why", text}});
  entry.why = std::move(text);
}

std::size_t Rails::open_count() const {
  return static_cast<std::size_t>(
      std::count_if(rails_.begin(), rails_.end(),
                    [](const Entry& entry) { return entry.state == State::kOpen; }));
}

void Rails::close() {
  for (Entry& entry : rails_) {
    if (entry.rail != nullptr) entry.rail->close();
    entry.fence.reset();
  }
}

bool Rails::closed() const {
  return std::all_of(rails_.begin(), rails_.end(), [](const Entry& entry) {
    return entry.rail == nullptr || (entry.ops == 0 && entry.rail->state() == Rail::State::kClosed);
  });
}

}  // namespace ho::transport
