#include "client/objects/relays.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "client/pool/on_threads.hpp"
#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/log.hpp"

namespace ho::client {

namespace {

/// How long a rank waits for the others in a step, for room and for their parts. After several
/// reads to which they did not come it waits less, but as long as before in one of kPatientReads.
constexpr Duration kPatience = std::chrono::seconds(2);
constexpr Duration kPatienceLost = std::chrono::milliseconds(100);
constexpr std::uint32_t kMissesMax = 3;
constexpr std::uint32_t kPatientReads = 8;
constexpr Duration kPause = std::chrono::milliseconds(1);
/// Tensors go in so many groups at most, and in fewer where one would have less, or less than a
/// segment: each group costs some requests, and each of its steps a segment of the pool at least.
constexpr std::uint64_t kGroupsMax = 8;
constexpr std::uint64_t kGroupBytesMin = std::uint64_t{4} << 20U;
/// Groups on their way at a time: what one waits for, another moves. Ranks begin groups in the same
/// order, so the first that is not complete is never waited for in vain.
constexpr std::size_t kThreads = 3;
constexpr std::size_t kNameBytesMax = 255;
constexpr const char* kSuffix = "/relay-";
/// The suffix, a step's number and 16 digits.
constexpr std::size_t kSuffixBytes = 32;

std::uint64_t mixed(const std::string& text) {
  return checksum64(std::as_bytes(std::span(text.data(), text.size())));
}

/// Ranks of a step call their object by the same name, and no others do.
std::string relay_name(const std::string& name, std::uint64_t run, std::size_t number,
                       const std::string& mesh, const std::vector<ObjectTensor>& tensors) {
  const ObjectChecksum what = description_of(mesh, tensors, Chunking::kRows);
  const std::string group =
      std::to_string(run) + " " + std::to_string(what[0]) + " " + std::to_string(what[1]);
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(mixed(group)));
  return name + kSuffix + std::to_string(number) + "-" + digits.data();
}

/// The same for all ranks: the tensor's, and not those of a rank's tile.
std::uint64_t bytes_of(const ObjectTensor& tensor) {
  std::uint64_t bytes = tensor.element_bytes;
  for (const std::uint64_t size : tensor.shape) bytes *= size;
  return bytes;
}

/// Where each group of successive tensors ends.
std::vector<std::size_t> ends_of_groups(const std::vector<ObjectTensor>& tensors,
                                        std::uint64_t segment_bytes) {
  std::uint64_t left = 0;
  for (const ObjectTensor& tensor : tensors) left += bytes_of(tensor);
  const std::uint64_t least = std::max({kGroupBytesMin, segment_bytes, left / kGroupsMax});
  std::vector<std::size_t> out;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes += bytes_of(tensors[i]);
    left -= bytes_of(tensors[i]);
    if (left > 0 && (bytes < least || left < least)) continue;
    out.push_back(i + 1);
    bytes = 0;
  }
  if (!tensors.empty() && (out.empty() || out.back() < tensors.size())) {
    out.push_back(tensors.size());
  }
  return out;
}

ObjectMemory memory_of(const ObjectMemory& tile, const TileRange& range) {
  ObjectMemory out;
  out.bytes = range.length_bytes;
  if (out.bytes == 0) return out;
  out.data = tile.data + range.begin_bytes;
  out.registered = tile.registered;
  return out;
}

}  // namespace

Result<std::unique_ptr<Relays>> Relays::create(Pool& pool, Subscriber& whole,
                                               const Options& options) {
  if (auto steps = parse_relay(options.relay, whole.reader_mesh()); !steps) return steps.error();
  if (options.run == 0) {
    return Error(Errc::kInvalidArgument,
                 "run is 0: ranks that relay share one number, which no other run has");
  }
  if (options.versions == 0 || options.versions > Publisher::kVersionsMax) {
    return Error(Errc::kInvalidArgument, "versions: 1 to 1024");
  }
  if (whole.options().name.size() + kSuffixBytes > kNameBytesMax) {
    return Error(Errc::kInvalidArgument, "name: with relays it has at most 223 bytes");
  }
  std::set<std::string> names;
  for (const WantedTensor& wanted : whole.options().tensors) {
    if (names.insert(wanted.name).second) continue;
    return Error(Errc::kInvalidArgument, "with relays, tensors need names of their own");
  }
  return std::unique_ptr<Relays>(new Relays(pool, whole, options));
}

