#include "common/transport/ucx/rails.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/transport/striping/request.hpp"

namespace ho::transport {

UcxRails::UcxRails(const UcxContexts& contexts, std::vector<UcxWorker> workers, const Trial& trial,
                   std::vector<UcxPiece*>& ended)
    : contexts_(contexts),
      workers_(std::move(workers)),
      trial_(trial),
      ended_(ended),
      rails_(std::max(contexts_.size(), workers_.size())) {}

Result<std::unique_ptr<UcxRails>> UcxRails::connect(const UcxContexts& contexts,
                                                    std::vector<UcxWorker> workers,
                                                    const Trial& trial, const Clock& clock,
                                                    TimePoint deadline,
                                                    std::vector<UcxPiece*>& ended) {
  HO_CHECK(!contexts.empty() && !workers.empty());
  std::unique_ptr<UcxRails> made(new UcxRails(contexts, std::move(workers), trial, ended));
  // Devices may be on networks that are not connected to each other, and in another order there.
  const std::size_t pairings = contexts.size() == 1 ? 1 : made->workers_.size();
  const auto is_open = [](const Rail& rail) { return rail.state == State::kOpen; };
  for (std::size_t i = 0; i < pairings && (i == 0 || clock.now() < deadline); ++i) {
    made->begin_all(i, clock.now());
    // Silent rails may have used up all the time.
    const TimePoint now = clock.now();
    const bool last = i + 1 == pairings;
    made->wait_for_some(clock,
                        std::max(now + (deadline - now) / (last ? 1 : 2), now + kOthersTime));
    if (std::any_of(made->rails_.begin(), made->rails_.end(), is_open)) break;
  }
  if (std::none_of(made->rails_.begin(), made->rails_.end(), is_open)) return made->why_none();
  // Lanes without a limit on bytes in flight: the transport has one.
  made->loads_ = LaneLoads({made->count(), 1, UINT64_MAX});
  made->loads_.look(clock.now());
  for (std::uint32_t i = 0; i < made->count(); ++i) {
    Rail& rail = made->rails_[i];
    if (rail.state == State::kOpen) continue;
    made->loads_.fail(i);
    rail.turn.given_up(made->loads_.now());
    if (rail.state != State::kConnecting) made->log_left_out(rail);
  }
  return made;
}

std::string UcxRails::describe(const Rail& rail) const {
  return contexts_[rail.device]->device() + " to the node's device " + std::to_string(rail.worker);
}

void UcxRails::log_left_out(const Rail& rail) const {
  log(LogLevel::kWarning, "left a rail of a node out",
      {{"rail", describe(rail)}, {"why", rail.why ? rail.why->message() : std::string("?")}});
}

/// Pairs each local device with one of the target's, shifted by the same number of places, and
/// begins to connect them.
void UcxRails::begin_all(std::size_t places, TimePoint now) {
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    rail.connection.reset();
    rail.state = State::kOut;
    rail.why.reset();
    rail.device = i % contexts_.size();
    rail.worker = (i + places) % workers_.size();
    if (const auto begun = begin(rail, now); !begun) rail.why = begun.error();
  }
}

Result<void> UcxRails::begin(Rail& rail, TimePoint now) {
  // A wire-up over an interface that is down can end the process (UCX.md).
  if (!contexts_[rail.device]->up()) return Error(Errc::kUnavailable, "its port is down");
  auto connection =
      UcxConnection::begin(*contexts_[rail.device], workers_[rail.worker].address, ended_);
  if (!connection) return connection.error();
  rail.connection = std::move(*connection);
  rail.state = State::kConnecting;
  rail.connect_end = now + kConnectTime;
  rail.seen = now;
  return {};
}

/// Waits until all rails are connected or have failed, or some are connected and the others had
/// their time.
void UcxRails::wait_for_some(const Clock& clock, TimePoint end) {
  while (true) {
    for (const auto& context : contexts_) context->progress();
    const TimePoint now = clock.now();
    bool connecting = false;
    for (Rail& rail : rails_) {
      if (rail.state != State::kConnecting) continue;
      if (!rail.connection->wired()) {
        connecting = true;
      } else if (auto made = rail.connection->outcome(); made) {
        rail.state = State::kOpen;
        end = std::min(end, now + kOthersTime);
      } else {
        rail.why = made.error();
        close(rail);
      }
    }
    if (!connecting || now >= end) return;
  }
}

/// The error of connect(). A target's answer says more than silence, so it comes first.
Error UcxRails::why_none() const {
  for (const Rail& rail : rails_) {
    if (rail.why) return *rail.why;
  }
  return Error(Errc::kDeadline, "no answer from the target");
}

