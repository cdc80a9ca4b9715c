#include "daemon/keep/keeper.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sys/stat.h>
#include <cerrno>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "daemon/keep/names.hpp"

namespace ho::daemon {

namespace {

/// Places that segments leave: for the next manifest, which lies beside the last one for a moment,
/// while both workers store a segment.
constexpr std::size_t kReserved = 4;

}  // namespace

/// A manifest's memory, while this process has it.
struct Keeper::Mapped {
  std::span<std::byte> memory;
  explicit Mapped(std::span<std::byte> bytes) : memory(bytes) {}
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { ::munmap(memory.data(), memory.size()); }
};

Result<void> describe_file(int fd, KeptSegment& segment) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_error(errno, "fstat of a segment");
  segment.device = info.st_dev;
  segment.inode = info.st_ino;
  return {};
}

void Keeper::start(Kept state) {
  if (!on()) return;
  if (state.node.generation > 0) manifest_name_ = manifest_name(state.node.generation);
  if (auto begun = rewrite(std::move(state)); !begun) {
    off_ = "no manifest: " + begun.error().context();
    log(LogLevel::kError, "sessions will not outlive this process",
        {{"error", begun.error().message()}});
  }
}

/// In new memory: the old manifest counts until the new one is complete and in the store.
Result<void> Keeper::rewrite(Kept state) {
  state.node.generation += 1;
  const std::uint64_t bytes = ManifestLog::bytes_for(state);
  const std::string name = manifest_name(state.node.generation);
  UniqueFd fd(::memfd_create("hyperoffload-manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno_error(errno, "ftruncate");
  if (::fcntl(fd.get(), F_ADD_SEALS, kManifestSeals) != 0) return errno_error(errno, "seal");
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return errno_error(errno, "map the manifest");
  auto mapped = std::make_shared<Mapped>(std::span(static_cast<std::byte*>(base), bytes));
  auto begun = ManifestLog::create(mapped->memory, std::move(state));
  if (!begun) return begun.error();
  if (auto stored = store_.put(name, fd.get()); !stored) return stored;
  mapped_ = std::move(mapped);
  log_ = std::move(*begun);
  if (!manifest_name_.empty()) store_.remove(manifest_name_);
  manifest_name_ = name;
  return {};
}

void Keeper::keep_listener(int fd) {
  if (!on()) return;
  auto stored = store_.put(kListenerName, fd);
  // It came from there.
  if (!stored && stored.error().code() != Errc::kAlreadyExists) {
    log(LogLevel::kWarning, "the control socket will not outlive this process",
        {{"error", stored.error().message()}});
  }
}

bool Keeper::keeps(SessionId session) const {
  return on() && log_ && log_->state().sessions.count(session) > 0;
}

void Keeper::append(ManifestEntry entry) {
  if (!log_) return;
  auto done = log_->append(entry);
  if (!done && done.error().code() == Errc::kExhausted) {
    done = rewrite(log_->state());
    if (done) done = log_->append(std::move(entry));
  }
  if (done) return;
  // A manifest that does not say what is so must not be believed.
  log(LogLevel::kError, "sessions will not outlive this process any more",
      {{"error", done.error().message()}});
  off_ = "the manifest failed: " + done.error().context();
  store_.remove(manifest_name_);
  log_.reset();
}

void Keeper::opened(KeptSession session) {
  if (!on()) return;
  append(std::move(session));
}

void Keeper::renewed(SessionId session, TimePoint lease_end) {
  if (keeps(session)) log_->set_lease(session, lease_end);
}

void Keeper::ended(SessionId session) {
  unkept_.erase(session);
  if (keeps(session)) append(SessionEnded{session});
}

void Keeper::granted(std::span<const KeptSegment> segments) {
  for (const KeptSegment& segment : segments) {
    if (keeps(segment.session)) append(segment);
  }
}

void Keeper::ended(SegmentId segment) {
  if (on() && log_ && log_->state().segments.count(segment) > 0) append(SegmentEnded{segment});
}

void Keeper::give_up(SessionId session, const Error& why) {
  if (!on()) return;
  if (keeps(session)) append(SessionEnded{session});
  if (!unkept_.insert(session).second) return;
  log(LogLevel::kWarning, "a session will not outlive this process",
      {{"session", std::to_string(session.value())}, {"why", why.message()}});
}

void Keeper::tick(TimePoint now) {
  if (on() && log_) log_->set_alive(now);
}

std::size_t Keeper::room() const {
  const std::size_t taken = store_.count() + kReserved;
  return taken < store_.descriptors_max() ? store_.descriptors_max() - taken : 0;
}

Result<void> Keeper::leave_blocks(const std::string& index) {
  if (!on()) return Error(Errc::kUnsupported, off_);
  if (auto stored = put_bytes(kBlocksName, index); !stored) return stored;
  static_cast<void>(FdStore::settle());
  return {};
}

Result<void> Keeper::leave_extents(const std::string& extents) {
  if (!on()) return Error(Errc::kUnsupported, off_);
  return put_bytes(kExtentsName, extents);
}

Result<void> Keeper::put_bytes(const std::string& name, const std::string& bytes) {
  UniqueFd fd(::memfd_create("hyperoffload-blocks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error(errno, "memfd_create");
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t written = ::write(fd.get(), bytes.data() + at, bytes.size() - at);
    if (written < 0) return errno_error(errno, "write what is left of blocks");
    at += static_cast<std::size_t>(written);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kBlocksSeals) != 0) return errno_error(errno, "seal");
  return put_named(name, fd.get());
}

Result<void> Keeper::put_named(const std::string& name, int fd) {
  if (room() == 0) {
    return Error(Errc::kExhausted,
                 "the descriptor store is full: " + std::to_string(store_.count()) + " of " +
                     std::to_string(store_.descriptors_max()) + ", and " +
                     std::to_string(kReserved) + " are reserved");
  }
  return store_.put(name, fd);
}

Result<void> Keeper::put(SegmentId segment, int fd) { return put_named(segment_name(segment), fd); }

void Keeper::forget(SegmentId segment) { store_.remove(segment_name(segment)); }

Result<void> Keeper::put_reserved(std::uint64_t number, std::optional<NumaNode> place, int fd) {
  return put_named(reserved_name(number, place), fd);
}

void Keeper::forget_reserved(std::uint64_t number, std::optional<NumaNode> place) {
  store_.remove(reserved_name(number, place));
}

void Keeper::clear() {
  log_.reset();
  store_.remove_all();
}

}  // namespace ho::daemon
