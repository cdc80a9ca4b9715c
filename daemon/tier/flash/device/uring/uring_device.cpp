#include "daemon/tier/flash/device/uring/uring_device.hpp"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/log.hpp"

namespace ho::flash {

namespace {

constexpr unsigned kBuffersMax = 256;            // registered pieces of memory
constexpr std::uint64_t kBufferBytesMax = kGiB;  // limit of the kernel per piece
constexpr std::uint64_t kWakeTag = UINT64_MAX;   // user_data of the poll on the eventfd
constexpr unsigned kBatch = 64;
constexpr std::uint64_t kSubmitBytes = 256 * kKiB;
constexpr auto kTellEvery = std::chrono::seconds(1);  // device failures are logged at this rate

Error uring_error(int error) {
  std::string why = "io_uring cannot be used: ";
  if (error == ENOSYS) {
    why += "this kernel does not support it, or a container's seccomp profile hides it";
  } else if (error == EPERM || error == EACCES) {
    int disabled = 0;
    std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
    why += disabled != 0 ? "disabled by the kernel.io_uring_disabled setting"
                         : "this process may not use it (seccomp, container or security policy)";
  } else {
    return errno_error(error, "io_uring");
  }
  return Error(Errc::kUnsupported, why);
}

/// A number for this boot of the kernel; 0 if it is unknown.
std::uint64_t boot_number() {
  std::string id;
  if (!std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id) || id.empty()) return 0;
  return checksum64(std::as_bytes(std::span(id)));
}

Errc errc_of(int error) {
  if (error == EFAULT) return Errc::kUnavailable;  // a fault of the memory, not of the device
  return error == ENOSPC || error == EDQUOT ? Errc::kExhausted : Errc::kIo;
}

/// Owns the ring.
class Ring {
 public:
  Ring() = default;
  ~Ring() {
    if (open_) ::io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  int open(unsigned entries, unsigned flags) {
    HO_CHECK(!open_);
    const int result = ::io_uring_queue_init(entries, &ring_, flags);
    open_ = result == 0;
    return result;
  }
  [[nodiscard]] struct io_uring* get() { return &ring_; }

 private:
  struct io_uring ring_ {};
  bool open_ = false;
};

class UringDevice final : public Device {
 public:
  UringDevice(std::vector<std::string> names, std::vector<OpenPath> files, std::uint32_t depth)
      : files_(std::move(files)), slots_(depth) {
    caps_.depth_ops = depth;
    caps_.boot = boot_number();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      paths_.push_back({std::move(names[i]), files_[i].size_bytes});
      caps_.memory_alignment = std::max(caps_.memory_alignment, files_[i].memory_alignment);
    }
    for (std::uint32_t i = depth; i-- > 0;) free_.push_back(i);
  }

  ~UringDevice() override {
    // The kernel uses the memory of operations in flight until they end.
    for (int turn = 0; turn < 100 && free_.size() + finished_.size() < slots_.size(); ++turn) {
      reap();
      if (free_.size() + finished_.size() < slots_.size()) wait(std::chrono::milliseconds(100));
    }
  }

  Result<void> start() {
    const unsigned modern = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                            IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    // One more entry for the poll on the eventfd.
    const unsigned entries = std::bit_ceil(caps_.depth_ops + 1);
    int result = ring_.open(entries, modern);
    if (result == -EINVAL) {
      caps_.notice = "this kernel has no deferred task work for io_uring; continuing without it";
      result = ring_.open(entries, 0);
    }
    if (result < 0) return uring_error(-result);
    wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) return errno_error(errno, "eventfd");
    std::vector<int> fds;
    for (const OpenPath& file : files_) fds.push_back(file.fd.get());
    result = ::io_uring_register_files(ring_.get(), fds.data(), static_cast<unsigned>(fds.size()));
    if (result < 0) return errno_error(-result, "io_uring: registering files");
    if (::io_uring_register_buffers_sparse(ring_.get(), kBuffersMax) < 0) {
      caps_.notice += caps_.notice.empty() ? "" : "; ";
      caps_.notice += "the kernel has no room for registered buffers";
    } else {
      for (unsigned i = kBuffersMax; i-- > 0;) free_buffers_.push_back(i);
    }
    return {};
  }

  const std::vector<DevicePath>& paths() const override { return paths_; }
  const DeviceCaps& caps() const override { return caps_; }

  Result<void> add_memory(std::span<std::byte> memory) override {
    std::size_t at = 0;
    while (at < memory.size()) {
      const auto part =
          memory.subspan(at, std::min<std::size_t>(kBufferBytesMax, memory.size() - at));
      if (free_buffers_.empty()) return Error(Errc::kExhausted, "too many registered buffers");
      const unsigned index = free_buffers_.back();
      if (const int result = update_buffer(index, part); result < 0) {
        return errno_error(-result, "registering memory for flash I/O");
      }
      free_buffers_.pop_back();
      const Buffer buffer{part.data(), part.size(), index};
      buffers_.insert(
          std::upper_bound(buffers_.begin(), buffers_.end(), buffer,
                           [](const Buffer& a, const Buffer& b) { return a.begin < b.begin; }),
          buffer);
      at += part.size();
    }
    return {};
  }

