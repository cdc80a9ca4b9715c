// Flash of a runtime: extents, the memory to reach them by, homes that go there and come back, and
// how extents leave a drained node.
#include <algorithm>
#include <string>
#include <utility>

#include "client/runtime/homes/storages.hpp"
#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

/// What passes between flash and the job's memory outside steps does so in parts of this size.
constexpr std::uint64_t kWindowBytes = 4 * kMiB;

/// A home and a window may take so many segments beyond their bytes: each begins one of its own.
constexpr std::uint64_t kSpareSegments = 4;

}  // namespace

Result<std::uint32_t> Storages::add_flash(NodeIndex node, std::uint64_t bytes) {
  if (auto opened = open_window(node); !opened) return opened.error();
  auto flash = pool_.allocate_flash(node, bytes, FlashPolicy::kScratch);
  if (!flash) {
    close_unused_window(node);
    return flash.error();
  }
  const auto free = std::find(flash_.begin(), flash_.end(), std::nullopt);
  const auto index = static_cast<std::uint32_t>(free - flash_.begin());
  if (free == flash_.end()) flash_.emplace_back();
  flash_[index] = *flash;
  return index;
}

void Storages::leave_flash(std::uint32_t index) {
  left_flash_.push_back(index);
  remove_left_flash();
}

void Storages::remove_left_flash() {
  const auto is_in = [](const std::optional<HeldStorage>& storage, const FlashArena& flash) {
    return storage && storage->home.flash && storage->home.flash->node == flash.node &&
           storage->home.flash->extent == flash.extent.id;
  };
  std::erase_if(left_flash_, [&](std::uint32_t index) {
    const bool used = std::any_of(held_.begin(), held_.end(), [&](const auto& storage) {
      return is_in(storage, *flash_[index]);
    });
    if (!used) remove_flash(index);
    return !used;
  });
}

void Storages::remove_flash(std::uint32_t index) {
  HO_CHECK(flash_[index].has_value());
  const NodeIndex node = flash_[index]->node;
  const auto freed = pool_.free_flash(*flash_[index]);
  if (!freed) {
    log(LogLevel::kWarning, "flash was not freed; the session's end will do it",
        {{"reason", freed.error().message()}});
  }
  flash_[index].reset();
  close_unused_window(node);
}

Result<void> Storages::open_window(NodeIndex node) {
  const auto is_its = [&](const Window& window) { return window.node == node; };
  if (std::any_of(windows_.begin(), windows_.end(), is_its)) return {};
  auto arena = pool_.allocate_on(node, kWindowBytes, streams_);
  if (!arena) return arena.error();
  windows_.push_back({node, std::move(arena).value()});
  return {};
}

void Storages::close_unused_window(NodeIndex node) {
  if (!flash_on(node).empty() || (spare_window_ == node && !pool_.is_drained(node))) return;
  const auto at = std::find_if(windows_.begin(), windows_.end(),
                               [&](const Window& window) { return window.node == node; });
  if (at == windows_.end()) return;
  if (spare_window_ == node) spare_window_.reset();
  pool_.release(std::move(at->arena));
  windows_.erase(at);
}

std::vector<std::uint32_t> Storages::flash_on(NodeIndex node) const {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < flash_.size(); ++i) {
    if (flash_[i] && flash_[i]->node == node) found.push_back(i);
  }
  return found;
}

std::vector<NodeIndex> Storages::drained_flash() const {
  std::vector<NodeIndex> nodes;
  for (const auto& flash : flash_) {
    if (!flash || !pool_.is_drained(flash->node)) continue;
    if (std::find(nodes.begin(), nodes.end(), flash->node) == nodes.end()) {
      nodes.push_back(flash->node);
    }
  }
  return nodes;
}

