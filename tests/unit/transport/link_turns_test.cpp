#include "common/transport/tcp/link_turns.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"

namespace ho::transport::tcp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr double kLinkBytesPerS = 1e9;
constexpr Duration kRound = microseconds(50);

/// A session with some connections, of which each has bytes to move at times.
struct Session {
  LinkTurns::Flow* flow = nullptr;
  double bytes_per_s = 0;  ///< that come to be moved; infinity: there are always more
  std::size_t connections = 1;
  double backlog = 0;
  double moved = 0;
};

/// A link that a thread serves in rounds: what the target does, without sockets.
class Link {
 public:
  explicit Link(double bytes_per_s)
      : turns_(LinkTurns::Way::kOut, static_cast<std::uint64_t>(bytes_per_s)) {
    turns_.begin_round(now_);
  }

  Session& add(const LinkShare& share, double bytes_per_s, std::size_t connections = 1,
               TrafficClass traffic = TrafficClass::kDeadline) {
    sessions_.push_back({&turns_.join(share, traffic), bytes_per_s, connections});
    return sessions_.back();
  }

  void round() {
    now_ += kRound;
    turns_.begin_round(now_);
    const double passed = std::chrono::duration<double>(kRound).count();
    for (Session& one : sessions_) one.backlog += one.bytes_per_s * passed;
    ++first_;
    for (const bool owed : {true, false}) {
      for (std::size_t i = 0; i < sessions_.size(); ++i) {
        Session& one = sessions_[(first_ + i) % sessions_.size()];
        if (turns_.owed(*one.flow) == owed) serve(one);
      }
    }
  }

  void run(Duration time) {
    for (Session& one : sessions_) one.moved = 0;
    for (Duration passed{}; passed < time; passed += kRound) round();
  }

  /// A session's part of the link in the last run().
  static double part(const Session& one, Duration time) {
    return one.moved / (kLinkBytesPerS * std::chrono::duration<double>(time).count());
  }

  [[nodiscard]] TimePoint now() const { return now_; }
  LinkTurns& turns() { return turns_; }

 private:
  void serve(Session& one) {
    for (std::size_t i = 0; i < one.connections && one.backlog > 0; ++i) {
      const std::uint64_t most = turns_.allowance(*one.flow, LinkTurns::Size::kLarge);
      if (most == 0) return;
      const double bytes = std::min(one.backlog, static_cast<double>(most));
      one.backlog -= bytes;
      one.moved += bytes;
      turns_.moved(*one.flow, static_cast<std::uint64_t>(bytes));
      if (one.backlog > 0) turns_.want(*one.flow);
    }
  }

  LinkTurns turns_;
  std::deque<Session> sessions_;  // their addresses stay
  TimePoint now_{std::chrono::seconds(10)};
  std::size_t first_ = 0;
};

constexpr double kAlways = std::numeric_limits<double>::infinity();

LinkShare of(const std::string& owner, std::uint32_t weight = 1, double bytes_per_s_min = 0) {
  return {owner, weight, static_cast<std::uint64_t>(bytes_per_s_min)};
}

TEST_CASE("link turns: a session that is alone has the whole link") {
  Link link(kLinkBytesPerS);
  const Session& one = link.add(of("ann"), kAlways);
  link.run(milliseconds(200));
  CHECK(Link::part(one, milliseconds(200)) == Approx(1).epsilon(0.02));
}

TEST_CASE("link turns: owners get parts by weight, whatever connections and sessions they have") {
  Link link(kLinkBytesPerS);
  const Session& ann = link.add(of("ann", 3), kAlways);
  const Session& bob = link.add(of("bob", 1), kAlways, 16);
  const Session& bob_too = link.add(of("bob", 1), kAlways, 2);
  link.run(milliseconds(500));
  CHECK(Link::part(ann, milliseconds(500)) == Approx(0.75).margin(0.02));
  CHECK(Link::part(bob, milliseconds(500)) == Approx(0.125).margin(0.01));
  CHECK(Link::part(bob_too, milliseconds(500)) == Approx(0.125).margin(0.01));
}

