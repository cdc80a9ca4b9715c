// The C ABI of KV blocks. No exception leaves it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "client/api/c_handles.hpp"
#include "client/blocks/open_blocks.hpp"

namespace {

using namespace ho;
using namespace ho::client;
using namespace ho::client::c_api;

constexpr std::size_t kTextBytesMax = 255;
constexpr std::size_t kKeyBytesMin = 16;
constexpr std::size_t kKeyBytesMax = 64;
constexpr std::uint64_t kBlockBytesMin = 4096;
constexpr std::size_t kSizesMax = 16;
constexpr std::uint32_t kDeadlineMs = 5000;

Result<std::string> text_of(const char* given, const char* field) {
  std::string text = given == nullptr ? "" : given;
  if (text.size() <= kTextBytesMax) return text;
  return Error(Errc::kInvalidArgument, std::string(field) + ": more than 255 bytes");
}

/// What a job says of its blocks, checked.
struct BlocksOptions {
  BlocksTenantSpec tenant;
  std::string space;
  std::vector<std::uint64_t> sizes;
  std::uint32_t deadline_ms = kDeadlineMs;
};

Result<BlocksOptions> read_blocks_options(const ho_blocks_options& given) {
  // The fields of the first version. Without them the tenant would be the default one.
  constexpr std::size_t kFirstBytes = offsetof(ho_blocks_options, deadline_ms) + sizeof(uint32_t);
  if (given.struct_bytes < kFirstBytes) {
    return Error(Errc::kInvalidArgument, "struct_bytes is not set to the struct's size");
  }
  ho_blocks_options known{};
  std::memcpy(&known, &given, std::min(given.struct_bytes, sizeof(known)));
  BlocksOptions out;
  std::array<std::string, 5> parts;
  const std::array<std::pair<const char*, const char*>, 4> texts{{{known.model, "model"},
                                                                  {known.dtype, "dtype"},
                                                                  {known.layout, "layout"},
                                                                  {known.salt, "salt"}}};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto text = text_of(texts[i].first, texts[i].second);
    if (!text) return text.error();
    parts[i] = std::move(*text);
  }
  parts.back() = std::to_string(known.rank);
  out.space = block_space(parts);
  const auto tenant = utf8_text(known.tenant, "tenant", kTextBytesMax);
  if (!tenant) return tenant.error();
  const auto model = utf8_text(known.model, "model", kTextBytesMax);
  if (!model) return model.error();
  out.tenant.tenant = tenant->empty() ? "default" : *tenant;
  out.tenant.secret = known.secret == nullptr ? "" : known.secret;
  out.tenant.model = model->empty() ? "unnamed" : *model;
  if ((known.block_bytes == nullptr) != (known.block_bytes_count == 0) ||
      known.block_bytes_count > kSizesMax) {
    return Error(Errc::kInvalidArgument, "block_bytes: 1 to 16 sizes");
  }
  out.sizes.assign(known.block_bytes, known.block_bytes + known.block_bytes_count);
  for (const std::uint64_t size : out.sizes) {
    if (size >= kBlockBytesMin && size <= kSegmentBytesMax) continue;
    return Error(Errc::kInvalidArgument, "block_bytes: " + std::to_string(size) +
                                             " is not in 4096 .. a segment of the pool");
  }
  if (known.deadline_ms > 0) out.deadline_ms = known.deadline_ms;
  return out;
}

Result<BlockName> name_of(const ho_blocks& blocks, const ho_block& item) {
  if (item.key == nullptr || item.key_bytes < kKeyBytesMin || item.key_bytes > kKeyBytesMax) {
    return Error(Errc::kInvalidArgument, "a key has 16 to 64 bytes");
  }
  const auto* const key = static_cast<const std::byte*>(item.key);
  return name_block(blocks.space, {key, item.key_bytes});
}

Result<BlockItem> read_item(const ho_blocks& blocks, BlockOp op, const ho_block& item) {
  BlockItem out;
  const auto name = name_of(blocks, item);
  if (!name) return name.error();
  out.name = *name;
  if (op != BlockOp::kGet && op != BlockOp::kPut) return out;
  const bool listed = blocks.sizes.empty() || std::find(blocks.sizes.begin(), blocks.sizes.end(),
                                                        item.bytes) != blocks.sizes.end();
  if (item.bytes < kBlockBytesMin || item.bytes > kSegmentBytesMax) {
    return Error(Errc::kInvalidArgument, "a block has " + std::to_string(kBlockBytesMin) +
                                             " bytes or more, up to a segment of the pool, not " +
                                             std::to_string(item.bytes));
  }
  if (!listed) {
    return Error(Errc::kInvalidArgument,
                 std::to_string(item.bytes) + " bytes are none of the sizes of these blocks");
  }
  const auto handles = blocks.pool->handles_of(item.data, item.bytes);
  if (item.data == nullptr || !handles) {
    return Error(Errc::kInvalidArgument, "the memory is not registered");
  }
  out.data = static_cast<std::byte*>(item.data);
  out.bytes = item.bytes;
  out.cost = std::max(item.cost, 1U);
  out.local = *handles;
  return out;
}

