// The C ABI of published objects. No exception leaves it.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/api/c_handles.hpp"
#include "client/include/hyperoffload/objects.h"
#include "client/objects/publisher.hpp"
#include "client/objects/relays.hpp"
#include "client/objects/subscriber.hpp"
#include "client/objects/tiles.hpp"
#include "common/layout/mesh.hpp"
#include "common/system/random.hpp"
#include "common/text/json.hpp"

namespace ho::client::c_api {

/// Keeps registrations from being ended while an object uses their memory.
class UsedMemory {
 public:
  explicit UsedMemory(ho_pool& pool) : pool_(&pool) {}
  UsedMemory(UsedMemory&& other) noexcept
      : pool_(other.pool_), bases_(std::exchange(other.bases_, {})) {}
  UsedMemory& operator=(UsedMemory&&) = delete;
  ~UsedMemory() {
    const std::lock_guard guard(pool_->mutex);
    for (const std::uintptr_t base : bases_) pool_->registered.at(base).objects -= 1;
  }

  /// nullopt: the memory is not registered as a whole.
  [[nodiscard]] std::optional<ho::client::LocalHandles> take(const void* memory,
                                                             std::size_t bytes) {
    const std::lock_guard guard(pool_->mutex);
    const auto at = pool_->registration_of(memory, bytes);
    if (at == pool_->registered.end()) return std::nullopt;
    bases_.push_back(at->first);
    pool_->registered.at(at->first).objects += 1;
    return at->second.handles;
  }

 private:
  ho_pool* pool_;
  std::vector<std::uintptr_t> bases_;
};

}  // namespace ho::client::c_api

struct ho_publisher {
  ho_pool* pool = nullptr;
  ho::client::c_api::UsedMemory memory;  ///< until the publisher has ended
  std::unique_ptr<ho::client::StopFlag> stop;
  std::unique_ptr<ho::client::Publisher> publisher;
};
struct ho_subscriber {
  ho_pool* pool = nullptr;
  ho::client::c_api::UsedMemory memory;
  std::unique_ptr<ho::client::StopFlag> stop;
  std::unique_ptr<ho::client::Subscriber> subscriber;
  std::unique_ptr<ho::client::Relays> relays;  ///< nullptr: none
  std::string text;
};

