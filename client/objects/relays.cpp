#include "client/objects/relays.hpp"

#include <array>
#include <cstdio>
#include <set>
#include <span>
#include <thread>
#include <utility>

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
  return first_ == nullptr ? 0 : first_->plan().fetched_bytes;
}

/// Plans for the object's tensors, again where they have changed. A version whose number was used
/// before, for other bytes or below a higher one, cannot follow in the same objects.
Result<void> Relays::prepare() {
  const std::uint64_t version = whole_.version();
  const bool follows =
      version > version_ || (version == version_ && whole_.identity() == identity_);
  if (plan_ == whole_.plan_number() && follows) return {};
  plan_ = 0;
  first_.reset();
  steps_.clear();
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
  const layout::Mesh& mesh = whole_.reader_mesh();
  const auto steps = parse_relay(options_.relay, mesh);
  if (!steps) return steps.error();
  const auto position = position_of(mesh, reader.rank);
  if (!position) return position.error();
  const auto plan = plan_relays(mesh, *position, tensors, *steps);
  if (!plan) return plan.error();
  Subscriber::Options own = reader;
  own.memory.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    own.tensors[i].layout = plan->first[i].layout;
    own.memory.push_back(memory_of(whole_.memory(i), plan->first[i].range));
    own.tensors[i].memory_bytes = own.memory.back().bytes;
  }
  auto first = Subscriber::create(pool_, own);
  if (!first) return first.error();
  first_ = std::move(*first);
  for (std::size_t s = 0; s < plan->steps.size(); ++s) {
    if (plan->steps[s].tensors.empty()) continue;
    auto step = make_step(plan->steps[s], s);
    if (!step) return step.error();
    steps_.push_back(std::move(*step));
  }
  plan_ = whole_.plan_number();
  return {};
}

Result<Relays::Step> Relays::make_step(const RelayStep& plan, std::size_t number) {
  const Subscriber::Options& reader = whole_.options();
  Publisher::Options give;
  give.secret = reader.secret;
  give.mesh = plan.mesh;
  give.rank = reader.rank;
  give.run = options_.run;
  give.versions = options_.versions;
  give.link_bytes_per_s = reader.link_bytes_per_s;
  Subscriber::Options take;
  take.secret = give.secret;
  take.mesh = give.mesh;
  take.rank = give.rank;
  take.link_bytes_per_s = reader.link_bytes_per_s;
  take.own_part = plan.position;
  for (const RelayedTensor& one : plan.tensors) {
    const ObjectMemory& tile = whole_.memory(one.wanted);
    give.tensors.push_back(one.tensor);
    give.memory.push_back(memory_of(tile, one.before));
    WantedTensor wanted;
    wanted.name = one.tensor.name;
    wanted.memory_bytes = one.after.length_bytes;
    take.tensors.push_back(std::move(wanted));
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
  if (auto ok = read(*first_, Duration(0)); !ok) return ok;
  const bool patient = missed_ < kMissesMax || missed_ % kPatientReads == 0;
  for (Step& step : steps_) {
    const auto published = publish(step);
    // A version that is read once more may be there.
    const bool there = again && !published && published.error().code() == Errc::kInvalidArgument;
    if (!published && !there) return published;
    if (auto ok = read(*step.subscriber, patient ? kPatience : kPatienceLost); !ok) return ok;
  }
  return {};
}

/// Reads the version that is open.
Result<void> Relays::read(Subscriber& from, Duration timeout) {
  if (auto found = from.acquire({version_, version_}, timeout); !found) return found.error();
  const bool same = &from != first_.get() || from.identity() == identity_;
  auto done =
      same ? from.read() : Result<void>(Error(Errc::kNotFound, "the version was published again"));
  from.release();
  return done;
}

/// Waits while ranks that are behind have all kept versions open, or an older one of the number.
/// Only parts of equal versions come together: their run depends on what each rank has open.
Result<void> Relays::publish(Step& step) {
  const std::uint64_t run =
      mixed(std::to_string(options_.run) + " " + std::to_string(identity_)) | 1U;
  const TimePoint end = clock_.now() + kPatience;
  while (true) {
    auto done = step.publisher->publish(version_, run);
    const bool behind = !done && (done.error().code() == Errc::kBusy ||
                                  done.error().code() == Errc::kAlreadyExists);
    if (!behind || clock_.now() >= end) return done;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace ho::client