std::uint64_t Relays::fetched_bytes() const {
  std::uint64_t bytes = 0;
  for (const Group& group : groups_) bytes += group.first->plan().fetched_bytes;
  return bytes;
}

/// Plans for the object's tensors, again where they have changed. A version whose number was used
/// before, for other bytes or below a higher one, cannot follow in the same objects.
Result<void> Relays::prepare() {
  const std::uint64_t version = whole_.version();
  const bool follows =
      version > version_ || (version == version_ && whole_.identity() == identity_);
  if (plan_ == whole_.plan_number() && follows) return {};
  plan_ = 0;
  groups_.clear();
  const Subscriber::Options& reader = whole_.options();
  std::vector<ObjectTensor> tensors;
  for (const WantedTensor& wanted : reader.tensors) {
    for (const ObjectTensor& tensor : whole_.tensors()) {
      if (tensor.name != wanted.name) continue;
      tensors.push_back(tensor);
      tensors.back().layout = wanted.layout;
    }
  }
  HO_CHECK(tensors.size() == reader.tensors.size());
  const std::vector<std::size_t> ends = ends_of_groups(tensors, whole_.segment_bytes());
  // Each thread keeps to its part of the link.
  const std::uint64_t threads = std::min(ends.size(), kThreads);
  const std::uint64_t link =
      reader.link_bytes_per_s == 0
          ? 0
          : std::max<std::uint64_t>(1,
                                    reader.link_bytes_per_s / std::max<std::uint64_t>(1, threads));
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    auto group = make_group(begin, std::span(tensors).subspan(begin, end - begin), link);
    if (!group) return group.error();
    groups_.push_back(std::move(*group));
    begin = end;
  }
  plan_ = whole_.plan_number();
  return {};
}

/// @param tensors  those that are wanted from `begin` on.
Result<Relays::Group> Relays::make_group(std::size_t begin, std::span<const ObjectTensor> tensors,
                                         std::uint64_t link_bytes_per_s) {
  const Subscriber::Options& reader = whole_.options();
  const layout::Mesh& mesh = whole_.reader_mesh();
  const auto steps = parse_relay(options_.relay, mesh);
  if (!steps) return steps.error();
  const auto position = position_of(mesh, reader.rank);
  if (!position) return position.error();
  const auto plan = plan_relays(mesh, *position, {tensors.begin(), tensors.end()}, *steps);
  if (!plan) return plan.error();
  Subscriber::Options own = reader;
  own.tensors.clear();
  own.memory.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ObjectMemory& tile = whole_.memory(begin + i);
    own.memory.push_back(memory_of(tile, plan->first[i].range));
    own.tensors.push_back(reader.tensors[begin + i]);
    own.tensors[i].layout = plan->first[i].layout;
    own.tensors[i].memory_bytes = own.memory.back().bytes;
  }
  own.link_bytes_per_s = link_bytes_per_s;
  Group out;
  auto first = Subscriber::create(pool_, own);
  if (!first) return first.error();
  out.first = std::move(*first);
  for (std::size_t s = 0; s < plan->steps.size(); ++s) {
    if (plan->steps[s].tensors.empty()) continue;
    auto step = make_step(plan->steps[s], s, begin, link_bytes_per_s);
    if (!step) return step.error();
    out.steps.push_back(std::move(*step));
  }
  return out;
}