namespace {

using namespace ho;
using namespace ho::client;
using namespace ho::client::c_api;

constexpr std::size_t kNameBytesMax = 255;
constexpr std::size_t kDescriptionBytesMax = 65'535;
constexpr std::size_t kSecretBytesMin = 16;
constexpr std::size_t kSecretBytesMax = 256;
constexpr std::uint32_t kElementBytesMax = 1024;
constexpr std::uint32_t kVersions = 2;
constexpr const char* kOneRank = "1:all@0";

/// What publisher and subscriber have in common.
struct ObjectOptions {
  std::string name;
  std::string secret;
  std::string mesh;
  std::string relay;
  ho_object_options options{};
};

Result<ObjectOptions> read_object_options(const ho_object_options& given) {
  const auto known = take_in(given);
  if (!known) return known.error();
  ObjectOptions out;
  out.options = *known;
  auto name = utf8_text(out.options.name, "name", kNameBytesMax);
  if (!name) return name.error();
  if (name->empty()) return Error(Errc::kInvalidArgument, "an object needs a name");
  std::string secret = out.options.secret == nullptr ? "" : out.options.secret;
  if (!secret.empty() && (secret.size() < kSecretBytesMin || secret.size() > kSecretBytesMax)) {
    return Error(Errc::kInvalidArgument, "secret is not 16 to 256 bytes");
  }
  auto mesh = utf8_text(out.options.mesh, "mesh", kDescriptionBytesMax);
  if (!mesh) return mesh.error();
  if (mesh->empty() && out.options.rank != 0) {
    return Error(Errc::kInvalidArgument, "rank: " + std::to_string(out.options.rank) +
                                             " without a mesh, in which there is one rank, 0");
  }
  auto relay = utf8_text(out.options.relay, "relay", kDescriptionBytesMax);
  if (!relay) return relay.error();
  out.relay = std::move(*relay);
  out.name = std::move(*name);
  out.secret = std::move(secret);
  out.mesh = mesh->empty() ? kOneRank : std::move(*mesh);
  return out;
}

struct Tensor {
  ObjectTensor tensor;
  ObjectMemory memory;
};

Result<Tensor> read_tensor(UsedMemory& used, const ho_tensor& given) {
  Tensor out;
  auto name = utf8_text(given.name, "name", kDescriptionBytesMax);
  if (!name) return name.error();
  auto layout = utf8_text(given.layout, "layout", kDescriptionBytesMax);
  if (!layout) return layout.error();
  auto dtype = utf8_text(given.dtype, "dtype", kNameBytesMax);
  if (!dtype) return dtype.error();
  if (given.element_bytes > kElementBytesMax || given.dimensions > layout::kDimensionsMax) {
    return Error(Errc::kInvalidArgument,
                 "an element has at most 1024 bytes, a tensor 8 dimensions");
  }
  if ((given.shape == nullptr) != (given.dimensions == 0)) {
    return Error(Errc::kInvalidArgument, "a shape has as many sizes as dimensions");
  }
  if ((given.data == nullptr) != (given.bytes == 0)) {
    return Error(Errc::kInvalidArgument, "a tile has memory if it has bytes");
  }
  out.tensor.name = std::move(*name);
  out.tensor.layout = std::move(*layout);
  out.tensor.dtype = std::move(*dtype);
  if (given.dimensions > 0) {
    out.tensor.shape.assign(given.shape, given.shape + given.dimensions);
  }
  out.tensor.element_bytes = given.element_bytes;
  out.memory.data = static_cast<std::byte*>(given.data);
  out.memory.bytes = given.bytes;
  if (given.data != nullptr) out.memory.registered = used.take(given.data, given.bytes);
  return out;
}

Result<std::vector<Tensor>> read_tensors(UsedMemory& used, const ho_tensor* given,
                                         std::size_t count) {
  if (given == nullptr && count > 0) return null_argument();
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < count; ++i) {
    auto tensor = read_tensor(used, given[i]);
    if (!tensor) return tensor.error().at("tensor " + std::to_string(i));
    out.push_back(std::move(*tensor));
  }
  return out;
}

/// The caller's function, as a publisher calls it; empty: there is none.
std::function<Result<void>(std::size_t)> filling(const ho_object_options& options) {
  if (options.fill == nullptr) return {};
  return [fill = options.fill, context = options.fill_context](std::size_t tensor) -> Result<void> {
    last_error().clear();  // what it says is of a call of the library in it
    const ho_status status = fill(context, tensor);
    if (status == HO_OK) return {};
    if (status < HO_OK || status > HO_IO) {
      return Error(Errc::kInvalidArgument, "fill returned no status");
    }
    const std::string why = last_error().empty() ? "fill failed" : last_error();
    return Error(static_cast<Errc>(status), why);
  };
}

void count_object(ho_pool& pool, std::ptrdiff_t change) {
  const std::lock_guard guard(pool.mutex);
  pool.objects += static_cast<std::size_t>(change);
}

std::string describe(const Subscriber& subscriber, const Relays* relays) {
  JsonWriter out;
  out.begin_object().field("mesh", subscriber.mesh()).key("tensors").begin_array();
  for (const ObjectTensor& one : subscriber.tensors()) {
    out.begin_object().field("name", one.name).field("layout", one.layout);
    out.key("shape").begin_array();
    for (const std::uint64_t size : one.shape) out.value(size);
    out.end().field("element_bytes", one.element_bytes).field("dtype", one.dtype).end();
  }
  out.end().field("needed_bytes", subscriber.plan().needed_bytes);
  out.field("fetched_bytes", subscriber.plan().fetched_bytes);
  if (relays != nullptr) {
    out.key("relays")
        .begin_object()
        .field("fetched_bytes", relays->fetched_bytes())
        .field("relayed_reads", relays->relayed())
        .field("direct_reads", relays->direct())
        .end();
  }
  out.end();
  return std::move(out).text();
}

}  // namespace