Result<std::vector<NodeIndex>> Storages::nodes_for_flash(NodeIndex from) const {
  std::uint64_t bytes = 0;
  for (const std::uint32_t i : flash_on(from)) bytes += flash_[i]->extent.length_bytes;
  auto rooms = pool_.flash_rooms(pool_.nodes_that_stay());
  std::erase_if(rooms, [&](const FlashRoom& room) { return room.free_bytes < bytes; });
  if (rooms.empty()) {
    return Error(Errc::kExhausted, "no other node has room for the " + format_bytes(bytes) +
                                       " of flash that plans have on " +
                                       pool_.nodes()[from.value()].label);
  }
  const auto is_alike = [&](const FlashRoom& room) {
    return pool_.driver_of(room.node) == pool_.driver_of(from);
  };
  std::stable_sort(rooms.begin(), rooms.end(), [&](const FlashRoom& a, const FlashRoom& b) {
    return is_alike(a) != is_alike(b) ? is_alike(a) : a.free_bytes > b.free_bytes;
  });
  std::vector<NodeIndex> nodes;
  for (const FlashRoom& room : rooms) nodes.push_back(room.node);
  return nodes;
}

Result<Storages::FlashCopies> Storages::copy_flash(NodeIndex from, NodeIndex to,
                                                   const AtHome& at_home) {
  FlashCopies out;
  Result<void> done;
  for (const std::uint32_t flash : flash_on(from)) {
    const auto made = add_flash(to, flash_[flash]->extent.length_bytes);
    if (!made) {
      done = made.error();
      break;
    }
    out.copied.push_back(flash);
    out.copies.push_back(*made);
    out.moves.push_back({{from, flash_[flash]->extent.id, 0}, {to, flash_[*made]->extent.id, 0}});
  }
  if (done) done = copy_values(out.moves, at_home);
  if (done) return out;
  end_copies(out);
  return done.error();
}

/// The latest values in the extents: blocks that were never written cannot be read.
Result<void> Storages::copy_values(std::span<const FlashMove> moves, const AtHome& at_home) {
  for (std::uint32_t i = 0; i < held_.size(); ++i) {
    if (!held_[i] || !held_[i]->home.flash || !at_home(StorageNumber(i), *held_[i])) continue;
    StorageHome to = held_[i]->home;
    for (const FlashMove& move : moves) move.follow(to.flash);
    if (to.flash->node == held_[i]->home.flash->node) continue;  // it lies elsewhere
    if (auto copied = copy_value(*held_[i], to); !copied) return copied;
  }
  return {};
}

/// From its home to another one, by way of this process, behind all that a job waits for.
Result<void> Storages::copy_value(const HeldStorage& storage, StorageHome to) {
  // A storage without a value yet reads as zeros, wherever it lies: zero().
  if (!storage.written && storage.persistent) return {};
  std::vector<std::byte> buffer(std::min(kWindowBytes, storage.bytes));
  const auto handles = pool_.register_memory(buffer);
  if (!handles) return handles.error();
  const auto by = [&](Direction direction) {
    return [this, direction, &handles](const ArenaMap& map, std::uint64_t offset_bytes,
                                       std::span<std::byte> part) {
      return pool_.move_registered(direction, map, offset_bytes, part, *handles, {},
                                   transport::TrafficClass::kBackground);
    };
  };
  Result<void> done;
  for (std::uint64_t at = 0; done && at < storage.bytes; at += buffer.size()) {
    const auto part =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), storage.bytes - at));
    done = move(Direction::kGet, storage.home.from(at), part, by(Direction::kGet));
    if (done) done = move(Direction::kPut, to.from(at), part, by(Direction::kPut));
  }
  pool_.unregister_memory(*handles);
  if (!done) return done.error().at("moving " + storage.name);
  return {};
}