Result<Relays::Step> Relays::make_step(const RelayStep& plan, std::size_t number, std::size_t begin,
                                       std::uint64_t link_bytes_per_s) {
  const Subscriber::Options& reader = whole_.options();
  Publisher::Options give;
  give.secret = reader.secret;
  give.mesh = plan.mesh;
  give.rank = reader.rank;
  give.run = options_.run;
  give.versions = options_.versions;
  give.link_bytes_per_s = link_bytes_per_s;
  give.stop = reader.stop;
  Subscriber::Options take;
  take.secret = give.secret;
  take.mesh = give.mesh;
  take.rank = give.rank;
  take.link_bytes_per_s = link_bytes_per_s;
  take.own_part = plan.position;
  take.stop = reader.stop;
  for (const RelayedTensor& one : plan.tensors) {
    const ObjectMemory& tile = whole_.memory(begin + one.wanted);
    give.tensors.push_back(one.tensor);
    give.memory.push_back(memory_of(tile, one.before));
    take.tensors.push_back({{one.tensor.name, {}, {}, 0, {}}, one.after.length_bytes});
    take.memory.push_back(memory_of(tile, one.after));
  }
  give.name = relay_name(reader.name, options_.run, number, plan.mesh, give.tensors);
  take.name = give.name;
  Step out;
  auto publisher = Publisher::create(pool_, give);
  if (!publisher) return publisher.error().at(give.name);
  out.publisher = std::move(*publisher);
  auto subscriber = Subscriber::create(pool_, take);
  if (!subscriber) return subscriber.error().at(give.name);
  out.subscriber = std::move(*subscriber);
  return out;
}

Result<void> Relays::read() {
  if (whole_.version() == 0) return whole_.read();  // which says so
  const auto shared = try_read();
  if (shared) {
    missed_ = 0;
    relayed_ += 1;
    return {};
  }
  if (shared.error().code() == Errc::kCanceled) return shared;
  if (missed_++ == 0) {
    log(LogLevel::kWarning, "a version is read from its publisher alone, without relays",
        {{"object", whole_.options().name},
         {"version", std::to_string(whole_.version())},
         {"reason", shared.error().message()}});
  }
  direct_ += 1;
  return whole_.read();
}

Result<void> Relays::try_read() {
  if (auto ok = prepare(); !ok) return ok;
  const bool again = version_ == whole_.version();
  version_ = whole_.version();
  identity_ = whole_.identity();
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Result<void> outcome;
  on_threads(std::min(groups_.size(), kThreads), [&] {
    for (std::size_t i = next++; i < groups_.size(); i = next++) {
      auto done = share(groups_[i], again);
      if (done) continue;
      next.store(groups_.size());
      const std::lock_guard guard(mutex);
      if (outcome) outcome = std::move(done);
    }
  });
  return outcome;
}

/// Reads this rank's own part of a group, and with the others of each step what they have.
Result<void> Relays::share(Group& group, bool again) {
  if (auto ok = read(*group.first, Duration(0), identity_); !ok) return ok;
  const bool patient = missed_ < kMissesMax || missed_ % kPatientReads == 0;
  for (Step& step : group.steps) {
    if (auto ok = publish(step, again); !ok) return ok;
    if (auto ok = read(*step.subscriber, patient ? kPatience : kPatienceLost); !ok) return ok;
  }
  return {};
}

/// Reads the version that is open. @param identity  it has to be the version of this one.
Result<void> Relays::read(Subscriber& from, Duration timeout,
                          std::optional<std::uint64_t> identity) {
  if (auto found = from.acquire({version_, version_}, timeout); !found) return found.error();
  const bool same = !identity || from.identity() == *identity;
  auto done =
      same ? from.read() : Result<void>(Error(Errc::kNotFound, "the version was published again"));
  from.release_soon();
  return done;
}

/// Publishes what this rank has of a step. Waits while ranks that are behind have all kept versions
/// open, or an older one of the number. Only parts of equal versions come together: their run
/// depends on what each rank has open.
Result<void> Relays::publish(Step& step, bool again) {
  const std::uint64_t run =
      mixed(std::to_string(options_.run) + " " + std::to_string(identity_)) | 1U;
  const TimePoint end = clock_.now() + kPatience;
  while (true) {
    auto done = step.publisher->publish(version_, run);
    const bool behind = !done && (done.error().code() == Errc::kBusy ||
                                  done.error().code() == Errc::kAlreadyExists);
    // A version that is read once more may be there.
    const bool there = again && !done && done.error().code() == Errc::kInvalidArgument;
    if (there) return {};
    if (!behind || clock_.now() >= end) return done;
    if (auto ok = go_on(whole_.options().stop); !ok) return ok;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace ho::client