Result<void> UcxRails::try_key(const UcxKey& key, const Clock& clock, TimePoint deadline) {
  HO_CHECK(key.packed.size() == workers_.size());
  std::optional<Error> first;
  std::vector<Rail*> silent;
  const auto usable = [this](std::uint32_t i) { return lives(i) && !failed(i); };
  std::uint32_t left = 0;
  for (std::uint32_t i = 0; i < count(); ++i) left += usable(i) ? 1 : 0;
  for (std::uint32_t i = 0; i < count(); ++i) {
    if (!usable(i)) continue;
    Rail& rail = rails_[i];
    const TimePoint now = clock.now();
    const auto tried =
        rail.connection->try_key({key.packed[rail.worker], key.base, trial_.scratch,
                                  trial_.scratch_memory[rail.device].handle()},
                                 clock, now + (deadline - now) / static_cast<int>(left--));
    const bool no_answer = !tried && (tried.error().code() == Errc::kUnavailable ||
                                      tried.error().code() == Errc::kDeadline);
    if (!no_answer) {
      for (Rail* const one : silent) one->bad = true;
      return tried;
    }
    silent.push_back(&rail);
    if (!first) first = tried.error();
  }
  return first ? *first : Error(Errc::kUnavailable, "the peer is closed");
}

Result<UcxKeys> UcxRails::unpack(std::uint32_t rail, const UcxKey& key) const {
  return rails_[rail].connection->unpack(key.packed[rails_[rail].worker]);
}

bool UcxRails::post(UcxPiece& piece, const Transfer& transfer) {
  std::array<std::uint32_t, kRailsMax> order{};
  const std::size_t living_count = loads_.candidates(transfer.kind, order);
  bool full = false;
  for (std::size_t i = 0; i < living_count; ++i) {
    const std::uint32_t number = loads_.rail_of(order[i]);
    if (failed(number)) continue;
    if (full && loads_.in_question(number)) return false;
    if (loads_.pieces(order[i]) >= kLanePiecesMax) {
      full = true;
      continue;
    }
    Rail& rail = rails_[number];
    piece.rails = this;
    piece.lane = order[i];
    ++rail.in_flight;
    loads_.began(piece.lane, piece.length_bytes);
    const UcxKeys& keys = transfer.keys[number];
    const UcxConnection::Place place{transfer.local, transfer.memory[rail.device].handle(),
                                     transfer.remote,
                                     keys[static_cast<std::size_t>(transfer.kind)].get()};
    if (transfer.is_get) {
      rail.connection->get(transfer.kind, piece, place);
    } else {
      rail.connection->put(transfer.kind, piece, place);
    }
    return true;
  }
  return false;
}

void UcxRails::flush() {
  for (Rail& rail : rails_) {
    if (rail.state == State::kOpen) rail.connection->flush();
  }
}

void UcxRails::ended(const UcxPiece& piece) {
  Rail& rail = rails_[rail_of(piece)];
  HO_CHECK(rail.in_flight > 0);
  --rail.in_flight;
  if (rail.state != State::kOpen) return;  // LaneLoads has counted it as lost
  if (piece.slot != UcxPiece::kNoSlot) {
    loads_.ended(piece.lane, piece.length_bytes);
  } else {
    loads_.sign_ended(piece.lane);
    if (piece.status != UCS_OK) rail.bad = true;
  }
}

void UcxRails::fail(std::uint32_t number, std::string_view why) {
  HO_CHECK(lives(number) && living() > 1);
  Rail& rail = rails_[number];
  rail.why = Error(Errc::kUnavailable, std::string(why));
  log_left_out(rail);
  rail.turn.given_up(loads_.now());
  loads_.fail(number);
  close(rail);
}

void UcxRails::close(Rail& rail) {
  rail.state = State::kClosing;
  rail.connection->start_close();
}

std::optional<std::uint32_t> UcxRails::serve() {
  if (count() == 1) return std::nullopt;
  const bool tick = loads_.tick();
  for (Rail& rail : rails_) go_on(rail);
  if (!tick) return std::nullopt;
  const auto closing = [](const Rail& rail) { return rail.state == State::kClosing; };
  if (std::any_of(rails_.begin(), rails_.end(), closing)) loads_.unsettle();
  for (std::uint32_t i = 0; i < count(); ++i) {
    if (loads_.wants_sign(i) && !failed(i)) ask(i);
  }
  const std::uint32_t failing = loads_.failing();
  return failing == count() ? std::nullopt : std::optional(failing);
}