extern "C" {

ho_status ho_tile_shape(const char* mesh, std::uint32_t rank, const char* layout,
                        const std::uint64_t* shape, std::uint32_t dimensions, std::uint64_t* tile) {
  return guarded([&]() -> Result<void> {
    if (shape == nullptr || tile == nullptr) return null_argument();
    if (dimensions > layout::kDimensionsMax) return bad_input("more than 8 dimensions");
    const bool one = mesh == nullptr || *mesh == '\0';
    const auto known = layout::parse_mesh(one ? kOneRank : mesh);
    if (!known) return known.error();
    const auto position = position_of(*known, rank);
    if (!position) return position.error();
    ObjectTensor tensor;
    tensor.name = "the tensor";
    tensor.layout = layout == nullptr ? "" : layout;
    tensor.shape.assign(shape, shape + dimensions);
    const auto placement = placement_of(*known, tensor);
    if (!placement) return placement.error();
    const auto boxes = layout::regions(placement->mesh, placement->layout, tensor.shape);
    if (!boxes) return boxes.error();
    for (const layout::Interval& side : (*boxes)[*position].intervals()) *tile++ = side.size();
    return {};
  });
}

ho_status ho_publisher_open(ho_pool* pool, const ho_object_options* options,
                            const ho_tensor* tensors, size_t count, ho_publisher** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || options == nullptr || out == nullptr) return null_argument();
    auto read = read_object_options(*options);
    if (!read) return read.error();
    UsedMemory used(*pool);
    auto list = read_tensors(used, tensors, count);
    if (!list) return list.error();
    Publisher::Options known;
    known.rank = read->options.rank;
    known.run = read->options.run;
    if (known.run == 0) {
      const auto mesh = layout::parse_mesh(read->mesh);
      if (!mesh) return mesh.error();
      while (known.run == 0 && mesh->ranks.size() == 1) known.run = random_u64();
    }
    known.versions = read->options.versions == 0 ? kVersions : read->options.versions;
    if (read->options.chunks > HO_CHUNKS_GRID) {
      return Error(Errc::kInvalidArgument, "chunks: not a ho_chunking");
    }
    known.chunking = read->options.chunks == HO_CHUNKS_GRID ? Chunking::kGrid : Chunking::kRows;
    known.link_bytes_per_s = read->options.link_bytes_per_s;
    if (read->options.exclusive > 1) {
      return Error(Errc::kInvalidArgument, "exclusive: 0 or 1");
    }
    known.exclusive = read->options.exclusive == 1;
    if (read->options.in_turns > 1) {
      return Error(Errc::kInvalidArgument, "in_turns: 0 or 1");
    }
    known.in_turns = read->options.in_turns == 1;
    known.fill = filling(read->options);
    known.name = std::move(read->name);
    known.secret = std::move(read->secret);
    known.mesh = std::move(read->mesh);
    for (Tensor& one : *list) {
      if (one.tensor.element_bytes == 0) {
        return Error(Errc::kInvalidArgument, one.tensor.name + ": element_bytes is 0");
      }
      known.tensors.push_back(std::move(one.tensor));
      known.memory.push_back(one.memory);
    }
    auto stop = std::make_unique<StopFlag>(false);
    known.stop = stop.get();
    auto made = wait_for_memory(
        *pool, [&] { return Publisher::create(*pool->pool, known); },
        [&] { return may_fit_anywhere(*pool, Publisher::need_of(*pool->pool, known)); });
    if (!made) return made.error();
    *out = new ho_publisher{pool, std::move(used), std::move(stop), std::move(*made)};
    count_object(*pool, 1);
    return {};
  });
}

ho_status ho_publish(ho_publisher* publisher, uint64_t version) {
  return guarded([&]() -> Result<void> {
    if (publisher == nullptr) return null_argument();
    publisher->stop->store(false);
    return publisher->publisher->publish(version);
  });
}

void ho_publisher_stop(ho_publisher* publisher) {
  if (publisher != nullptr) publisher->stop->store(true);
}

