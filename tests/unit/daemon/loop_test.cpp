// The data thread with drivers that fail on request.
#include "daemon/data/loop.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/stderr_capture.hpp"

namespace ho::daemon {
namespace {

using namespace std::chrono_literals;
using transport::ExposureId;

/// The calls that one driver received. Read it once the loop has answered or stopped.
struct Record {
  int shuts = 0;
  std::vector<std::uint64_t> revoked;
};

/// A driver whose exposures with numbers in `stuck` do not end, and which refuses the one with
/// number `last`.
class FailingTarget final : public transport::Target {
 public:
  struct Plan {
    std::string name{};
    std::uint64_t stuck = 0;
    std::uint64_t last = UINT64_MAX;
  };
  FailingTarget(Plan plan, Record& record)
      : plan_(std::move(plan)), caps_{plan_.name}, record_(record) {}

  [[nodiscard]] const transport::TargetCaps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::string> admit(const transport::Credentials&) override {
    if (record_.shuts > 0) return Error(Errc::kUnavailable, "the target is shut");
    return std::string("here");
  }
  void dismiss(SessionId /*session*/) override {}
  [[nodiscard]] Result<std::string> fence(SessionId, const transport::RailFence& rail) override {
    return "rail " + std::to_string(rail.rail);
  }
  [[nodiscard]] Result<transport::Exposure> expose(const transport::ExposeRequest&) override {
    if (record_.shuts > 0) return Error(Errc::kUnavailable, "the target is shut");
    if (next_ == plan_.last) return Error(Errc::kExhausted, "no key left");
    return transport::Exposure{ExposureId(next_++), "key", {}};
  }
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override {
    record_.revoked.push_back(exposure.value());
    if (exposure.value() == plan_.stuck) return Error(Errc::kIo, "the device keeps it");
    return {};
  }
  void shut() override { ++record_.shuts; }
  std::size_t progress() override { return 0; }
  [[nodiscard]] int wait_descriptor() const override { return -1; }
  [[nodiscard]] bool arm() override { return true; }

 private:
  const Plan plan_;
  const transport::TargetCaps caps_;
  Record& record_;
  std::uint64_t next_ = 1;
};

/// A loop over two drivers: "bad" fails as configured, "good" works.
class Drivers {
 public:
  explicit Drivers(FailingTarget::Plan plan) {
    plan.name = "bad";
    std::vector<std::unique_ptr<transport::Target>> targets;
    targets.push_back(std::make_unique<FailingTarget>(std::move(plan), bad));
    targets.push_back(std::make_unique<FailingTarget>(FailingTarget::Plan{"good"}, good));
    auto made = DataLoop::create(std::move(targets));
    REQUIRE(made.ok());
    loop_ = std::move(*made);
  }
  [[nodiscard]] Result<std::vector<transport::Exposure>> expose(const std::string& driver,
                                                                std::size_t count) {
    std::promise<Result<std::vector<transport::Exposure>>> told;
    auto answer = told.get_future();
    DataLoop::ExposeRequest request{driver, std::vector<transport::ExposeRequest>(count)};
    REQUIRE(loop_->expose(std::move(request), [&](auto made) { told.set_value(std::move(made)); })
                .ok());
    REQUIRE(answer.wait_for(10s) == std::future_status::ready);
    return answer.get();
  }
  [[nodiscard]] Result<std::string> fence(const std::string& driver,
                                          const transport::RailFence& rail) {
    std::promise<Result<std::string>> told;
    auto answer = told.get_future();
    REQUIRE(
        loop_->fence(driver, SessionId(1), rail, [&](auto made) { told.set_value(made); }).ok());
    REQUIRE(answer.wait_for(10s) == std::future_status::ready);
    return answer.get();
  }
  void revoke(const std::string& driver, const std::vector<transport::Exposure>& exposures) {
    std::promise<void> told;
    auto answer = told.get_future();
    DataLoop::RevokeRequest request{driver, {}};
    for (const auto& one : exposures) request.exposures.push_back(one.id);
    loop_->revoke(std::move(request), [&] { told.set_value(); });
    REQUIRE(answer.wait_for(10s) == std::future_status::ready);
  }

  Record bad;
  Record good;

 private:
  std::unique_ptr<DataLoop> loop_;
};

/// Sessions of the other driver can still get and release grants.
void check_goes_on(Drivers& drivers) {
  const auto made = drivers.expose("good", 2);
  REQUIRE(made.ok());
  drivers.revoke("good", *made);
  CHECK(drivers.good.revoked == std::vector<std::uint64_t>{1, 2});
  CHECK(drivers.good.shuts == 0);
}

}  // namespace

TEST_CASE("data loop: a driver that cannot end an exposure is shut down, others go on") {
  const test::StderrCapture log;
  Drivers drivers({.stuck = 2});
  const auto made = drivers.expose("bad", 3);
  REQUIRE(made.ok());
  drivers.revoke("bad", *made);
  CHECK(drivers.bad.revoked == std::vector<std::uint64_t>{1, 2, 3});
  CHECK(drivers.bad.shuts == 1);
  CHECK(log.text().find("the device keeps it") != std::string::npos);
  CHECK(drivers.expose("bad", 1).error().code() == Errc::kUnavailable);
  check_goes_on(drivers);
}

TEST_CASE("data loop: a partial grant that cannot be revoked shuts its driver down") {
  const test::StderrCapture log;
  Drivers drivers({.stuck = 1, .last = 3});
  const auto made = drivers.expose("bad", 4);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code() == Errc::kExhausted);
  CHECK(drivers.bad.revoked == std::vector<std::uint64_t>{1, 2});
  CHECK(drivers.bad.shuts == 1);
  check_goes_on(drivers);
}

TEST_CASE("data loop: a fence is answered by the driver that it names") {
  Drivers drivers({});
  CHECK(*drivers.fence("good", {3, 1}) == "rail 3");
  CHECK(*drivers.fence("bad", {0, 7}) == "rail 0");
}

TEST_CASE("data loop: a grant that fails half-way leaves nothing exposed") {
  Drivers drivers({.last = 3});
  CHECK(drivers.expose("bad", 4).error().code() == Errc::kExhausted);
  CHECK(drivers.bad.revoked == std::vector<std::uint64_t>{1, 2});
  CHECK(drivers.bad.shuts == 0);
}

}  // namespace ho::daemon