/// Moves a rail that does not live to its next state.
void UcxRails::go_on(Rail& rail) {
  switch (rail.state) {
    case State::kOpen: return;
    case State::kConnecting:
    case State::kConnected: return go_on_connecting(rail);
    case State::kClosing:
      if (rail.in_flight > 0 || !rail.connection->closed()) return;
      rail.connection.reset();
      rail.hello = UcxKeys();
      rail.bad = false;
      rail.state = State::kOut;
      return;
    case State::kProbed:
      if (!rail.probe->done()) return;
      rail.state = State::kOut;
      if (const auto there = std::exchange(rail.probe, nullptr)->outcome(); !there) {
        still_out(rail, there.error());
      } else if (const auto begun = begin(rail, loads_.now()); !begun) {
        still_out(rail, begun.error());
      }
      return;
    case State::kOut:
      if (!settled() || !rail.turn.has_come(loads_.now())) return;
      if (const auto begun = probe(rail); !begun) still_out(rail, begun.error());
      return;
  }
}

Result<void> UcxRails::probe(Rail& rail) {
  if (!contexts_[rail.device]->up()) return Error(Errc::kUnavailable, "its port is down");
  auto begun = UcxRailTry::begin(contexts_[rail.device]->settings(), workers_[rail.worker].address);
  if (!begun) return begun.error();
  rail.probe = std::move(*begun);
  rail.state = State::kProbed;
  return {};
}

void UcxRails::go_on_connecting(Rail& rail) {
  const TimePoint now = loads_.now();
  const Duration pause = now - std::exchange(rail.seen, now);
  if (pause >= kOwnPauseMin) rail.connect_end += pause;  // the job did not poll, so nothing moved
  if (rail.connection->wired()) {
    const bool known = rail.state == State::kConnected && !rail.connection->failed();
    const auto made = known ? Result<void>() : rail.connection->outcome();
    rail.state = State::kConnected;
    if (made) return;
    still_out(rail, made.error());
    close(rail);
  } else if (now >= rail.connect_end) {
    still_out(rail, Error(Errc::kDeadline, "no answer from the target"));
    close(rail);
  }
}

std::optional<std::uint32_t> UcxRails::ready() const {
  if (!settled()) return std::nullopt;
  for (std::uint32_t i = 0; i < count(); ++i) {
    if (rails_[i].state == State::kConnected && !rails_[i].connection->failed()) return i;
  }
  return std::nullopt;
}

void UcxRails::revive(std::uint32_t number) {
  Rail& rail = rails_[number];
  HO_CHECK(rail.state == State::kConnected);
  rail.state = State::kOpen;
  rail.turn.taken_back(loads_.now());
  loads_.revive(number);
  log(LogLevel::kInfo, "took a rail of a node back", {{"rail", describe(rail)}});
}

void UcxRails::give_up(std::uint32_t number, const Error& why) {
  still_out(rails_[number], why);
  close(rails_[number]);
}

/// Leaves the rail out after a failed attempt. Logs why, unless the last attempt failed alike.
void UcxRails::still_out(Rail& rail, const Error& why) {
  rail.turn.try_failed(loads_.now());
  const bool told = rail.why && rail.why->message() == why.message();
  rail.why = why;
  if (told) return;
  log(LogLevel::kWarning, "a rail of a node stays out",
      {{"rail", describe(rail)}, {"why", why.message()}});
}

/// Reads one byte of the target, to test whether the rail is alive.
void UcxRails::ask(std::uint32_t number) {
  Rail& rail = rails_[number];
  const UcxWorker& worker = workers_[rail.worker];
  const auto small = static_cast<std::size_t>(LaneKind::kSmall);
  if (rail.hello[small] == nullptr) {
    auto keys = rail.connection->unpack(worker.hello_packed);
    if (!keys) {
      rail.bad = true;
      return;
    }
    rail.hello = std::move(*keys);
  }
  rail.sign.length_bytes = 1;
  rail.sign.rails = this;
  rail.sign.lane = loads_.small_lane(number);
  ++rail.in_flight;
  loads_.sign_began(rail.sign.lane);
  rail.connection->get(LaneKind::kSmall, rail.sign,
                       {trial_.scratch, trial_.scratch_memory[rail.device].handle(), worker.hello,
                        rail.hello[small].get()});
}

void UcxRails::start_close() {
  for (Rail& rail : rails_) {
    if (rail.probe != nullptr) rail.probe->stop();
    if (rail.connection != nullptr) rail.connection->start_close();
  }
}

bool UcxRails::closed() {
  return std::all_of(rails_.begin(), rails_.end(), [](Rail& rail) {
    if (rail.probe != nullptr && !rail.probe->done()) return false;  // it would be waited for
    return rail.connection == nullptr || (rail.in_flight == 0 && rail.connection->closed());
  });
}

}  // namespace ho::transport
