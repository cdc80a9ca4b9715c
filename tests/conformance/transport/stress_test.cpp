// Everything at once, seeded: random sizes and directions, short deadlines, closed peers, killed
// targets; every byte is checked. `--seconds N` makes it long, HO_SEED replays one seed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include "common/base/prng.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/support/long_form.hpp"
#include "tests/support/seeds.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

/// The region is cut into places; an operation has one to itself, on both sides, until it ends.
constexpr std::size_t kPlaces = 24;
constexpr std::uint64_t kPlaceBytes = 192 * kKiB;

class Stress {
 public:
  Stress(const std::string& driver, std::uint64_t seed) : driver_(driver), prng_(seed) { begin(); }

  void run(std::chrono::duration<double> time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 64; ++i) step();
    }
    drain();
    check_all();
  }

  [[nodiscard]] std::uint64_t ended() const { return ended_; }

 private:
  struct Operation {
    bool is_get = false;
    Bench::Span span;
  };

  void begin() {
    // A rig keeps what it has exposed; now and then all begins anew.
    bench_.reset();
    if (++generations_ % 16 == 1) rig_ = make_rig(driver_);
    bench_ = std::make_unique<Bench>(*rig_, kPlaces * kPlaceBytes, kPlaces * kPlaceBytes);
    fill(bench_->exposed.truth, prng_.next());
    model_.assign(bench_->exposed.truth.begin(), bench_->exposed.truth.end());
    operations_.assign(kPlaces, std::nullopt);
  }

  void step() {
    const std::uint64_t what = prng_.below(4000);
    if (what == 0) return kill();
    if (what < 4) return close();
    const std::size_t place = prng_.below(kPlaces);
    if (what < 2500 && !operations_[place]) start(place);
    poll();
  }

  void start(std::size_t place) {
    Operation operation;
    operation.is_get = prng_.below(2) == 0;
    // Small ones as often as large ones.
    const std::uint64_t most = std::uint64_t{1} << prng_.below(18);
    operation.span.length_bytes = 1 + prng_.below(most);
    const std::uint64_t room = kPlaceBytes - operation.span.length_bytes;
    operation.span.remote_offset = place * kPlaceBytes + prng_.below(room + 1);
    operation.span.local_offset = place * kPlaceBytes + prng_.below(room + 1);
    fill(local(operation), prng_.next());
    // Some are not given the time they need.
    const Duration deadline = prng_.below(800) == 0 ? Duration(20us) : Duration(10s);
    const auto started = operation.is_get ? bench_->get(place, operation.span, deadline)
                                          : bench_->put(place, operation.span, deadline);
    if (started) {
      operations_[place] = operation;
      return;
    }
    INFO(started.error().message());
    REQUIRE(started.error().code() == Errc::kUnavailable);  // a deadline closed the peer
    again();
  }

  void poll() {
    Completion some[16];
    const std::size_t count = bench_->initiator->poll(some);
    for (std::size_t i = 0; i < count; ++i) end(some[i]);
    if (count == 0) rig_->idle(*bench_->initiator);
  }

  void end(const Completion& completion) {
    const std::size_t place = completion.op.value();
    REQUIRE(place < kPlaces);
    REQUIRE(operations_[place].has_value());
    const Operation operation = *operations_[place];
    operations_[place].reset();
    ended_ += 1;
    INFO((operation.is_get ? "get of " : "put of ")
         << operation.span.length_bytes << " bytes: " << errc_name(completion.code));
    const auto remote =
        std::span(model_).subspan(operation.span.remote_offset, operation.span.length_bytes);
    if (completion.code == Errc::kOk) {
      REQUIRE(completion.moved_bytes == operation.span.length_bytes);
      const auto mine = local(operation);
      if (!operation.is_get) std::memcpy(remote.data(), mine.data(), mine.size());
      REQUIRE(std::memcmp(remote.data(), mine.data(), mine.size()) == 0);
      if (!operation.is_get) check_place(place);
      return;
    }
    REQUIRE((completion.code == Errc::kDeadline || completion.code == Errc::kUnavailable));
    if (!operation.is_get) doubtful_.push_back(operation.span);
  }

  /// The bytes of a put that failed may be there or not, and none beside them.
  void settle() {
    for (const Bench::Span& span : doubtful_) {
      std::memcpy(model_.data() + span.remote_offset,
                  bench_->exposed.truth.data() + span.remote_offset, span.length_bytes);
    }
    doubtful_.clear();
  }

  void check_place(std::size_t place) {
    if (!doubtful_.empty()) return;  // checked when they are settled
    REQUIRE(std::memcmp(model_.data() + place * kPlaceBytes,
                        bench_->exposed.truth.data() + place * kPlaceBytes, kPlaceBytes) == 0);
  }

  void check_all() {
    settle();
    REQUIRE(std::memcmp(model_.data(), bench_->exposed.truth.data(), model_.size()) == 0);
  }

  void drain() {
    const auto busy = [this] {
      return std::any_of(operations_.begin(), operations_.end(),
                         [](const auto& operation) { return operation.has_value(); });
    };
    const auto limit = std::chrono::steady_clock::now() + 20s;
    while (busy()) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      poll();
    }
  }

  /// Closes the peer in the middle of things, and comes back as a new one to the same memory.
  void close() {
    bench_->initiator->close_peer(bench_->peer);
    again();
  }

  void again() {
    drain();
    if (++generations_ % 16 == 0) return begin();
    // The old generation's grant ends, so that nothing of it can come in late; the memory is new.
    (void)rig_->revoke(bench_->exposed);
    doubtful_.clear();
    const std::size_t target = bench_->target;
    bench_->exposed = rig_->expose(target, kPlaces * kPlaceBytes, transport::Rights::kReadWrite);
    fill(bench_->exposed.truth, prng_.next());
    model_.assign(bench_->exposed.truth.begin(), bench_->exposed.truth.end());
    bench_->initiator->detach(bench_->region);
    const auto peer = bench_->initiator->connect({NodeId(1), rig_->address(target)}, in(*rig_, 5s));
    if (!peer) FAIL(peer.error().message());
    bench_->peer = *peer;
    const auto region = bench_->initiator->attach(*peer, rig_->grant(bench_->exposed));
    if (!region) FAIL(region.error().message());
    bench_->region = *region;
  }

  void kill() {
    rig_->kill(bench_->target);
    // The death of a local peer is seen by whoever holds the control connection.
    if (driver_ == "local") bench_->initiator->close_peer(bench_->peer);
    drain();
    doubtful_.clear();
    begin();
  }

  const std::string driver_;
  Prng prng_;
  std::unique_ptr<Rig> rig_;
  std::unique_ptr<Bench> bench_;
  std::vector<std::byte> model_;  ///< what the region must hold
  std::vector<std::optional<Operation>> operations_;
  std::vector<Bench::Span> doubtful_;
  std::uint64_t ended_ = 0;
  std::uint64_t generations_ = 0;

  [[nodiscard]] std::span<std::byte> local(const Operation& operation) {
    return bench_->memory().subspan(operation.span.local_offset, operation.span.length_bytes);
  }
};

TEST_CASE("transport: under everything at once each operation ends once and each byte is right") {
  const std::string driver = GENERATE(from_range(drivers({"local", "ofi", "ucx", "sim"})));
  const double seconds = long_form().seconds > 0 ? long_form().seconds : 2.0;
  for_each_seed(long_form().seconds > 0 ? 4 : 1, [&](std::uint64_t seed) {
    INFO("driver " << driver << ", HO_SEED=" << seed);
    Stress stress(driver, seed);
    stress.run(std::chrono::duration<double>(seconds / (long_form().seconds > 0 ? 4 : 3)));
    REQUIRE(stress.ended() > 0);
  });
}

}  // namespace
}  // namespace ho::test
