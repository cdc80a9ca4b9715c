#include "client/objects/relays.hpp"

#include <array>
#include <cstdio>
#include <span>
#include <thread>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/log.hpp"

namespace ho::client {

namespace {

/// How long a rank waits for the parts of the others; less if they did not come several times.
constexpr Duration kPatience = std::chrono::seconds(2);
constexpr Duration kPatienceLost = std::chrono::milliseconds(100);
constexpr std::uint32_t kMissesMax = 3;
constexpr Duration kPause = std::chrono::milliseconds(1);
constexpr std::size_t kNameBytesMax = 255;
constexpr const char* kSuffix = "/relay-";
/// The suffix, a step's number and 16 digits.
constexpr std::size_t kSuffixBytes = 32;

/// Ranks of a step call their object by the same name, and no others do. Another run of the
/// publisher may use its versions' numbers again, so its relays have other names.
std::string relay_name(const std::string& name, std::uint64_t source_run, std::uint64_t run,
                       std::size_t number, const std::string& mesh) {
  const std::string group = std::to_string(source_run) + " " + std::to_string(run) + " " + mesh;
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(
                    checksum64(std::as_bytes(std::span(group.data(), group.size())))));
  return name + kSuffix + std::to_string(number) + "-" + digits.data();
}

ObjectMemory part_of(const ObjectMemory& tile, const TileRange& range) {
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
  if (whole.options().name.size() + kSuffixBytes > kNameBytesMax) {
    return Error(Errc::kInvalidArgument, "name: more than 223 bytes of an object with relays");
  }
  return std::unique_ptr<Relays>(new Relays(pool, whole, options));
}

std::uint64_t Relays::fetched_bytes() const {
  return first_ == nullptr ? 0 : first_->plan().fetched_bytes;
}

/// Plans for the object's tensors, again where they have changed.
Result<void> Relays::prepare() {
  if (plan_ == whole_.plan_number() && source_run_ == whole_.run()) return {};
  plan_ = 0;
  source_run_ = whole_.run();
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
    own.memory.push_back(part_of(whole_.memory(i), plan->first[i].range));
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
  give.name = relay_name(reader.name, source_run_, options_.run, number, plan.mesh);
  give.secret = reader.secret;
  give.mesh = plan.mesh;
  give.rank = reader.rank;
  give.run = options_.run;
  give.versions = options_.versions;
  give.link_bytes_per_s = reader.link_bytes_per_s;
  Subscriber::Options take;
  take.name = give.name;
  take.secret = give.secret;
  take.mesh = give.mesh;
  take.rank = give.rank;
  take.link_bytes_per_s = reader.link_bytes_per_s;
  take.own_part = plan.position;
  for (const RelayedTensor& one : plan.tensors) {
    const ObjectMemory& tile = whole_.memory(one.wanted);
    give.tensors.push_back(one.tensor);
    give.memory.push_back(part_of(tile, one.before));
    WantedTensor wanted;
    wanted.name = one.tensor.name;
    wanted.memory_bytes = one.after.length_bytes;
    take.tensors.push_back(std::move(wanted));
    take.memory.push_back(part_of(tile, one.after));
  }
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
  const std::uint64_t version = whole_.version();
  const auto read = [&](Subscriber& from, Duration timeout) -> Result<void> {
    if (auto found = from.acquire({version, version}, timeout); !found) return found.error();
    if (&from == first_.get() && from.run() != source_run_) {
      return Error(Errc::kNotFound, "the publisher of this version has ended");
    }
    auto done = from.read();
    from.release();
    return done;
  };
  if (auto ok = read(*first_, Duration(0)); !ok) return ok;
  for (Step& step : steps_) {
    if (auto ok = publish(step, version); !ok) return ok;
    if (auto ok = read(*step.subscriber, missed_ < kMissesMax ? kPatience : kPatienceLost); !ok) {
      return ok;
    }
  }
  return {};
}

/// Waits while ranks that are behind have all kept versions open.
Result<void> Relays::publish(Step& step, std::uint64_t version) {
  if (step.published == version) return {};  // it was read before
  const TimePoint end = clock_.now() + kPatience;
  while (true) {
    auto done = step.publisher->publish(version);
    if (done) step.published = version;
    if (done || done.error().code() != Errc::kBusy || clock_.now() >= end) return done;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace ho::client