void ho_publisher_close(ho_publisher* publisher) {
  if (publisher == nullptr) return;
  guarded_end("ho_publisher_close", [&] { publisher->publisher.reset(); });
  ho_pool& pool = *publisher->pool;
  delete publisher;
  count_object(pool, -1);
}

ho_status ho_subscriber_open(ho_pool* pool, const ho_object_options* options,
                             const ho_tensor* tensors, size_t count, ho_subscriber** out) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || options == nullptr || out == nullptr) return null_argument();
    auto read = read_object_options(*options);
    if (!read) return read.error();
    UsedMemory used(*pool);
    auto list = read_tensors(used, tensors, count);
    if (!list) return list.error();
    Subscriber::Options known;
    known.name = std::move(read->name);
    known.secret = std::move(read->secret);
    known.mesh = std::move(read->mesh);
    known.rank = read->options.rank;
    known.link_bytes_per_s = read->options.link_bytes_per_s;
    for (Tensor& one : *list) {
      known.tensors.push_back({std::move(one.tensor), one.memory.bytes});
      known.memory.push_back(one.memory);
    }
    auto stop = std::make_unique<StopFlag>(false);
    known.stop = stop.get();
    auto made = Subscriber::create(*pool->pool, known);
    if (!made) return made.error();
    std::unique_ptr<Relays> relays;
    if (!read->relay.empty()) {
      Relays::Options shared;
      shared.relay = std::move(read->relay);
      shared.run = read->options.run;
      if (read->options.versions > 0) shared.versions = read->options.versions;
      auto relaying = Relays::create(*pool->pool, **made, shared);
      if (!relaying) return relaying.error();
      relays = std::move(*relaying);
    }
    *out = new ho_subscriber{
        pool, std::move(used), std::move(stop), std::move(*made), std::move(relays), {}};
    count_object(*pool, 1);
    return {};
  });
}

ho_status ho_acquire(ho_subscriber* subscriber, uint64_t least, uint64_t most, uint32_t timeout_ms,
                     uint64_t* version) {
  return guarded([&]() -> Result<void> {
    if (subscriber == nullptr || version == nullptr) return null_argument();
    subscriber->stop->store(false);
    const auto acquired =
        subscriber->subscriber->acquire({least, most}, std::chrono::milliseconds(timeout_ms));
    if (!acquired) return acquired.error();
    *version = *acquired;
    return {};
  });
}

ho_status ho_object_read(ho_subscriber* subscriber) {
  return guarded([&]() -> Result<void> {
    if (subscriber == nullptr) return null_argument();
    subscriber->stop->store(false);
    if (subscriber->relays != nullptr) return subscriber->relays->read();
    return subscriber->subscriber->read();
  });
}

ho_status ho_object_read_tensor(ho_subscriber* subscriber, size_t tensor) {
  return guarded([&]() -> Result<void> {
    if (subscriber == nullptr) return null_argument();
    if (subscriber->relays != nullptr) {
      return Error(Errc::kUnsupported, "with relays, tensors are read together");
    }
    subscriber->stop->store(false);
    return subscriber->subscriber->read_tensor(tensor);
  });
}

void ho_subscriber_stop(ho_subscriber* subscriber) {
  if (subscriber != nullptr) subscriber->stop->store(true);
}

void ho_object_release(ho_subscriber* subscriber) {
  if (subscriber == nullptr) return;
  guarded_end("ho_object_release", [&] { subscriber->subscriber->release(); });
}

const char* ho_object_text(ho_subscriber* subscriber) {
  if (subscriber == nullptr || subscriber->subscriber->mesh().empty()) return nullptr;
  guarded_end("ho_object_text", [&] {
    subscriber->text = describe(*subscriber->subscriber, subscriber->relays.get());
  });
  return subscriber->text.c_str();
}

void ho_subscriber_close(ho_subscriber* subscriber) {
  if (subscriber == nullptr) return;
  guarded_end("ho_subscriber_close", [&] {
    subscriber->relays.reset();
    subscriber->subscriber.reset();
  });
  ho_pool& pool = *subscriber->pool;
  delete subscriber;
  count_object(pool, -1);
}

}  // extern "C"