TEST_CASE(
    "link turns: what an owner needs now passes the rest, of which some always gets through") {
  Link link(kLinkBytesPerS);
  const auto add = [&](const char* owner, TrafficClass traffic, std::size_t connections) {
    return &link.add(of(owner), kAlways, connections, traffic);
  };
  const Session* const planned = add("ann", TrafficClass::kDeadline, 1);
  const Session* const published = add("ann", TrafficClass::kBulk, 16);
  const Session* const read = add("ann", TrafficClass::kBulk, 16);
  const Session* const repaired = add("ann", TrafficClass::kBackground, 16);
  // Another owner has half of the link, whatever it is for.
  const auto of_bob = GENERATE(TrafficClass::kDeadline, TrafficClass::kBackground);
  const Session* const bob = add("bob", of_bob, 1);
  constexpr auto kTime = milliseconds(1000);
  link.run(kTime);
  CHECK(Link::part(*planned, kTime) == Approx(0.5 * 16 / 22).margin(0.02));
  CHECK(Link::part(*published, kTime) == Approx(0.5 * 2 / 22).margin(0.01));
  CHECK(Link::part(*read, kTime) == Approx(0.5 * 2 / 22).margin(0.01));
  CHECK(Link::part(*repaired, kTime) == Approx(0.5 * 2 / 22).margin(0.01));
  CHECK(Link::part(*bob, kTime) == Approx(0.5).margin(0.02));
}

TEST_CASE("link turns: what the first class leaves, the others have at once") {
  Link link(kLinkBytesPerS);
  const double needed = 0.3 * kLinkBytesPerS;
  const Session& planned = link.add(of("ann"), needed);
  const Session& read = link.add(of("ann"), kAlways, 4, TrafficClass::kBulk);
  link.run(milliseconds(100));
  link.run(milliseconds(500));
  CHECK(Link::part(planned, milliseconds(500)) == Approx(0.3).margin(0.01));
  CHECK(Link::part(read, milliseconds(500)) == Approx(0.7).margin(0.02));
}

TEST_CASE("link turns: without a known rate sessions take turns all the same") {
  // The thread is the limit: a round moves a few turns.
  LinkTurns turns(LinkTurns::Way::kIn, 0);
  auto& ann = turns.join(of("ann", 2));
  auto& bob = turns.join(of("bob", 1));
  std::uint64_t of_ann = 0;
  std::uint64_t of_bob = 0;
  std::uint64_t largest = 0;
  TimePoint now{};
  for (int round = 0; round < 10'000; ++round) {
    turns.begin_round(now += kRound);
    for (auto [flow, sum] : {std::pair(&bob, &of_bob), std::pair(&ann, &of_ann)}) {
      const std::uint64_t most = turns.allowance(*flow, LinkTurns::Size::kLarge);
      if (most == 0) continue;
      largest = std::max(largest, round == 0 ? 0 : most);
      const std::uint64_t bytes = std::min<std::uint64_t>(most, 4 * kMiB);
      turns.moved(*flow, bytes);
      turns.want(*flow);
      *sum += bytes;
    }
  }
  CHECK(static_cast<double>(of_ann) / static_cast<double>(of_bob) == Approx(2).epsilon(0.02));
  CHECK(largest <= LinkTurns::kTurnBytes);
}

TEST_CASE("link turns: what one leaves, the others share") {
  Link link(kLinkBytesPerS);
  const Session& little = link.add(of("ann"), 0.1 * kLinkBytesPerS);
  const Session& much = link.add(of("bob"), kAlways, 16);
  const Session& as_much = link.add(of("eve"), kAlways);
  link.run(milliseconds(500));
  CHECK(Link::part(little, milliseconds(500)) == Approx(0.1).margin(0.005));
  CHECK(Link::part(much, milliseconds(500)) == Approx(0.45).margin(0.01));
  CHECK(Link::part(as_much, milliseconds(500)) == Approx(0.45).margin(0.01));
}

