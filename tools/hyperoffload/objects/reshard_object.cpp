// objects reshard: publishes a version anew, under another layout, and holds it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <hyperoffload/objects.hpp>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/objects/tiles.hpp"
#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/stop.hpp"
#include "common/cli/values.hpp"
#include "common/layout/layout.hpp"
#include "common/system/random.hpp"
#include "common/text/json.hpp"
#include "tools/hyperoffload/objects/object_input.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

/// How often it looks whether the new version is there.
constexpr Duration kLookEvery = std::chrono::seconds(2);
/// How long that may be in doubt: three times what a session waits for the next daemon of its node
/// (kResumeTime, 5 s), since looks take time and publishers announce their parts one by one.
constexpr Duration kMissingMax = std::chrono::seconds(15);
/// Parts of a version that a reader finds on one node: ObjectDirectory::kFoundMax.
constexpr std::size_t kPartsPerNodeMax = 1024;
constexpr Duration kStopLatency = std::chrono::milliseconds(50);

struct ObjectReshardArguments : ObjectArguments {
  std::string as;
  Duration hold{};  ///< 0: until a signal
  double link = 0;  ///< bytes/s, each way; 0: no limit
};

/// Memory for the largest tile, through which all tiles go, one after another.
struct TileBuffer {
  std::unique_ptr<std::byte[]> memory;
  std::uint64_t bytes = 0;
};

/// What one rank of the new layout has.
struct NewPart {
  std::uint32_t rank = 0;
  std::vector<std::uint64_t> tile_bytes;  ///< by tensor
  std::vector<std::size_t> stored;        ///< tensors whose tiles no earlier rank has
  std::uint64_t bytes = 0;
  std::uint64_t stored_bytes = 0;   ///< those of `stored`
  std::uint64_t fetched_bytes = 0;  ///< for them: with the rows that they lie in
  /// Reads `stored` until the rank is published; nullptr: there is nothing to read.
  std::unique_ptr<hyperoffload::Subscriber> reader;
};

