#include "client/runtime/homes/storages.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

/// For errors, such as "storing 4.weight".
std::string doing(const char* what, const HeldStorage& storage) {
  return std::string(what) + " " + storage.name;
}

constexpr std::uint64_t kZerosBytes = kMiB;

}  // namespace

Storages::~Storages() {
  for (std::uint32_t i = 0; i < flash_.size(); ++i) {
    if (flash_[i]) remove_flash(i);
  }
  for (Window& window : windows_) pool_.release(std::move(window.arena));
}

StorageNumber Storages::add(HeldStorage storage) {
  HO_CHECK(storage.bytes > 0);
  std::uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<std::uint32_t>(held_.size());
    held_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  const StorageNumber number(index);
  if (storage.name.empty()) storage.name = "storage " + std::to_string(index);
  if (storage.persistent) {
    const bool added = by_name_.emplace(storage.name, number).second;
    HO_CHECK(added);
  }
  held_[index] = std::move(storage);
  return number;
}

void Storages::remove(StorageNumber number) {
  HeldStorage& storage = at(number);
  if (storage.persistent) by_name_.erase(storage.name);
  take_home(storage);
  held_[number.value()].reset();
  free_.push_back(number.value());
}

std::optional<StorageNumber> Storages::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

HeldStorage* Storages::get(StorageNumber number) {
  const bool known = number.value() < held_.size() && held_[number.value()];
  return known ? &*held_[number.value()] : nullptr;
}

HeldStorage& Storages::at(StorageNumber number) {
  HeldStorage* const storage = get(number);
  HO_CHECK(storage != nullptr);
  return *storage;
}

Result<void> Storages::give_home(HeldStorage& storage) {
  if (storage.home.area != nullptr || storage.home.flash) return {};
  // Where all nodes that are left can be lost together, one home has to do.
  const auto two_fit = [&] {
    // First the nodes: one that comes meanwhile is in no domain yet.
    const auto nodes = pool_.candidates(Nearness::kAny);
    return pool_.failure_domains().some_apart(nodes);
  };
  if (device_.copies > 1 && two_fit()) {
    const DoubledWish wish{storage.bytes, {storage.nearness, storage.nearness}};
    const auto homes = allocate_doubled({&wish, 1});
    if (homes) {
      storage.doubled = homes->front();
      storage.home = home_of(homes->front());
      return {};
    }
    if (two_fit()) return homes.error();
  }
  auto range = heap(storage.nearness).allocate(storage.bytes);
  if (!range) return range.error();
  storage.range = *range;
  storage.home.area = &heap(storage.nearness).area(*range);
  storage.home.offset_bytes.fill(range->begin_bytes);
  return {};
}

void Storages::take_home(HeldStorage& storage) {
  if (storage.range) heap(storage.nearness).give_back(*storage.range);
  if (storage.doubled) give_back(*storage.doubled);
  if (storage.extent) remove_flash(*storage.extent);
  const bool in_left_flash = storage.home.flash && !storage.extent;
  storage.range.reset();
  storage.doubled.reset();
  storage.extent.reset();
  storage.home = StorageHome{};
  if (in_left_flash) remove_left_flash();
}

void Storages::release_unused() {
  near_.release_unused();
  far_.release_unused();
}

std::uint64_t Storages::ddr_bytes() const {
  std::uint64_t bytes = near_.held_bytes() + far_.held_bytes();
  for (const auto& [node, homes] : on_node_) bytes += homes.heap->held_bytes();
  return bytes;
}

Result<void> Storages::stage(Direction direction, const FlashPlace& flash, const ArenaMap& arena,
                             std::uint64_t offset_bytes, std::uint64_t bytes) {
  const auto at = std::find_if(flash_.begin(), flash_.end(), [&](const auto& one) {
    return one && one->node == flash.node && one->extent.id == flash.extent;
  });
  HO_CHECK(at != flash_.end());
  const auto ticket = pool_.start_stage(direction, **at, flash.offset_bytes, arena, offset_bytes,
                                        bytes, Urgency::kFirst);
  if (!ticket) return ticket.error();
  return pool_.engine().wait(*ticket);
}

/// To flash by way of its node's window.
Result<void> Storages::move(Direction direction, const StorageHome& home,
                            std::span<std::byte> memory, const Copy& copy,
                            std::uint8_t stale_homes) {
  if (!home.flash) {
    return direction == Direction::kGet ? get(home, memory, copy, stale_homes)
                                        : put(home, 0, 0, memory, copy, stale_homes);
  }
  const auto window = std::find_if(windows_.begin(), windows_.end(),
                                   [&](const Window& one) { return one.node == home.flash->node; });
  HO_CHECK(window != windows_.end());
  const ArenaMap& map = window->arena->map;
  for (std::size_t at = 0; at < memory.size(); at += map.bytes()) {
    const auto part = memory.subspan(at, std::min<std::size_t>(map.bytes(), memory.size() - at));
    FlashPlace flash = *home.flash;
    flash.offset_bytes += at;
    const auto staged = [&] { return stage(direction, flash, map, 0, part.size()); };
    const auto copied = [&] { return copy(map, 0, part); };
    const bool in = direction == Direction::kGet;
    if (auto first = in ? staged() : copied(); !first) return first;
    if (auto second = in ? copied() : staged(); !second) return second;
  }
  return {};
}

Storages::Copy Storages::registered(Direction direction, const LocalHandles& handles,
                                    Duration late_after) {
  return [this, direction, &handles, late_after](const ArenaMap& map, std::uint64_t offset_bytes,
                                                 std::span<std::byte> part) {
    return pool_.move_registered(direction, map, offset_bytes, part, handles, late_after);
  };
}

