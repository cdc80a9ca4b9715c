#include "client/transfer/control_stager.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/sim_transport.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using client::ControlStager;
using client::NodeIndex;
using client::StageOp;

/// A stager whose daemon is the test: it answers requests when the test says so.
struct Rig {
  struct Asked {
    OpId op;
    ControlStager::Done done;
  };

  [[nodiscard]] Result<void> submit(std::uint64_t number, Duration deadline = 1s) {
    StageOp op;
    op.op = OpId(number);
    op.flash.node = NodeIndex(0);
    op.length_bytes = 100;
    op.deadline = clock.now() + deadline;
    return stager.submit(op);
  }
  void answer(const Result<void>& result) {
    const Asked first = std::move(asked.front());
    asked.pop_front();
    first.done(result);
  }
  [[nodiscard]] std::vector<Completion> poll() {
    std::array<Completion, 128> out;
    const std::size_t count = stager.poll(out);
    return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  /// Polls every millisecond for `limit`. @return all completions.
  [[nodiscard]] std::vector<Completion> poll_for(Duration limit) {
    std::vector<Completion> all;
    for (const TimePoint end = clock.now() + limit; clock.now() < end; clock.advance(1ms)) {
      for (const Completion& one : poll()) all.push_back(one);
    }
    return all;
  }

  test::SimClock clock;
  std::deque<Asked> asked;
  std::optional<Error> refuse;  ///< the error of sending; nothing: it succeeds
  ControlStager stager{{[this](const StageOp& op, ControlStager::Done done) -> Result<void> {
                          if (refuse) return *refuse;
                          asked.push_back({op.op, std::move(done)});
                          return {};
                        },
                        1000},
                       clock,
                       std::make_shared<client::Doorbell>()};
};

}  // namespace

TEST_CASE("control stager: requests to a busy node are repeated until it has room") {
  Rig rig;
  REQUIRE(rig.submit(1));
  for (int i = 0; i < 6; ++i) {
    REQUIRE(rig.asked.size() == 1);
    rig.answer(Error(Errc::kBusy, "full"));
    CHECK(rig.poll().empty());
    CHECK(rig.asked.empty());  // not at once
    rig.clock.advance(ControlStager::kRetryMax);
    CHECK(rig.poll().empty());
  }
  REQUIRE(rig.asked.size() == 1);
  rig.answer({});
  const auto done = rig.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].op == OpId(1));
  CHECK(done[0].code == Errc::kOk);
  CHECK(done[0].moved_bytes == 100);
}

TEST_CASE("control stager: a node that is busy until the deadline ends it as busy, not silent") {
  Rig rig;
  REQUIRE(rig.submit(1));
  std::vector<Completion> done;
  int times = 0;
  while (done.empty() && times < 1000) {
    if (!rig.asked.empty()) {
      rig.answer(Error(Errc::kBusy, "48 others wait"));
      times += 1;
    }
    done = rig.poll_for(1ms);
  }
  REQUIRE(done.size() == 1);
  CHECK(done[0].code == Errc::kBusy);
  CHECK(rig.clock.now().time_since_epoch() >= 1s);
  CHECK(times > 10);
  CHECK(times < 60);  // pauses grow
  CHECK(rig.stager.explain(OpId(1)) == "busy until the deadline: 48 others wait");
}

TEST_CASE("control stager: requests to a full connection are repeated, too") {
  Rig rig;
  rig.refuse = Error(Errc::kBusy, "too many calls");
  REQUIRE(rig.submit(1));
  CHECK(rig.poll_for(100ms).empty());
  rig.refuse.reset();
  CHECK(rig.poll_for(100ms).empty());
  REQUIRE(rig.asked.size() == 1);
  rig.answer({});
  CHECK(rig.poll().size() == 1);
}

TEST_CASE("control stager: a connection lost while it waits to ask again ends the operation") {
  Rig rig;
  REQUIRE(rig.submit(1));
  rig.answer(Error(Errc::kBusy, "full"));
  rig.refuse = Error(Errc::kUnavailable, "gone");
  const auto done = rig.poll_for(100ms);
  REQUIRE(done.size() == 1);
  CHECK(done[0].code == Errc::kUnavailable);
  CHECK(rig.stager.explain(OpId(1)) == "gone");
  CHECK(rig.submit(2).error().code() == Errc::kUnavailable);
  CHECK(rig.stager.explain(OpId(2)) == "gone");
}

TEST_CASE("control stager: no answer ends by the deadline, and a late one is dropped") {
  Rig rig;
  REQUIRE(rig.submit(1));
  const auto done = rig.poll_for(1001ms);
  REQUIRE(done.size() == 1);
  CHECK(done[0].code == Errc::kDeadline);
  REQUIRE(rig.submit(2));
  rig.answer(Error(Errc::kIo, "the first one's"));
  CHECK(rig.poll().empty());
  CHECK(rig.stager.explain(OpId(1)) == "no answer in time");
  rig.answer({});
  REQUIRE(rig.poll().size() == 1);
  CHECK(rig.stager.explain(OpId(2)).empty());
}

TEST_CASE("control stager: each failure keeps its own text, the latest ones") {
  Rig rig;
  for (std::uint64_t i = 0; i < ControlStager::kTextsMax + 10; ++i) {
    REQUIRE(rig.submit(i));
    rig.answer(Error(Errc::kIo, "block " + std::to_string(i)));
    REQUIRE(rig.poll().size() == 1);
  }
  CHECK(rig.stager.explain(OpId(9)).empty());
  for (std::uint64_t i = 10; i < ControlStager::kTextsMax + 10; ++i) {
    CHECK(rig.stager.explain(OpId(i)) == "block " + std::to_string(i));
  }
}

TEST_CASE("control stager: an operation without a slot is refused and changes nothing") {
  Rig rig;
  for (std::uint64_t i = 0; i < ControlStager::kOpsMax; ++i) REQUIRE(rig.submit(i));
  CHECK(rig.submit(99).error().code() == Errc::kBusy);
  for (std::uint64_t i = 0; i < ControlStager::kOpsMax; ++i) rig.answer({});
  CHECK(rig.poll().size() == ControlStager::kOpsMax);
  CHECK(rig.submit(99).ok());
}