/// Ends calls of the library soon after a signal. What it stops outlives it.
class Stopper {
 public:
  explicit Stopper(std::function<void()> stop)
      : thread_([this, stop = std::move(stop)] {
          while (!ended_) {
            if (stop_flag()) stop();
            std::this_thread::sleep_for(kStopLatency);
          }
        }) {}
  Stopper(const Stopper&) = delete;
  Stopper& operator=(const Stopper&) = delete;
  ~Stopper() {
    ended_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

/// Reads a version tile by tile, as a publisher of the new one asks for them. Throws the library's
/// errors, and returns those of arguments.
class ObjectReshard {
 public:
  ObjectReshard(const ObjectReshardArguments& args, const ObjectInput& input, Console& console,
                hyperoffload::Pool& pool, TileBuffer& buffer)
      : args_(args), input_(input), console_(console), pool_(pool), buffer_(buffer) {
    from_.name = args.name.c_str();
    to_.name = args.as.c_str();
    from_.secret = to_.secret = input.secret.c_str();
    from_.mesh = to_.mesh = args.mesh.c_str();
    from_.link_bytes_per_s = to_.link_bytes_per_s = static_cast<std::uint64_t>(args.link);
  }

  /// @return kAlreadyExists: there is such a version; kExhausted: no memory for the largest tile,
  /// or too few nodes; kCanceled: a signal ended it.
  [[nodiscard]] Result<void> run() {
    // Open until all is read: its publisher keeps the version meanwhile, if it keeps it whole.
    hyperoffload::Subscriber whole(pool_.get(), look_at(args_.name), {});
    version_ = whole.acquire(args_.version.value_or(0), timeout_ms(args_),
                             args_.version.value_or(UINT64_MAX));
    auto tensors = tensors_of(whole);
    if (!tensors) return tensors.error();
    tensors_ = std::move(*tensors);
    if (auto ok = set_layouts(args_, input_.by_name, tensors_); !ok) return ok;
    if (auto ok = keep_only(args_.only, tensors_); !ok) return ok;
    if (auto ok = lay_out(); !ok) return ok;
    new_.emplace(pool_.get(), look_at(args_.as), std::vector<ho_tensor>());
    if (is_there()) {
      return Error(Errc::kAlreadyExists, "--as: version " + std::to_string(version_) + " of " +
                                             args_.as + " is there already");
    }
    if (auto ok = check_nodes(); !ok) return ok;
    open_readers();
    catch_stop_signals();  // from here on there is something to give back
    const Stopper stopper([this] { stop_all(); });
    open_publishers();
    const TimePoint begun = clock_.now();
    for (at_ = 0; at_ < parts_.size(); ++at_) {
      if (stop_flag()) return Error(Errc::kCanceled, "a signal ended it");
      publishers_[at_].publish(version_);
      close_reader(parts_[at_]);
    }
    took_ = clock_.now() - begun;
    // Fails where another run has published parts of it meanwhile, on other nodes.
    static_cast<void>(new_->acquire(version_, timeout_ms(args_), version_));
    new_->release();
    return {};
  }

  void show() const;
  /// Until a signal comes, the time is over, or the version is gone. @return the exit code.
  [[nodiscard]] int hold();

 private:
  /// For a reader of no tensor.
  [[nodiscard]] ho_object_options look_at(const std::string& name) const {
    ho_object_options options{};
    options.name = name.c_str();
    options.secret = input_.secret.c_str();
    return options;
  }

  /// Whether the new version is complete.
  bool is_there() {
    std::uint64_t found = 0;
    const ho_status status = ho_acquire(new_->get(), version_, version_, 0, &found);
    new_->release();
    return status == HO_OK;
  }

  /// Readers would never find a version with more parts on a node than one answer has.
  Result<void> check_nodes() const {
    if (parts_.size() <= kPartsPerNodeMax) return {};
    const std::size_t nodes = pool_.room().nodes;
    if (parts_.size() <= kPartsPerNodeMax * nodes) return {};
    return Error(Errc::kExhausted, "--mesh " + args_.mesh + ": " + std::to_string(parts_.size()) +
                                       " ranks; a node has at most " +
                                       std::to_string(kPartsPerNodeMax) +
                                       " parts of a version, and the pool " +
                                       std::to_string(nodes) + (nodes == 1 ? " node" : " nodes"));
  }

  /// The tiles of all ranks, and the memory for the largest of them.
  Result<void> lay_out() {
    for (const std::uint32_t rank : input_.mesh.ranks) parts_.emplace_back().rank = rank;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto ok = lay_out(i);
      if (ok) continue;
      return Error(ok.error().code(), "tensor \"" + tensors_[i].name + "\" over --mesh " +
                                          args_.mesh + ": " + ok.error().context() +
                                          "; --layout gives others");
    }
    if (buffer_.bytes == 0) return {};
    // Not zeroed: pages come as they are used.
    buffer_.memory.reset(new (std::nothrow) std::byte[buffer_.bytes]);
    if (buffer_.memory) {
      pool_.register_memory(buffer_.memory.get(), buffer_.bytes);
      return {};
    }
    return Error(Errc::kExhausted,
                 "no memory for the largest tile: " + format_bytes(buffer_.bytes) +
                     ", of tensor \"" + tensors_[largest_].name + "\"");
  }

  Result<void> lay_out(std::size_t tensor) {
    const LaidTensor& one = tensors_[tensor];
    const auto sizes = parts_of(input_.mesh, one);
    if (!sizes) return sizes.error();
    const auto placement = client::placement_of(
        input_.mesh, {one.name, one.layout, one.shape,
                      static_cast<std::uint32_t>(one.element_bytes), one.dtype});
    if (!placement) return placement.error();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::uint64_t bytes = bytes_of(one, (*sizes)[i]);
      NewPart& part = parts_[i];
      part.tile_bytes.push_back(bytes);
      part.bytes += bytes;
      if (bytes > buffer_.bytes) {
        buffer_.bytes = bytes;
        largest_ = tensor;
      }
      if (bytes == 0 || client::holder_of(*placement, i) != i) continue;
      part.stored.push_back(tensor);
      part.stored_bytes += bytes;
    }
    return {};
  }