TEST_CASE("link turns: an owner has its minimum rate among heavier ones, and more where it can") {
  Link link(kLinkBytesPerS);
  const Session& ann = link.add(of("ann", 1, 0.4 * kLinkBytesPerS), kAlways);
  Session& bob = link.add(of("bob", 9), kAlways, 16);
  link.run(milliseconds(500));
  CHECK(Link::part(ann, milliseconds(500)) == Approx(0.4).margin(0.02));
  CHECK(Link::part(bob, milliseconds(500)) == Approx(0.6).margin(0.02));
  bob.bytes_per_s = 0;
  bob.backlog = 0;
  link.run(milliseconds(500));
  CHECK(Link::part(ann, milliseconds(500)) == Approx(1).margin(0.02));
  // What it had beyond its part is not held against it.
  bob.bytes_per_s = kAlways;
  link.run(milliseconds(500));
  CHECK(Link::part(ann, milliseconds(500)) == Approx(0.4).margin(0.02));
}

TEST_CASE("link turns: what a minimum gave is not held against its owner") {
  Link link(kLinkBytesPerS);
  const Session& ann = link.add(of("ann", 1, 0.4 * kLinkBytesPerS), kAlways);
  const Session& eve = link.add(of("eve", 1), kAlways);
  Session& bob = link.add(of("bob", 9), kAlways);
  link.run(milliseconds(1000));
  CHECK(Link::part(ann, milliseconds(1000)) == Approx(0.4).margin(0.02));
  bob.bytes_per_s = 0;
  bob.backlog = 0;
  link.run(milliseconds(200));
  link.run(milliseconds(200));
  CHECK(Link::part(ann, milliseconds(200)) == Approx(0.5).margin(0.02));
  CHECK(Link::part(eve, milliseconds(200)) == Approx(0.5).margin(0.02));
}

TEST_CASE("link turns: a session that is alone again has the link at once") {
  Link link(kLinkBytesPerS);
  const Session& ann = link.add(of("ann"), kAlways);
  Session& bob = link.add(of("bob"), kAlways, 16);
  link.run(milliseconds(500));
  SECTION("because the other pauses") {
    bob.bytes_per_s = 0;
    bob.backlog = 0;
  }
  SECTION("because the other ends") {
    link.turns().leave(*bob.flow);
    bob.bytes_per_s = 0;
    bob.backlog = 0;
    bob.flow = ann.flow;
  }
  link.run(milliseconds(10));
  CHECK(Link::part(ann, milliseconds(10)) >= 0.95);
}

TEST_CASE("link turns: neither rest nor work done alone counts later") {
  Link link(kLinkBytesPerS);
  Session& ann = link.add(of("ann"), 0);
  Session& bob = link.add(of("bob"), kAlways);
  const bool reads_little = GENERATE(false, true);
  if (reads_little) bob.bytes_per_s = 0.5 * kLinkBytesPerS;  // it never waits while it is alone
  bob.backlog = 0;
  link.run(milliseconds(500));
  ann.bytes_per_s = kAlways;
  bob.bytes_per_s = kAlways;
  link.run(milliseconds(100));
  CHECK(Link::part(ann, milliseconds(100)) == Approx(0.5).margin(0.03));
  CHECK(Link::part(bob, milliseconds(100)) == Approx(0.5).margin(0.03));
}

/// Steps of a job: each needs its bytes, computes beside that, and ends when both are done.
/// @return the time of `steps` that is not computing.
Duration stall_of(Link& link, Session& job, double bytes, Duration compute, int steps) {
  Duration stall{};
  for (int step = 0; step < steps; ++step) {
    const TimePoint begun = link.now();
    job.backlog += bytes;
    while (job.backlog > 0 || link.now() - begun < compute) link.round();
    stall += link.now() - begun - compute;
  }
  return stall;
}

