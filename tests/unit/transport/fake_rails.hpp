#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/striping/initiator.hpp"
#include "common/transport/striping/rail.hpp"

// Rails that do what a test says, for the initiator that all network drivers share.
namespace ho::transport::test {

class FakeDriver;

class FakeRail final : public Rail {
 public:
  FakeRail(FakeDriver& driver, RailDriver::RailSpec spec_in);
  ~FakeRail() override;

  [[nodiscard]] State state() const override { return state_; }
  [[nodiscard]] Error failure() const override { return Error(why_, "the test broke it"); }
  [[nodiscard]] Result<void> add(RemoteRegion& region, Trial trial, TimePoint) override;
  [[nodiscard]] bool post(RailOp& op) override;
  bool progress(std::vector<RailOp*>& ended) override;
  void close() override { state_ = State::kClosing; }
  void give_back(RailOp& op) override { op.bytes = nullptr; }

  void open() { state_ = State::kOpen; }
  void break_down(Errc why = Errc::kUnavailable) {
    state_ = State::kFailed;
    why_ = why;
  }
  /// The first operation ends so.
  void end_first(Errc outcome) {
    ops.front()->outcome = outcome;
    back_.push_back(ops.front());
    ops.erase(ops.begin());
  }

  const RailDriver::RailSpec spec;
  std::vector<RailOp*> ops;  ///< posted
  std::size_t room = 1000;
  bool moves = false;          ///< once
  bool slow_to_close = false;  ///< as a device
  std::size_t regions = 0;
  std::size_t tried_keys = 0;
  bool answers_keys = true;
  TimePoint key_end;  ///< until when the last key could be tried

 private:
  FakeDriver& driver_;
  State state_ = State::kConnecting;
  Errc why_ = Errc::kUnavailable;
  std::vector<RailOp*> back_;
};

class FakeDriver final : public RailDriver {
 public:
  explicit FakeDriver(bool has_classes = false) {
    caps_.name = "fake";
    caps_.has_classes = has_classes;
    caps_.op_bytes_max = std::uint64_t{1} << 30U;
    caps_.gives_back = true;
    caps_.patient = true;
  }
  [[nodiscard]] const Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::vector<std::string>> rails_of(const std::string& address) override {
    if (address.empty()) return Error(Errc::kInvalidArgument, "no address");
    std::vector<std::string> each;
    for (const char one : address) each.emplace_back(1, one);
    return each;
  }
  [[nodiscard]] Result<std::unique_ptr<Rail>> connect(const RailSpec& spec) override {
    ++attempts;
    auto made = std::make_unique<FakeRail>(*this, spec);
    if (opens) made->open();
    return std::unique_ptr<Rail>(std::move(made));
  }
  [[nodiscard]] Result<std::unique_ptr<LocalMemory>> register_memory(
      std::span<std::byte>) override {
    return std::make_unique<LocalMemory>();
  }
  [[nodiscard]] Result<std::unique_ptr<RemoteRegion>> open_region(const RegionGrant& grant,
                                                                  std::size_t) override {
    if (grant.key == "bad") return Error(Errc::kInvalidArgument, "a bad key");
    return std::make_unique<RemoteRegion>(grant.length_bytes, grant.rights);
  }

  /// The rail of that number that is there now.
  [[nodiscard]] FakeRail& rail(std::uint32_t number) { return *rails.at(number); }

  std::map<std::uint32_t, FakeRail*> rails;
  std::map<const RailOp*, RailFence> lost_puts;  ///< and the fence that must come before more
  std::set<std::pair<std::uint32_t, std::uint32_t>> fenced;  ///< rails and generations
  int old_puts_abroad = 0;  ///< puts that were repeated before that
  int empty_handed = 0;     ///< operations posted that had been given back
  bool opens = true;        ///< those that are made now, at once
  int attempts = 0;

 private:
  Caps caps_;
};

inline FakeRail::FakeRail(FakeDriver& driver, RailDriver::RailSpec spec_in)
    : spec(std::move(spec_in)), driver_(driver) {
  driver_.rails[spec.number] = this;
}
inline bool FakeRail::post(RailOp& op) {
  if (ops.size() == room) return false;
  if (const auto lost = driver_.lost_puts.find(&op); lost != driver_.lost_puts.end()) {
    const RailFence& fence = lost->second;
    if (driver_.fenced.count({fence.rail, fence.generation}) == 0) ++driver_.old_puts_abroad;
    driver_.lost_puts.erase(lost);
  }
  driver_.empty_handed += op.bytes == nullptr ? 1 : 0;
  ops.push_back(&op);
  return true;
}
inline bool FakeRail::progress(std::vector<RailOp*>& ended) {
  const bool moved = std::exchange(moves, false) || !back_.empty();
  ended.insert(ended.end(), back_.begin(), back_.end());
  back_.clear();
  if (state_ == State::kClosing && !slow_to_close) {
    for (RailOp* const op : ops) {
      op->outcome = Errc::kUnavailable;
      if (!op->is_get) driver_.lost_puts[op] = {spec.number, spec.generation};
      ended.push_back(op);
    }
    ops.clear();
    state_ = State::kClosed;
  }
  return moved;
}
inline FakeRail::~FakeRail() {
  if (driver_.rails[spec.number] == this) driver_.rails.erase(spec.number);
}
inline Result<void> FakeRail::add(RemoteRegion&, Trial trial, TimePoint deadline) {
  key_end = deadline;
  if (!answers_keys) return Error(Errc::kDeadline, "the test said so");
  ++regions;
  tried_keys += trial == Trial::kYes ? 1 : 0;
  return {};
}

/// Requests to the peer by the other way, for the test to answer.
struct FakeFences {
  struct Asked {
    RailFence fence;
    std::promise<Result<std::string>> answer;
  };
  std::vector<Asked> asked;

  [[nodiscard]] FenceRequest request() {
    return [this](const RailFence& fence) {
      asked.push_back({fence, {}});
      return asked.back().answer.get_future();
    };
  }
};

}  // namespace ho::transport::test