  /// The tensors as a rank has them, all in the same memory.
  [[nodiscard]] std::vector<ho_tensor> tensors_in(const NewPart& part) const {
    std::vector<ho_tensor> out;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      ho_tensor& one = out.emplace_back();
      one.name = tensors_[i].name.c_str();
      one.layout = tensors_[i].layout.c_str();
      one.dtype = tensors_[i].dtype.c_str();
      one.shape = tensors_[i].shape.data();
      one.dimensions = static_cast<std::uint32_t>(tensors_[i].shape.size());
      one.element_bytes = static_cast<std::uint32_t>(tensors_[i].element_bytes);
      one.bytes = part.tile_bytes[i];
      one.data = one.bytes == 0 ? nullptr : buffer_.memory.get();
    }
    return out;
  }

  /// All have the version open before the first one reads. Each part that any of them reads is
  /// kept by its publisher meanwhile.
  void open_readers() {
    for (NewPart& part : parts_) {
      if (part.stored.empty()) continue;
      const std::vector<ho_tensor> all = tensors_in(part);
      std::vector<ho_tensor> wanted;
      for (const std::size_t tensor : part.stored) wanted.push_back(all[tensor]);
      ho_object_options options = from_;
      options.rank = part.rank;
      part.reader = std::make_unique<hyperoffload::Subscriber>(pool_.get(), options, wanted);
      static_cast<void>(part.reader->acquire(version_, timeout_ms(args_), version_));
    }
  }

  /// It has read. Gives back its memory, and lets go of what it alone has open.
  void close_reader(NewPart& part) {
    std::unique_ptr<hyperoffload::Subscriber> reader;
    const std::lock_guard lock(stopping_);
    reader.swap(part.reader);
    if (reader) part.fetched_bytes = fetched_bytes_of(*reader);
  }

  /// Takes the pool's memory for all of it. A signal ends it early.
  void open_publishers() {
    to_.run = random_u64() | 1U;  // not 0
    to_.versions = 1;
    to_.in_turns = 1;
    to_.fill = [](void* self, std::size_t tensor) {
      return static_cast<ObjectReshard*>(self)->fill(tensor);
    };
    to_.fill_context = this;
    for (const NewPart& part : parts_) {
      if (stop_flag()) return;
      to_.rank = part.rank;
      hyperoffload::Publisher opened(pool_.get(), to_, tensors_in(part));
      const std::lock_guard lock(stopping_);
      publishers_.push_back(std::move(opened));
    }
  }

  ho_status fill(std::size_t tensor) {
    if (stop_flag()) return HO_CANCELED;
    const NewPart& part = parts_[at_];
    const auto found = std::ranges::lower_bound(part.stored, tensor);
    HO_CHECK(found != part.stored.end() && *found == tensor);
    const auto wanted = static_cast<std::size_t>(found - part.stored.begin());
    if (wanted == 0) written_bytes_ = 0;  // also where the daemon's restart makes it begin anew
    console_.progress("rank " + std::to_string(part.rank) + ", " + std::to_string(at_ + 1) +
                      " of " + std::to_string(parts_.size()) + ": " + format_bytes(written_bytes_) +
                      " written, " + tensors_[tensor].name);
    const ho_status status = ho_object_read_tensor(part.reader->get(), wanted);
    if (status == HO_OK) written_bytes_ += part.tile_bytes[tensor];
    return status;
  }

  void stop_all() {
    const std::lock_guard lock(stopping_);
    for (const NewPart& part : parts_) {
      if (part.reader) part.reader->stop();
    }
    for (hyperoffload::Publisher& publisher : publishers_) publisher.stop();
    new_->stop();
  }

  const ObjectReshardArguments& args_;
  const ObjectInput& input_;
  Console& console_;
  hyperoffload::Pool& pool_;
  TileBuffer& buffer_;
  SteadyClock clock_;
  ho_object_options from_{};
  ho_object_options to_{};
  std::uint64_t version_ = 0;
  std::vector<LaidTensor> tensors_;
  std::vector<NewPart> parts_;
  std::optional<hyperoffload::Subscriber> new_;      ///< looks for the new version
  std::vector<hyperoffload::Publisher> publishers_;  ///< the same
  std::size_t at_ = 0;                               ///< the part that is published
  std::size_t largest_ = 0;                          ///< the tensor of the largest tile
  std::uint64_t written_bytes_ = 0;                  ///< of that part, by the last try
  std::mutex stopping_;                              ///< held to change what stop_all() walks over
  Duration took_{};
};