TEST_CASE("link turns: a planned job beside a greedy one stalls as with half a link of its own") {
  // 8 MiB take 17 ms with half the link: 20 ms of compute hide them, 12 ms do not.
  const auto compute = GENERATE(milliseconds(20), milliseconds(12));
  const double bytes = 8 * static_cast<double>(kMiB);
  Link half(kLinkBytesPerS / 2);
  Session& alone = half.add(of("ann"), 0);
  const Duration fair = stall_of(half, alone, bytes, compute, 50);
  Link link(kLinkBytesPerS);
  Session& victim = link.add(of("ann"), 0);
  (void)link.add(of("greedy"), kAlways, 16);
  const Duration stall = stall_of(link, victim, bytes, compute, 50);
  CAPTURE(compute.count(), fair.count(), stall.count());
  // At most 1.1 of it, and a round's length a step: the clock goes by rounds.
  CHECK(stall <= fair + fair / 10 + 50 * kRound);
}

TEST_CASE("link turns: small operations wait only where their flow is far ahead") {
  LinkTurns turns(LinkTurns::Way::kOut, static_cast<std::uint64_t>(kLinkBytesPerS));
  auto& ann = turns.join(of("ann"));
  auto& bob = turns.join(of("bob"));
  TimePoint now{std::chrono::seconds(10)};
  const auto move = [&](LinkTurns::Flow& flow, std::uint64_t bytes) {
    REQUIRE(turns.allowance(flow, LinkTurns::Size::kSmall) > 0);
    turns.moved(flow, bytes);
    turns.want(flow);
  };
  turns.begin_round(now);
  move(ann, 1);
  move(bob, 2 * LinkTurns::kTurnBytes);
  turns.begin_round(now += milliseconds(10));
  CHECK(turns.allowance(bob, LinkTurns::Size::kLarge) == 0);
  move(bob, 8 * LinkTurns::kTurnBytes);
  CHECK(turns.allowance(bob, LinkTurns::Size::kSmall) == 0);
  // The link itself is behind by more than that.
  CHECK(turns.allowance(ann, LinkTurns::Size::kSmall) == 0);
  CHECK(turns.until_free() > milliseconds(5));
}

TEST_CASE("link turns: however little weight it has, a session gets a part every 200 ms") {
  Link link(0.1 * kLinkBytesPerS);
  Session& light = link.add(of("light", 1), kAlways);
  std::vector<Session*> others;
  for (int i = 0; i < 10; ++i)
    others.push_back(&link.add(of("heavy" + std::to_string(i), 100), kAlways));
  link.run(milliseconds(1000));
  double least = kAlways;
  for (int i = 0; i < 10; ++i) {
    link.run(milliseconds(220));
    least = std::min(least, light.moved);
  }
  CHECK(least > 0);
  CHECK(others.front()->moved > 10 * light.moved);
}

TEST_CASE("link turns: waiting is counted while there is something to move") {
  LinkTurns turns(LinkTurns::Way::kIn, 0);
  const auto use = std::make_shared<LinkUse>();
  auto& ann = turns.join({"ann", 1, 0, use});
  auto& bob = turns.join({"bob", 1, 0, nullptr});
  TimePoint now{std::chrono::seconds(10)};
  const auto begin = [&](LinkTurns::Flow& flow, std::uint64_t bytes) {
    const std::uint64_t most = turns.allowance(flow, LinkTurns::Size::kLarge);
    turns.moved(flow, std::min(most, bytes));
    return most;
  };
  turns.begin_round(now);
  REQUIRE(begin(ann, 2 * kMiB) > 0);
  REQUIRE(begin(bob, 1) > 0);
  turns.want(ann);
  turns.want(bob);
  turns.begin_round(now += milliseconds(1));
  CHECK(begin(ann, kMiB) == 0);
  REQUIRE(begin(bob, 2 * kMiB) > 0);
  turns.want(bob);
  turns.begin_round(now += milliseconds(4));
  REQUIRE(begin(ann, kMiB) > 0);
  CHECK(use->waited_us.value() == 4000);
  CHECK(use->in_bytes.value() == 3 * kMiB);
  CHECK(use->out_bytes.value() == 0);
  // Refused, and gone: what comes later has not waited since then.
  turns.begin_round(now += milliseconds(1));
  REQUIRE(begin(bob, 1) > 0);
  turns.want(bob);
  turns.begin_round(now += milliseconds(1));
  turns.begin_round(now += milliseconds(1000));
  REQUIRE(begin(ann, kMiB) > 0);
  CHECK(use->waited_us.value() == 4000);
}

