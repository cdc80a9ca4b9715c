#include "daemon/tier/flash/log/blocking_io.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/check.hpp"

namespace ho::flash {

namespace {

constexpr auto kTurn = std::chrono::milliseconds(100);
// A device without an answer for this long counts as dead.
constexpr int kTurnsMax = 1200;

const char* verb(DeviceOpKind kind) {
  switch (kind) {
    case DeviceOpKind::kRead: return "reading";
    case DeviceOpKind::kWrite: return "writing";
    case DeviceOpKind::kSync: return "syncing";
  }
  return "";
}

}  // namespace

BlockingIo::~BlockingIo() {
  // The kernel may still move bytes.
  if (dead_) keep_for_good(std::move(memory_));
}

Result<void> BlockingIo::run(DeviceOp op) {
  if (dead_) return *dead_;
  op.op = OpId(++operations_);
  if (auto started = device_.submit(op); !started) return started.error();
  const std::string& name = device_.paths()[op.path.value()].name;
  for (int turn = 0; turn < kTurnsMax; ++turn) {
    Completion done;
    if (device_.poll(std::span(&done, 1)) == 0) {
      device_.wait(kTurn);
      continue;
    }
    HO_CHECK(done.op == op.op);
    if (done.code == Errc::kOk) return {};
    return Error(done.code, name + ": " + verb(op.kind) + " at byte " +
                                std::to_string(op.offset_bytes) + " failed");
  }
  dead_ = Error(Errc::kDeadline, name + ": " + verb(op.kind) + " at byte " +
                                     std::to_string(op.offset_bytes) + " got no answer");
  return *dead_;
}

Result<void> BlockingIo::run_split(DeviceOp op) {
  const std::span<std::byte> all = op.memory;
  HO_CHECK(op.offset_bytes % kBlockBytes == 0 && all.size() % kBlockBytes == 0);
  for (std::size_t at = 0; at < all.size(); at += kDeviceOpBytesMax) {
    DeviceOp part = op;
    const auto bytes = all.subspan(at, std::min<std::size_t>(kDeviceOpBytesMax, all.size() - at));
    part.memory = memory_.span().first(bytes.size());
    part.offset_bytes = op.offset_bytes + at;
    if (op.kind == DeviceOpKind::kWrite) std::memcpy(memory_.data(), bytes.data(), bytes.size());
    if (auto done = run(part); !done) return done;
    if (op.kind == DeviceOpKind::kRead) std::memcpy(bytes.data(), memory_.data(), bytes.size());
  }
  return {};
}

Result<void> BlockingIo::read(PathIndex path, std::uint64_t offset_bytes, std::span<std::byte> into,
                              Coding coding) {
  return run_split({OpId(), DeviceOpKind::kRead, path, offset_bytes, into, coding});
}

Result<std::set<std::uint64_t>> BlockingIo::read_salvage(PathIndex path, std::uint64_t offset_bytes,
                                                         std::span<std::byte> into) {
  std::set<std::uint64_t> bad;
  if (read(path, offset_bytes, into)) return bad;
  for (std::uint64_t block = 0; block * kBlockBytes < into.size(); ++block) {
    const std::uint64_t at = block * kBlockBytes;
    if (!read(path, offset_bytes + at, into.subspan(at, kBlockBytes))) bad.insert(block);
    if (dead_) return *dead_;
  }
  return bad;
}

Result<void> BlockingIo::write(PathIndex path, std::uint64_t offset_bytes,
                               std::span<std::byte> from, Coding coding) {
  return run_split({OpId(), DeviceOpKind::kWrite, path, offset_bytes, from, coding});
}

Result<void> BlockingIo::sync(PathIndex path) {
  return run({OpId(), DeviceOpKind::kSync, path, 0, {}});
}

}  // namespace ho::flash