Result<BlockOp> read_op(ho_blocks_op op) {
  switch (op) {
    case HO_BLOCKS_GET: return BlockOp::kGet;
    case HO_BLOCKS_PUT: return BlockOp::kPut;
    case HO_BLOCKS_EXISTS: return BlockOp::kExists;
    case HO_BLOCKS_REMOVE: return BlockOp::kRemove;
  }
  return Error(Errc::kInvalidArgument, "no such operation on blocks");
}

}  // namespace

extern "C" {

ho_status ho_blocks_open(ho_pool* pool, const ho_blocks_options* options, ho_blocks** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || options == nullptr || out == nullptr) return null_argument();
    auto read = read_blocks_options(*options);
    if (!read) return read.error();
    const auto largest = std::max_element(read->sizes.begin(), read->sizes.end());
    auto opened =
        open_blocks(*pool->pool, read->tenant, largest == read->sizes.end() ? 0 : *largest,
                    std::chrono::milliseconds(read->deadline_ms));
    if (!opened) return opened.error();
    *out = new ho_blocks{pool, std::move(read->space), std::move(read->sizes), *opened};
    const std::lock_guard guard(pool->mutex);
    pool->blocks.push_back(opened->get());
    return {};
  });
}

ho_status ho_blocks_close(ho_blocks* blocks) {
  if (blocks == nullptr) return HO_OK;
  return guarded([&]() -> Result<void> {
    {
      const std::lock_guard guard(blocks->pool->mutex);
      auto& open = blocks->pool->blocks;
      open.erase(std::remove(open.begin(), open.end(), blocks->blocks.get()), open.end());
    }
    blocks->blocks->close();
    delete blocks;
    return {};
  });
}

ho_status ho_blocks_submit(ho_blocks* blocks, ho_blocks_op op, const ho_block* items, size_t count,
                           uint64_t* ticket) {
  return guarded([&]() -> Result<void> {
    if (blocks == nullptr || items == nullptr || ticket == nullptr) return null_argument();
    const auto known = read_op(op);
    if (!known) return known.error();
    std::vector<BlockItem> read;
    read.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      auto item = read_item(*blocks, *known, items[i]);
      if (!item) return item.error().at("item " + std::to_string(i));
      read.push_back(*item);
    }
    const auto started = blocks->blocks->submit(*known, read);
    if (!started) return started.error();
    *ticket = *started;
    return {};
  });
}

int ho_blocks_event_fd(const ho_blocks* blocks) {
  return blocks == nullptr ? -1 : blocks->blocks->event_fd();
}

size_t ho_blocks_drain(ho_blocks* blocks, ho_block_done* done, size_t count) {
  if (blocks == nullptr || done == nullptr) return 0;
  std::size_t total = 0;
  guarded_end("ho_blocks_drain", [&] {
    std::array<BlockDone, 64> some;
    while (total < count) {
      const std::size_t most = std::min(count - total, some.size());
      const std::size_t taken = blocks->blocks->drain(std::span(some).first(most));
      for (std::size_t i = 0; i < taken; ++i) {
        done[total + i] = {some[i].ticket, some[i].index, static_cast<ho_status>(some[i].code)};
      }
      total += taken;
      if (taken < most) break;
    }
  });
  return total;
}

ho_status ho_blocks_match(ho_blocks* blocks, const ho_block* chain, size_t count, size_t* found,
                          uint64_t* pin) {
  return guarded([&]() -> Result<void> {
    if (blocks == nullptr || chain == nullptr || found == nullptr || pin == nullptr) {
      return null_argument();
    }
    std::vector<BlockName> names;
    names.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto name = name_of(*blocks, chain[i]);
      if (!name) return name.error().at("item " + std::to_string(i));
      names.push_back(*name);
    }
    const auto matched = blocks->blocks->match(names);
    *found = matched.count;
    *pin = matched.pin;
    return {};
  });
}

ho_status ho_blocks_unpin(ho_blocks* blocks, uint64_t pin) {
  return guarded([&]() -> Result<void> {
    if (blocks == nullptr) return null_argument();
    if (blocks->blocks->unpin(pin)) return {};
    return Error(Errc::kNotFound, "no such pin");
  });
}

}  // extern "C"