  void remove_memory(std::span<std::byte> memory) override {
    const std::byte* const end = memory.data() + memory.size();
    for (std::size_t i = buffers_.size(); i-- > 0;) {
      if (buffers_[i].begin < memory.data() || buffers_[i].begin >= end) continue;
      HO_CHECK(update_buffer(buffers_[i].index, {}) >= 0);
      free_buffers_.push_back(buffers_[i].index);
      buffers_.erase(buffers_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  Result<void> submit(const DeviceOp& op) override {
    HO_CHECK(op.path.value() < files_.size());
    HO_CHECK(op.memory.size() % kBlockBytes == 0 && op.offset_bytes % kBlockBytes == 0);
    if (free_.empty()) return Error(Errc::kBusy, "queue full");
    const std::uint32_t index = free_.back();
    free_.pop_back();
    slots_[index] = {op, 0};
    push(index);
    // Small operations go to the kernel many at a time. A large one is submitted at once, so that
    // it runs while the caller prepares the next.
    unsubmitted_bytes_ += op.memory.size();
    if (unsubmitted_bytes_ >= kSubmitBytes) flush();
    return {};
  }

  std::size_t poll(std::span<Completion> out) override {
    reap();
    const std::size_t count = std::min(out.size(), finished_.size());
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = finished_[i].completion;
      free_.push_back(finished_[i].slot);
    }
    finished_.erase(finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  void wait(Duration time_max) override {
    if (!finished_.empty()) return;
    arm_wake();
    struct __kernel_timespec time {};
    time.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(time_max).count();
    time.tv_nsec = (time_max % std::chrono::seconds(1)).count();
    struct io_uring_cqe* cqe = nullptr;
    // -ETIME, -EINTR: the caller polls anyway.
    ::io_uring_submit_and_wait_timeout(ring_.get(), &cqe, 1, &time, nullptr);
    unsubmitted_ = 0;
    unsubmitted_bytes_ = 0;
  }

  void wake() override {
    const std::uint64_t one = 1;
    // Full means that a wake is already pending.
    static_cast<void>(::write(wake_.get(), &one, sizeof(one)) < 0);
  }

 private:
  struct Slot {
    DeviceOp op;
    std::uint64_t moved_bytes = 0;
  };
  struct Finished {
    Completion completion;
    std::uint32_t slot = 0;
  };
  struct Buffer {
    std::byte* begin = nullptr;
    std::uint64_t bytes = 0;
    unsigned index = 0;
  };

  int update_buffer(unsigned index, std::span<std::byte> memory) {
    const struct iovec buffer { memory.data(), memory.size() };
    const __u64 tag = 0;
    return ::io_uring_register_buffers_update_tag(ring_.get(), index, &buffer, &tag, 1);
  }

  /// The registered buffer that contains all of this memory; nullptr if none does.
  [[nodiscard]] const Buffer* buffer_of(std::span<const std::byte> memory) const {
    const auto after =
        std::upper_bound(buffers_.begin(), buffers_.end(), memory.data(),
                         [](const std::byte* at, const Buffer& b) { return at < b.begin; });
    if (after == buffers_.begin()) return nullptr;
    const Buffer& buffer = *(after - 1);
    const auto offset = static_cast<std::uint64_t>(memory.data() - buffer.begin);
    return offset + memory.size() <= buffer.bytes ? &buffer : nullptr;
  }

  struct io_uring_sqe* next_sqe() {
    struct io_uring_sqe* sqe = ::io_uring_get_sqe(ring_.get());
    if (sqe == nullptr) {
      flush();
      sqe = ::io_uring_get_sqe(ring_.get());
    }
    HO_CHECK(sqe != nullptr);
    ++unsubmitted_;
    return sqe;
  }

  /// Starts or continues the operation of a slot.
  void push(std::uint32_t index) {
    const Slot& slot = slots_[index];
    struct io_uring_sqe* const sqe = next_sqe();
    const int file = slot.op.path.value();
    const auto rest = slot.op.memory.subspan(slot.moved_bytes);
    const std::uint64_t offset = slot.op.offset_bytes + slot.moved_bytes;
    const auto length = static_cast<unsigned>(rest.size());
    const Buffer* const buffer = rest.empty() ? nullptr : buffer_of(rest);
    const int number = buffer == nullptr ? 0 : static_cast<int>(buffer->index);
    if (slot.op.kind == DeviceOpKind::kSync) {
      ::io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
    } else if (slot.op.kind == DeviceOpKind::kRead) {
      if (buffer != nullptr) {
        ::io_uring_prep_read_fixed(sqe, file, rest.data(), length, offset, number);
      } else {
        ::io_uring_prep_read(sqe, file, rest.data(), length, offset);
      }
    } else if (buffer != nullptr) {
      ::io_uring_prep_write_fixed(sqe, file, rest.data(), length, offset, number);
    } else {
      ::io_uring_prep_write(sqe, file, rest.data(), length, offset);
    }
    sqe->flags |= IOSQE_FIXED_FILE;
    ::io_uring_sqe_set_data64(sqe, index);
  }

  void flush() {
    if (unsubmitted_ == 0) return;
    // Operations that the kernel does not accept now (EAGAIN, EBUSY) stay in the queue.
    if (::io_uring_submit(ring_.get()) < 0) return;
    unsubmitted_ = 0;
    unsubmitted_bytes_ = 0;
  }

  void arm_wake() {
    if (wake_armed_) return;
    struct io_uring_sqe* const sqe = next_sqe();
    ::io_uring_prep_poll_add(sqe, wake_.get(), POLLIN);
    ::io_uring_sqe_set_data64(sqe, kWakeTag);
    wake_armed_ = true;
  }

  void reap() {
    flush();
    std::array<struct io_uring_cqe*, kBatch> cqes{};
    for (;;) {
      const unsigned count = ::io_uring_peek_batch_cqe(ring_.get(), cqes.data(), kBatch);
      for (unsigned i = 0; i < count; ++i) finish(*cqes[i]);
      ::io_uring_cq_advance(ring_.get(), count);
      if (count < kBatch) break;
    }
    flush();
  }

  void finish(const struct io_uring_cqe& cqe) {
    if (cqe.user_data == kWakeTag) {
      std::uint64_t ignored = 0;
      static_cast<void>(::read(wake_.get(), &ignored, sizeof(ignored)) < 0);
      wake_armed_ = false;
      return;
    }
    const auto index = static_cast<std::uint32_t>(cqe.user_data);
    HO_CHECK(index < slots_.size());
    Slot& slot = slots_[index];
    const int result = cqe.res;
    if (result == -EAGAIN || result == -EINTR) return push(index);
    Errc code = Errc::kOk;
    if (result < 0) {
      code = errc_of(-result);
      tell_failure(slot, -result);
    } else if (slot.op.kind != DeviceOpKind::kSync) {
      slot.moved_bytes += static_cast<std::uint64_t>(result);
      const bool whole = slot.moved_bytes == slot.op.memory.size();
      // O_DIRECT can continue only at the end of a sector. 0 bytes mean the end of the file.
      if (!whole && result > 0 && result % 512 == 0) return push(index);
      if (!whole) {
        code = Errc::kIo;
        tell_failure(slot, 0);
      }
    }
    finished_.push_back({{slot.op.op, code, code == Errc::kOk ? slot.moved_bytes : 0}, index});
  }

  /// Logs the system's error for administrators; callers only learn that the device failed.
  /// @param error  errno; 0: the device moved too few bytes
  void tell_failure(const Slot& slot, int error) {
    if (error == EFAULT) return;  // memory of a client disappeared; not a fault of the device
    ++failures_;
    const auto now = std::chrono::steady_clock::now();
    if (failures_ > 1 && now - last_told_ < kTellEvery) return;
    last_told_ = now;
    const DeviceOp& op = slot.op;
    const char* const kind = op.kind == DeviceOpKind::kRead    ? "read"
                             : op.kind == DeviceOpKind::kWrite ? "write"
                                                               : "sync";
    log(LogLevel::kError, "flash I/O failed",
        {{"path", paths_[op.path.value()].name},
         {"op", kind},
         {"offset", std::to_string(op.offset_bytes)},
         {"bytes", std::to_string(op.memory.size())},
         {"error", error == 0 ? "only " + std::to_string(slot.moved_bytes) + " bytes were moved"
                              : std::generic_category().message(error)},
         {"failures", std::to_string(failures_)}});
  }

  std::vector<OpenPath> files_;
  std::vector<DevicePath> paths_;
  DeviceCaps caps_;
  Ring ring_;  // destroyed before the files close
  UniqueFd wake_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Finished> finished_;
  std::uint64_t failures_ = 0;
  std::chrono::steady_clock::time_point last_told_{};
  std::vector<Buffer> buffers_;  ///< by address
  std::vector<unsigned> free_buffers_;
  unsigned unsubmitted_ = 0;
  std::uint64_t unsubmitted_bytes_ = 0;
  bool wake_armed_ = false;
};

}  // namespace

Result<void> check_uring() {
  Ring ring;
  if (const int result = ring.open(2, 0); result < 0) return uring_error(-result);
  return {};
}

Result<std::unique_ptr<Device>> make_uring_device(const UringOptions& options) {
  HO_CHECK(!options.paths.empty() && options.depth_ops > 0);
  if (auto usable = check_uring(); !usable) return usable.error();
  std::vector<OpenPath> files;
  for (const std::string& name : options.paths) {
    auto file = open_path(name, options.mode);
    if (!file) return file.error();
    files.push_back(std::move(*file));
  }
  auto device = std::make_unique<UringDevice>(options.paths, std::move(files), options.depth_ops);
  if (auto started = device->start(); !started) return started.error();
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace ho::flash
