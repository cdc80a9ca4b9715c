// Transfers of storages with two homes: which home serves them, and what becomes of them when a
// node fails.
#include "client/replay/replay.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

using schedule::CacheOpKind;

std::uint8_t bit(std::uint8_t home) { return static_cast<std::uint8_t>(1U << home); }
std::uint8_t other_of(std::uint8_t home) { return home == 0 ? 1 : 0; }

}  // namespace

/// Looks up both homes of what a move is about.
void Replay::aim(Move& move, const StorageHome& home) {
  const HomePlace own = home.place(move.home);
  move.area = own.area;
  move.other = home.place(other_of(move.home));
  for (std::size_t parity = 0; parity < move.area_offset_bytes.size(); ++parity) {
    move.area_offset_bytes[parity] = own.offset_bytes[parity] + move.begin_bytes;
    move.other.offset_bytes[parity] += move.begin_bytes;
  }
}

void Replay::set_homes(std::span<const StorageHome> homes) {
  HO_CHECK(homes.size() == persistent_.size() && in_flight_ == 0);
  for (Move& move : moves_) {
    if (move.other.area != nullptr) aim(move, homes[move.storage.value()]);
  }
}

void Replay::follow_flash(std::span<const FlashMove> moves) {
  HO_CHECK(in_flight_ == 0);
  for (Move& move : moves_) {
    for (const FlashMove& one : moves) one.follow(move.flash);
  }
}

NodeIndex Replay::node_of(const Move& move, std::uint8_t home) {
  if (home != move.home) return move.other.node();
  return HomePlace{move.area, move.area_offset_bytes}.node();
}

/// Finds the home for a transfer that may start. @return false: it does not start: it is complete
/// without, or the replay has failed.
bool Replay::direct(const Mover& mover, std::uint32_t number) {
  Flight& flight = flights_[number];
  const Move& move = move_of(flight.instance);
  bool starts = false;
  if (move.kind == CacheOpKind::kPrefetch) {
    starts = direct_read(mover, flight, move);
    if (!starts) no_home(move);
  } else {
    HO_CHECK(move.kind == CacheOpKind::kStore);
    flight.home = move.home;
    flight.yields = may_give_up(mover, move);
    const NodeIndex node = node_of(move, move.home);
    // Without another home it waits for a daemon that is restarted.
    starts = mover.takes_puts(node) || (!flight.yields && !mover.is_lost(node));
    if (!starts && !flight.yields) no_home(move);
  }
  if (starts) return true;
  free_flights_.push_back(number);
  if (!failure_) give_up(flight.instance, move);
  return false;
}

/// The home that the plan has it in, if that node is there, else the other; where neither is, one
/// whose daemon is restarted. A home that lacks the value never.
bool Replay::direct_read(const Mover& mover, Flight& flight, const Move& move) const {
  const std::uint8_t stale = places_[move.storage.value()].stale_homes;
  const auto has_it = [&](std::uint8_t home) {
    return (stale & bit(home)) == 0 && !mover.is_lost(node_of(move, home));
  };
  for (const bool wait : {false, true}) {
    for (const std::uint8_t home : {move.home, other_of(move.home)}) {
      if (!has_it(home) || !(wait || mover.usable(node_of(move, home)))) continue;
      flight.home = home;
      flight.yields = !wait && has_it(other_of(home));
      return true;
    }
  }
  return false;
}

/// Whether a Store may be left out: the other home has the value, or its own Store still comes.
bool Replay::may_give_up(const Mover& mover, const Move& move) const {
  const std::uint8_t other = other_of(move.home);
  return (given_up_[move.storage.value()] & bit(other)) == 0 &&
         !mover.is_lost(node_of(move, other));
}

void Replay::give_up(const Instance& instance, const Move& move) {
  const std::uint32_t s = move.storage.value();
  given_up_[s] |= bit(move.home);
  if (places_[s].at_home) places_[s].stale_homes |= bit(move.home);
  complete(instance);
}

void Replay::no_home(const Move& move) {
  fail(Errc::kUnavailable, node_of(move, move.home));
  failure_->other_node = node_of(move, other_of(move.home));
  failure_->storages.push_back(move.storage);
}

/// A transfer failed. @return whether the run goes on without it.
bool Replay::failed_over(const Mover& mover, const Flight& flight, const Move& move,
                         const TransferDone& done) {
  if (move.other.area == nullptr) return false;
  if (stopped_) return true;  // its value is where it was
  const bool stores = move.kind == CacheOpKind::kStore;
  if (stores && may_give_up(mover, move)) {
    give_up(flight.instance, move);
    release_at_once();
    return true;
  }
  if (!done.late && mover.usable(node_of(move, flight.home))) {
    // For no reason that another try would not meet again.
    std::uint8_t& stale = places_[move.storage.value()].stale_homes;
    if (stores || (stale & bit(other_of(flight.home))) != 0) return false;
    stale |= bit(flight.home);
  }
  again_.push_back(flight);
  return true;
}

/// The latest value has arrived in one home.
void Replay::stored(const Move& move) {
  const std::uint32_t s = move.storage.value();
  ValuePlace& place = places_[s];
  if (!place.at_home) place.stale_homes = bit(other_of(move.home));
  place.at_home = true;
  place.stale_homes &= static_cast<std::uint8_t>(~bit(move.home));
  given_up_[s] &= static_cast<std::uint8_t>(~bit(move.home));
}

std::size_t Replay::start_again(Mover& mover, std::uint64_t now_ticks) {
  std::size_t started = 0;
  while (!failure_ && !again_.empty() && !mover.full() && !free_flights_.empty()) {
    const Flight failed = again_.back();
    again_.pop_back();
    const std::uint32_t number = open_flight(failed.instance, now_ticks);
    flights_[number].queued_ticks = failed.queued_ticks;
    flights_[number].needed_at = failed.needed_at;
    flights_[number].droppable = failed.droppable;
    flights_[number].after = failed.after;
    flights_[number].taken_mark = failed.taken_mark;
    start(mover, number);
    started += 1;
  }
  return started;
}

}  // namespace ho::client