Result<void> Storages::move_host(Direction direction, const StorageHome& home,
                                 std::span<std::byte> memory, std::uint8_t stale_homes) {
  auto handles = pool_.register_memory(memory);
  if (!handles) return handles.error();
  auto moved = move(direction, home, memory, registered(direction, *handles), stale_homes);
  pool_.unregister_memory(*handles);
  return moved;
}

Result<void> Storages::move_device(Direction direction, HeldStorage& storage, ValueRange range) {
  std::span<std::byte> memory(storage.address, storage.bytes);
  if (device_.hosted()) {
    HO_CHECK(storage.address != nullptr);
  } else {
    HO_CHECK(storage.place.on_device &&
             storage.place.device_offset_bytes + storage.bytes <= device_.arena.size());
    memory = device_.arena.subspan(storage.place.device_offset_bytes, storage.bytes);
  }
  memory = memory.subspan(range.offset_bytes, range.length_bytes);
  const StorageHome home = storage.home.from(range.offset_bytes);
  const bool get = direction == Direction::kGet;
  const std::uint8_t stale = get ? storage.place.stale_homes : std::uint8_t{0};
  if (streams_ != nullptr) {
    const auto copy = [&](const ArenaMap& map, std::uint64_t offset_bytes,
                          std::span<std::byte> part) {
      return pool_.move_device(direction, map, offset_bytes, part, *streams_);
    };
    return move(direction, home, memory, copy, stale);
  }
  if (device_.hosted()) return move_host(direction, home, memory, stale);
  return move(direction, home, memory, registered(direction, arena_), stale);
}

Result<void> Storages::store(HeldStorage& storage) {
  HO_CHECK(storage.place.on_device);
  if (auto home = give_any_home(storage); !home) return home;
  if (auto moved = move_device(Direction::kPut, storage, {0, storage.bytes}); !moved) {
    return moved.error().at(doing("storing", storage));
  }
  storage.place.at_home = true;
  storage.place.stale_homes = 0;
  storage.written = true;
  return {};
}

Result<void> Storages::fetch(HeldStorage& storage, ValueRange range) {
  HO_CHECK(storage.place.at_home);
  if (auto zeroed = zero(storage); !zeroed) return zeroed;
  if (auto moved = move_device(Direction::kGet, storage, range); !moved) {
    return moved.error().at(doing("fetching", storage));
  }
  storage.place.on_device = true;
  return {};
}

Result<void> Storages::read(HeldStorage& storage, std::uint64_t offset_bytes,
                            std::span<std::byte> into) {
  HO_CHECK(storage.place.at_home && offset_bytes + into.size() <= storage.bytes);
  if (auto zeroed = zero(storage); !zeroed) return zeroed;
  const StorageHome home = storage.home.from(offset_bytes);
  const std::uint8_t stale = storage.place.stale_homes;
  if (auto moved = move_host(Direction::kGet, home, into, stale); !moved) {
    return moved.error().at(doing("reading", storage));
  }
  return {};
}

Result<void> Storages::write(HeldStorage& storage, std::uint64_t offset_bytes,
                             std::span<const std::byte> data) {
  HO_CHECK(offset_bytes + data.size() <= storage.bytes);
  if (auto home = give_any_home(storage); !home) return home;
  std::uint8_t stale = 0;
  if (data.size() < storage.bytes) {
    HO_CHECK(storage.place.at_home);
    if (auto zeroed = zero(storage); !zeroed) return zeroed;
    stale = storage.place.stale_homes;
  }
  // Only read by a put; ports take one span type for both directions.
  const std::span<std::byte> memory(const_cast<std::byte*>(data.data()), data.size());
  const StorageHome home = storage.home.from(offset_bytes);
  if (auto moved = move_host(Direction::kPut, home, memory, stale); !moved) {
    return moved.error().at(doing("writing", storage));
  }
  storage.place.at_home = true;
  storage.place.stale_homes = stale;
  storage.written = true;
  return {};
}

Result<void> Storages::store_staged(HeldStorage& storage, const HomeArea& staging) {
  HO_CHECK(storage.place.staged);
  const std::uint64_t begin = staging.begin_bytes + storage.place.staged_offset_bytes;
  if (storage.persistent) {
    HO_CHECK(storage.home.flash.has_value());
    auto moved = stage(Direction::kPut, *storage.home.flash, *staging.map, begin, storage.bytes);
    if (!moved) return moved.error().at(doing("storing", storage));
    storage.place.at_home = true;
    storage.written = true;
    return {};
  }
  std::vector<std::byte> value(storage.bytes);
  if (auto got = pool_.move_now(Direction::kGet, *staging.map, begin, value); !got) {
    return got.error().at(doing("storing", storage));
  }
  storage.home = StorageHome{};
  return write(storage, 0, value);
}

Result<void> Storages::zero(HeldStorage& storage) {
  const bool used = (storage.range && storage.range->used_before) ||
                    (storage.doubled && (storage.doubled->ranges[0].used_before ||
                                         storage.doubled->ranges[1].used_before));
  if (storage.written || !storage.persistent || !(storage.home.flash || used)) return {};
  std::vector<std::byte> zeros(std::min(storage.bytes, kZerosBytes));
  for (std::uint64_t at = 0; at < storage.bytes; at += zeros.size()) {
    const auto part =
        std::span(zeros).first(std::min<std::size_t>(zeros.size(), storage.bytes - at));
    const auto moved = move_host(Direction::kPut, storage.home.from(at), part);
    if (!moved) return moved.error().at(doing("writing", storage));
  }
  storage.written = true;
  return {};
}

}  // namespace ho::client