void ObjectReshard::show() const {
  std::uint64_t stored = 0;
  std::uint64_t fetched = 0;
  for (const NewPart& part : parts_) {
    stored += part.stored_bytes;
    fetched += part.fetched_bytes;
  }
  const double seconds = std::chrono::duration<double>(took_).count();
  if (console_.json()) {
    JsonWriter json;
    json.begin_object()
        .field("object", args_.name)
        .field("version", version_)
        .field("as", args_.as)
        .field("mesh", args_.mesh)
        .field("stored_bytes", stored)
        .field("fetched_bytes", fetched)
        .field("memory_bytes", buffer_.bytes)
        .field("seconds", seconds)
        .key("ranks")
        .begin_array();
    for (const NewPart& part : parts_) {
      json.begin_object()
          .field("rank", part.rank)
          .field("bytes", part.bytes)
          .field("stored_bytes", part.stored_bytes)
          .field("fetched_bytes", part.fetched_bytes)
          .end();
    }
    json.end().end();
    console_.print(std::move(json).text());
    return;
  }
  Facts facts("version " + std::to_string(version_) + " of " + args_.name + " as " + args_.as);
  facts.add("stored", format_bytes(stored) + ", " +
                          format_rate(static_cast<double>(stored) / seconds, "B/s"));
  facts.add("fetched", format_bytes(fetched));
  facts.add("by way of", format_bytes(buffer_.bytes) + " of this command's memory");
  Table table({{"RANK", Table::kRight},
               {"BYTES", Table::kRight},
               {"STORED", Table::kRight},
               {"FETCHED", Table::kRight}});
  for (const NewPart& part : parts_) {
    table.add({std::to_string(part.rank), format_bytes(part.bytes), format_bytes(part.stored_bytes),
               format_bytes(part.fetched_bytes)});
  }
  console_.print(facts.text(console_.format()) + table.text(console_.format()));
}

int ObjectReshard::hold() {
  const bool ends = args_.hold > Duration::zero();
  if (!ends && !console_.json()) console_.note("the version stays until Ctrl-C");
  TimePoint seen = clock_.now();
  const TimePoint end = seen + args_.hold;
  TimePoint look = seen + kLookEvery;
  while (!stop_flag()) {
    std::this_thread::sleep_for(kStopLatency);
    const bool over = ends && clock_.now() >= end;
    if (!over && clock_.now() < look) continue;
    if (is_there()) {
      if (over) return kExitDone;
      seen = clock_.now();
    } else if (over || clock_.now() - seen > kMissingMax) {
      return console_.complain(
          Error(Errc::kUnavailable, std::string("the version is gone: ") + ho_last_error()),
          kExitPoolFailed);
    }
    look = clock_.now() + kLookEvery;
  }
  return kExitInterrupted;
}