TEST_CASE("link turns: sessions come and go in any moment, and bytes add up") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 10)));
  Prng random(seed);
  LinkTurns turns(LinkTurns::Way::kOut, random.below(2) == 0 ? 0 : 100 * kMiB);
  const auto use = std::make_shared<LinkUse>();
  std::vector<LinkTurns::Flow*> flows;
  std::uint64_t moved = 0;
  TimePoint now{std::chrono::seconds(10)};
  for (int round = 0; round < 2000; ++round) {
    turns.begin_round(now += microseconds(random.below(2000)));
    if (flows.size() < 12 && random.below(10) == 0) {
      const std::string owner = "owner" + std::to_string(random.below(3));
      const std::uint64_t least = random.below(3) == 0 ? 10 * kMiB : 0;
      flows.push_back(
          &turns.join({owner, static_cast<std::uint32_t>(1 + random.below(100)), least, use},
                      static_cast<TrafficClass>(random.below(kTrafficClasses))));
    }
    for (LinkTurns::Flow* const flow : flows) {
      if (random.below(3) == 0) continue;
      (void)turns.owed(*flow);
      const std::uint64_t most = turns.allowance(
          *flow, random.below(2) == 0 ? LinkTurns::Size::kLarge : LinkTurns::Size::kSmall);
      const std::uint64_t bytes = most == 0 ? 0 : random.below(std::min(most, kMiB) + 1);
      turns.moved(*flow, bytes);
      moved += bytes;
      if (random.below(2) == 0) turns.want(*flow);
    }
    if (!flows.empty() && random.below(12) == 0) {
      const auto which = flows.begin() + static_cast<std::ptrdiff_t>(random.below(flows.size()));
      turns.leave(**which);
      flows.erase(which);
    }
  }
  CAPTURE(seed);
  CHECK(moved > 0);
  CHECK(use->out_bytes.value() == moved);
  CHECK(use->in_bytes.value() == 0);
}

/// Weighted max-min parts of a link of size 1.
std::vector<double> max_min(const std::vector<double>& wants, const std::vector<double>& weights) {
  std::vector<double> parts(wants.size(), -1);
  double left = 1;
  for (bool settled = true; settled;) {
    settled = false;
    double weight = 0;
    for (std::size_t i = 0; i < wants.size(); ++i) weight += parts[i] < 0 ? weights[i] : 0;
    const double level = left / weight;
    for (std::size_t i = 0; i < wants.size(); ++i) {
      if (parts[i] >= 0 || wants[i] > level * weights[i]) continue;
      parts[i] = wants[i];
      left -= wants[i];
      settled = true;
    }
    if (settled) continue;
    for (std::size_t i = 0; i < wants.size(); ++i) {
      if (parts[i] < 0) parts[i] = level * weights[i];
    }
  }
  return parts;
}

TEST_CASE("link turns: random owners get the parts that weighted max-min fairness gives") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 20)));
  Prng random(seed);
  Link link(kLinkBytesPerS);
  const std::size_t owners = 2 + random.below(5);
  std::vector<double> wants;
  std::vector<double> weights;
  std::vector<Session*> sessions;
  for (std::size_t i = 0; i < owners; ++i) {
    weights.push_back(static_cast<double>(1 + random.below(8)));
    wants.push_back(random.below(3) == 0 ? kAlways : 0.02 * static_cast<double>(random.below(40)));
    sessions.push_back(
        &link.add(of("owner" + std::to_string(i), static_cast<std::uint32_t>(weights.back())),
                  wants.back() * kLinkBytesPerS, 1 + random.below(8),
                  static_cast<TrafficClass>(random.below(kTrafficClasses))));
  }
  link.run(milliseconds(50));
  link.run(milliseconds(500));
  const auto parts = max_min(wants, weights);
  for (std::size_t i = 0; i < owners; ++i) {
    CAPTURE(seed, i, weights[i], wants[i]);
    CHECK(Link::part(*sessions[i], milliseconds(500)) == Approx(parts[i]).margin(0.02));
  }
}

}  // namespace
}  // namespace ho::transport::tcp
