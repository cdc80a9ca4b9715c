// The C ABI of plain flash access. No exception leaves it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include "client/api/c_handles.hpp"
#include "common/text/split_text.hpp"

namespace {

using namespace ho;
using namespace ho::client;
using namespace ho::client::c_api;

Result<FlashPolicy> policy_of(ho_flash_policy policy) {
  if (policy == HO_FLASH_SCRATCH) return FlashPolicy::kScratch;
  if (policy == HO_FLASH_DURABLE) return FlashPolicy::kDurable;
  return Error(Errc::kInvalidArgument, "the policy is neither scratch nor durable");
}

struct FlashName {
  NodeId node;
  FlashExtent extent;
};

/// "NODE:EXTENT:ACCESS", the last in hexadecimal: `hyperoffload flash` names extents like the rest.
std::string name_of(const FlashName& name) {
  std::string text;
  std::array<char, 20> number{};
  for (const std::uint64_t part :
       {std::uint64_t{name.node.value()}, name.extent.id, name.extent.access}) {
    const int base = text.find(':') == std::string::npos ? 10 : 16;
    const auto end = std::to_chars(number.data(), number.data() + number.size(), part, base);
    text += (text.empty() ? "" : ":") + std::string(number.data(), end.ptr);
  }
  return text;
}

Result<FlashName> read_name(std::string_view text) {
  const Error bad(Errc::kInvalidArgument, "not a name that ho_flash_name gave");
  std::array<std::uint64_t, 3> parts{};
  const auto words = split_text(text, ':');
  if (words.size() != parts.size()) return bad;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const char* const end = words[i].data() + words[i].size();
    const auto read = std::from_chars(words[i].data(), end, parts[i], i < 2 ? 10 : 16);
    if (read.ec != std::errc() || read.ptr != end) return bad;
  }
  if (parts[0] > kNodeIdMax) return bad;
  return FlashName{NodeId(static_cast<std::uint16_t>(parts[0])), {parts[1], parts[2], 0}};
}

/// On the node that has most of it free, or on the next where that one is lost.
Result<FlashArena> allocate_flash(Pool& pool, std::uint64_t bytes, FlashPolicy policy) {
  auto rooms = pool.flash_rooms(pool.nodes_of(Nearness::kAny));
  if (rooms.empty()) return pool.no_flash();
  std::stable_sort(rooms.begin(), rooms.end(),
                   [](const auto& a, const auto& b) { return a.free_bytes > b.free_bytes; });
  Result<FlashArena> made = pool.allocate_flash(rooms.front().node, bytes, policy);
  for (std::size_t i = 1; i < rooms.size() && rooms[i].free_bytes >= bytes; ++i) {
    if (made || made.error().code() != Errc::kUnavailable) break;
    made = pool.allocate_flash(rooms[i].node, bytes, policy);
  }
  return made;
}

ho_status start_stage(Direction direction, ho_pool* pool, const ho_flash* flash,
                      uint64_t flash_offset, const ho_allocation* memory, uint64_t offset,
                      size_t bytes, uint64_t* ticket) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || flash == nullptr || memory == nullptr || ticket == nullptr) {
      return null_argument();
    }
    if (auto own = check_owner(pool, *flash); !own) return own;
    if (auto own = check_owner(pool, *memory); !own) return own;
    const std::lock_guard stays(memory->memory->mutex());
    const auto started = pool->pool->start_stage(direction, flash->flash, flash_offset,
                                                 memory->memory->map(), offset, bytes);
    if (!started) return started.error();
    *ticket = *started;
    return {};
  });
}

}  // namespace

extern "C" {

ho_status ho_flash_allocate(ho_pool* pool, uint64_t bytes, ho_flash_policy policy, ho_flash** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || out == nullptr) return null_argument();
    if (bytes == 0) return Error(Errc::kInvalidArgument, "flash of 0 bytes");
    const auto wanted = policy_of(policy);
    if (!wanted) return wanted.error();
    auto made = wait_for_any_node(
        *pool, [&] { return allocate_flash(*pool->pool, bytes, *wanted); },
        [&] { return may_fit_anywhere(*pool, {.flash_whole_bytes = bytes}); });
    if (!made) return made.error();
    *out = new ho_flash{pool, *made};
    return {};
  });
}

ho_status ho_flash_free(ho_pool* pool, ho_flash* flash) {
  if (flash == nullptr) return HO_OK;
  return guarded([&]() -> Result<void> {
    if (pool == nullptr) return null_argument();
    if (auto own = check_owner(pool, *flash); !own) return own;
    if (auto freed = pool->pool->free_flash(flash->flash); !freed) return freed;
    delete flash;
    return {};
  });
}

void ho_flash_close(ho_flash* flash) { delete flash; }

ho_status ho_flash_name(const ho_pool* pool, const ho_flash* flash, char* out, size_t room) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || flash == nullptr || out == nullptr) return null_argument();
    if (auto own = check_owner(pool, *flash); !own) return own;
    const auto& node = pool->pool->nodes()[flash->flash.node.value()];
    const std::string name = name_of({node.control()->hello().node, flash->flash.extent});
    if (name.size() >= room) {
      return Error(Errc::kOutOfRange, "a name has up to HO_FLASH_NAME_BYTES bytes");
    }
    std::memcpy(out, name.c_str(), name.size() + 1);
    return {};
  });
}

ho_status ho_flash_open(ho_pool* pool, const char* name, ho_flash** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || name == nullptr || out == nullptr) return null_argument();
    const auto read = read_name(name);
    if (!read) return read.error();
    auto opened = pool->pool->open_flash(read->node, read->extent);
    if (!opened) return opened.error();
    *out = new ho_flash{pool, *opened};
    return {};
  });
}

uint64_t ho_flash_bytes(const ho_flash* flash) {
  return flash == nullptr ? 0 : flash->flash.extent.length_bytes;
}

ho_status ho_allocate_beside(ho_pool* pool, const ho_flash* flash, uint64_t bytes,
                             ho_allocation** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || flash == nullptr || out == nullptr) return null_argument();
    if (bytes == 0) return Error(Errc::kInvalidArgument, "an allocation of 0 bytes");
    if (auto own = check_owner(pool, *flash); !own) return own;
    const NodeIndex node = flash->flash.node;
    auto arena = wait_for_memory(
        *pool, [&] { return pool->pool->allocate_on(node, bytes); },
        [&] { return pool->pool->may_fit({.ddr_bytes = bytes}, {node}); });
    if (!arena) return arena.error();
    *out =
        new ho_allocation{pool, std::make_unique<PlainMemory>(*pool->pool, std::move(arena).value(),
                                                              PlainMemory::Drained::kStays)};
    const std::lock_guard guard(pool->mutex);
    pool->allocations += 1;
    return {};
  });
}

ho_status ho_stage_in(ho_pool* pool, const ho_flash* from, uint64_t flash_offset,
                      ho_allocation* into, uint64_t offset, size_t bytes, uint64_t* ticket) {
  return start_stage(Direction::kGet, pool, from, flash_offset, into, offset, bytes, ticket);
}

ho_status ho_stage_out(ho_pool* pool, ho_flash* to, uint64_t flash_offset,
                       const ho_allocation* from, uint64_t offset, size_t bytes, uint64_t* ticket) {
  return start_stage(Direction::kPut, pool, to, flash_offset, from, offset, bytes, ticket);
}

}  // extern "C"