int run_object_reshard(Console& console, const ObjectReshardArguments& args) {
  const auto input = read_object_input(args);
  if (!input) return console.refuse(input.error());
  TileBuffer buffer;  // registered until the pool is closed
  std::optional<hyperoffload::Pool> pool;
  try {
    pool.emplace(hyperoffload::Pool::Options{
        .pool = args.pool, .name = "hyperoffload objects reshard", .tls = args.tls});
  } catch (const hyperoffload::Error& error) {
    return complain_about_pool(console, error_of(error));
  }
  try {
    ObjectReshard reshard(args, *input, console, *pool, buffer);
    const auto done = reshard.run();
    if (stop_flag()) return kExitInterrupted;
    if (!done) {
      const bool lacks_room = done.error().code() == Errc::kExhausted;
      return complain_about_object(console, args, done.error(),
                                   lacks_room ? kExitPoolFailed : kExitBadInput);
    }
    reshard.show();
    if (!console.flush()) return kExitDone;  // which says so
    return reshard.hold();
  } catch (const hyperoffload::Error& error) {
    if (stop_flag()) return kExitInterrupted;
    return complain_about_object(console, args, error_of(error), kExitPoolFailed);
  }
}

}  // namespace

void add_objects_reshard(Program& program, CLI::App& objects, const PoolOptions& defaults) {
  auto [command, args] = add_command<ObjectReshardArguments>(
      program, objects, "reshard", "Publish a version anew, under another layout, and hold it",
      run_object_reshard);
  command.add_option("--as", args.as, "name of the new object")->type_name("NAME")->required();
  command.add_option("--mesh", args.mesh, "ranks that the new object is for, as \"2x4:dp,tp\"")
      ->type_name("MESH")
      ->required();
  add_object_options(
      command, args,
      "axes by dimension, as \"tp;-\", for tensors of so many dimensions; may be given again for "
      "others (default: those that the object has)",
      "layouts of single tensors: the field \"to\" of a list as reshard takes it, whose shapes and "
      "element sizes are the object's");
  add_time(command, "--hold", args.hold,
           "end, and the new version with it, after that time (default: at Ctrl-C)",
           {std::chrono::milliseconds(100), std::chrono::hours(10'000)});
  add_rate(command, "--link", args.link,
           "read and write at no more than so much, so that other jobs have the rest of the links",
           {1, 1e15});
  add_pool_options(command, args, defaults);
  set_manual(
      command,
      {"For a program on other ranks than the one that published: each of its ranks then reads "
       "its tiles, in one piece. The new object has the version's number, and its secret. Bytes "
       "are fetched with one-sided gets, compared with the publisher's checksums and put into the "
       "pool, ranks on its nodes in turns: each tile once, one after another, by way of memory for "
       "the largest. A tile is read with the rows that it lies in: where ranks get parts of rows, "
       "each fetches whole ones, unless the publisher uses HO_CHUNKS_GRID. No file is written. The "
       "pool has both versions meanwhile, and a node each rank's part as a whole; the first one's "
       "program may end once the result is shown. Until then it is open: a publisher that keeps "
       "one version waits (HO_BUSY), and one that makes them faster must keep more. If a node that "
       "has the first version is upgraded or restarted meanwhile, the command ends: run it again. "
       "The new version lives as long as this command: until --hold is over, SIGINT or SIGTERM. "
       "Drains and upgrades of its node do not end it. --timeout is how long to wait for a "
       "version.",
       {"hyperoffload objects reshard policy --as policy-2x4 --mesh 2x4:dp,tp",
        "hyperoffload objects reshard policy --version 700 --as frozen --mesh 8:tp \\\n"
        "    --layout 'tp;-' --layout tp"},
       {{kExitDone, "the version was held for the time of --hold"},
        {kExitNo, "there is no such version, it went meanwhile, or its bytes are damaged"},
        {kExitPoolFailed,
         "the pool cannot be reached, or has no room; this machine has no memory for a tile; a "
         "node is lost, and with it the version"}}});
}

}  // namespace ho::cli