/// Before a home takes the last DDR of the node with most flash: there would be no room for a
/// window.
void Storages::open_spare_window(std::uint64_t bytes) {
  const auto stays = [&](NodeIndex node) {
    return !pool_.is_drained(node) && !pool_.is_lost(node);
  };
  if (spare_window_ && stays(*spare_window_)) return;
  const Rooms rooms = pool_.rooms(pool_.candidates(Nearness::kNear));
  const auto most = std::max_element(
      rooms.flash.begin(), rooms.flash.end(),
      [](const FlashRoom& a, const FlashRoom& b) { return a.free_bytes < b.free_bytes; });
  if (most == rooms.flash.end()) return;
  const bool has_more = std::any_of(rooms.ddr.begin(), rooms.ddr.end(), [&](const NodeRoom& room) {
    return room.node == most->node && room.free_bytes > bytes + kSpareSegments * room.segment_bytes;
  });
  if (!has_more && open_window(most->node)) spare_window_ = most->node;
}

std::vector<NodeIndex> Storages::drained_windows() const {
  std::vector<NodeIndex> nodes;
  nodes.reserve(windows_.size());
  for (const Window& window : windows_) {
    if (pool_.is_drained(window.node) && flash_on(window.node).empty())
      nodes.push_back(window.node);
  }
  return nodes;
}

/// In DDR, or where that is full on flash.
Result<void> Storages::give_any_home(HeldStorage& storage) {
  if (storage.home.area != nullptr || storage.home.flash) return {};
  if (device_.copies == 1 && !heap(storage.nearness).has_room(storage.bytes)) {
    open_spare_window(storage.bytes);
  }
  const auto given = give_home(storage);
  if (given || given.error().code() != Errc::kExhausted || device_.copies > 1) return given;
  return give_flash(storage) ? Result<void>() : given;
}

/// An extent of its own, on a node that has flash of this runtime already where one has room: a
/// plan stages through memory of each node that has some.
Result<void> Storages::give_flash(HeldStorage& storage) {
  const std::uint64_t bytes = align_up(storage.bytes, kFlashAlign);
  auto rooms = pool_.flash_rooms(pool_.candidates(Nearness::kNear));
  if (rooms.empty()) return pool_.no_flash();
  const auto is_used = [&](const FlashRoom& room) { return !flash_on(room.node).empty(); };
  std::stable_sort(rooms.begin(), rooms.end(), [&](const FlashRoom& a, const FlashRoom& b) {
    return is_used(a) != is_used(b) ? is_used(a) : a.free_bytes > b.free_bytes;
  });
  Result<std::uint32_t> flash =
      Error(Errc::kExhausted, "no node has " + format_bytes(bytes) + " of flash left");
  for (const FlashRoom& room : rooms) {
    if (room.free_bytes < bytes) continue;
    flash = add_flash(room.node, bytes);
    if (flash || flash.error().code() != Errc::kExhausted) break;
  }
  if (!flash) return flash.error();
  storage.extent = *flash;
  storage.home.flash = FlashPlace{flash_[*flash]->node, flash_[*flash]->extent.id, 0};
  return {};
}

Result<void> Storages::change_tier(HeldStorage& storage) {
  HO_CHECK((storage.home.area != nullptr || storage.home.flash) && !storage.home.doubled());
  HeldStorage moved;
  moved.bytes = storage.bytes;
  moved.nearness = storage.nearness;
  if (auto given = storage.home.flash ? give_home(moved) : give_flash(moved); !given) return given;
  if (storage.place.at_home) {
    if (auto copied = copy_value(storage, moved.home); !copied) {
      take_home(moved);
      return copied;
    }
  }
  take_home(storage);
  storage.home = moved.home;
  storage.range = moved.range;
  storage.doubled = moved.doubled;
  storage.extent = moved.extent;
  return {};
}

void Storages::follow_flash(const FlashCopies& copies) {
  for (auto& storage : held_) {
    if (!storage) continue;
    for (const FlashMove& move : copies.moves) move.follow(storage->home.flash);
  }
  // Plans know extents by the numbers that they have had from the beginning.
  for (std::size_t i = 0; i < copies.moves.size(); ++i) {
    std::swap(flash_[copies.copied[i]], flash_[copies.copies[i]]);
  }
}

void Storages::end_copies(const FlashCopies& copies) {
  for (const std::uint32_t copy : copies.copies) remove_flash(copy);
}

}  // namespace ho::client
