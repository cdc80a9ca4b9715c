// Takes over what the last daemon left, and believes nothing of it that does not fit together.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/log.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/keep/names.hpp"

namespace ho::daemon {

namespace {

int seals_of(const UniqueFd& fd) { return ::fcntl(fd.get(), F_GET_SEALS); }

/// Whether it can only be memory that a daemon granted.
bool is_segment(const UniqueFd& fd) {
  const int seals = seals_of(fd);
  return seals == SegmentMemory::seals(transport::Rights::kReadWrite) ||
         seals == SegmentMemory::seals(transport::Rights::kRead);
}

Result<Kept> read_manifest(const UniqueFd& fd) {
  struct stat info {};
  if (seals_of(fd) != kManifestSeals || ::fstat(fd.get(), &info) != 0 || info.st_size <= 0) {
    return Error(Errc::kCorrupt, "not a manifest");
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  void* const base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return errno_error(errno, "map the manifest");
  auto kept = ManifestLog::read({static_cast<const std::byte*>(base), bytes});
  ::munmap(base, bytes);
  return kept;
}

Result<void> check_segment(const KeptSegment& segment, const UniqueFd& fd, std::uint64_t bytes) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_error(errno, "fstat");
  if (info.st_dev != segment.device || info.st_ino != segment.inode) {
    return Error(Errc::kConflict, "another file than the one that was granted");
  }
  if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) != bytes) {
    return Error(Errc::kCorrupt, "it has " + std::to_string(info.st_size) + " bytes");
  }
  if (seals_of(fd) != SegmentMemory::seals(segment.rights)) {
    return Error(Errc::kCorrupt, "its seals are wrong");
  }
  return {};
}

/// A listening Unix socket whose file is still where the configuration wants one.
Result<void> check_listener(const UniqueFd& fd, const KeptNode& node, const std::string& path) {
  int listens = 0;
  socklen_t length = sizeof listens;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) {
    return Error(Errc::kConflict, "it does not listen");
  }
  sockaddr_un bound{};
  length = sizeof bound;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      bound.sun_family != AF_UNIX || path != node.unix_socket ||
      ::strncmp(bound.sun_path, path.c_str(), sizeof bound.sun_path) != 0) {
    return Error(Errc::kConflict, "it listens elsewhere");
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || info.st_dev != node.socket_device ||
      info.st_ino != node.socket_inode) {
    return Error(Errc::kConflict, "its file is not there any more");
  }
  return {};
}

/// Memory that no session ever had: a grant would have sealed it.
std::optional<Inherited::Reserved> take_reserved(StoredFd& stored, std::uint64_t segment_bytes) {
  const std::string_view name = stored.name;
  const std::size_t place = name.find('n');
  const auto number = number_of(name.substr(0, place), 'r');
  struct stat info {};
  const bool fits = number && seals_of(stored.fd) == SegmentMemory::seals(std::nullopt) &&
                    ::fstat(stored.fd.get(), &info) == 0 && info.st_nlink == 0 &&
                    static_cast<std::uint64_t>(info.st_size) == segment_bytes;
  if (!fits) return std::nullopt;
  Inherited::Reserved out;
  out.number = *number;
  struct statfs system {};
  out.huge = ::fstatfs(stored.fd.get(), &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
  if (place != std::string_view::npos) {
    const auto node = number_of(name.substr(place), 'n');
    if (!node) return std::nullopt;
    out.place = NumaNode(static_cast<std::uint32_t>(*node));
  }
  out.memory = std::move(stored.fd);
  return out;
}

/// What the last process wrote of its blocks. @return kCorrupt: it did not.
Result<std::string> read_blocks(const UniqueFd& fd) {
  struct stat info {};
  if (seals_of(fd) != kBlocksSeals || ::fstat(fd.get(), &info) != 0) {
    return Error(Errc::kCorrupt, "not left by a daemon");
  }
  std::string out(static_cast<std::size_t>(info.st_size), '\0');
  for (std::size_t at = 0; at < out.size();) {
    const ssize_t got = ::pread(fd.get(), out.data() + at, out.size() - at, static_cast<off_t>(at));
    if (got <= 0) return Error(Errc::kIo, "it cannot be read");
    at += static_cast<std::size_t>(got);
  }
  return out;
}

/// Ends what was stored and is not taken over.
void end_stored(StoredFd stored, FdStore& store, const std::string& why) {
  log(LogLevel::kWarning, "not taken over from the last process",
      {{"descriptor", stored.name}, {"why", why}});
  // A client that still maps it must not take it for memory of the pool.
  if (is_segment(stored.fd)) static_cast<void>(::ftruncate(stored.fd.get(), 0) < 0);
  store.remove(stored.name);
}

/// What describes blocks, by name. It leaves the store before anybody reads it: blocks change from
/// now on, and a process that has no memory to read it must not be followed by others like it.
class DescribedBlocks {
 public:
  /// @return false: it is something else.
  bool take(StoredFd& stored, FdStore& store) {
    if (stored.name != kBlocksName && stored.name != kExtentsName) return false;
    store.remove(stored.name);
    fds_[stored.name] = std::move(stored.fd);
    return true;
  }
  /// Empty: there is none, or it cannot be read. Once, and after the store has settled.
  [[nodiscard]] std::string read(const std::string& name, FdStore& store) {
    UniqueFd fd = std::move(fds_[name]);
    if (!fd.valid()) return {};
    auto bytes = read_blocks(fd);
    if (bytes) return std::move(*bytes);
    end_stored({name, std::move(fd)}, store, bytes.error().message());
    return {};
  }

 private:
  std::map<std::string, UniqueFd> fds_;
};

/// The latest manifest that can be read.
Kept choose_manifest(const std::vector<StoredFd>& stored) {
  Kept best;
  for (const StoredFd& one : stored) {
    if (!number_of(one.name, 'm')) continue;
    auto kept = read_manifest(one.fd);
    if (!kept) {
      log(LogLevel::kError, "a manifest is not believed",
          {{"descriptor", one.name}, {"error", kept.error().message()}});
    } else if (best.node.incarnation == 0 || best.node.generation < kept->node.generation) {
      best = std::move(*kept);
    }
  }
  return best;
}

}  // namespace

HeldPages held_pages(const Inherited& inherited) {
  HeldPages held;
  for (const auto& [id, segment] : inherited.kept.segments) {
    if (segment.pages != PageKind::kHugetlb2M) continue;
    held.bytes += inherited.kept.node.segment_bytes;
    if (segment.numa) held.by_node[*segment.numa] += inherited.kept.node.segment_bytes;
  }
  for (const Inherited::Reserved& one : inherited.reserved) {
    struct stat info {};
    if (!one.huge || ::fstat(one.memory.get(), &info) != 0) continue;
    held.bytes += static_cast<std::uint64_t>(info.st_size);
    if (one.place) held.by_node[*one.place] += static_cast<std::uint64_t>(info.st_size);
  }
  return held;
}

Inherited inherit(std::vector<StoredFd> stored, FdStore& store, const InheritSpec& spec) {
  Inherited out;
  for (const StoredFd& one : stored) store.note(one.name);
  const std::size_t given = store.count();
  Kept manifest = choose_manifest(stored);
  const KeptNode& node = manifest.node;
  std::string why = "no manifest names it";
  if (node.incarnation != 0 &&
      (node.node != spec.node || node.segment_bytes != spec.segment_bytes)) {
    why = "it is of another node, or of segments of another size";
  } else {
    out.kept = std::move(manifest);
  }
  std::set<SessionId> broken;
  DescribedBlocks described;
  for (StoredFd& one : stored) {
    if (auto reserved = take_reserved(one, spec.segment_bytes)) {
      out.reserved.push_back(std::move(*reserved));
      continue;
    }
    const auto id = number_of(one.name, 's');
    const auto segment = id ? out.kept.segments.find(SegmentId(*id)) : out.kept.segments.end();
    if (segment != out.kept.segments.end()) {
      const auto fits = check_segment(segment->second, one.fd, spec.segment_bytes);
      if (fits && out.memory.emplace(SegmentId(*id), std::move(one.fd)).second) continue;
      if (!fits) {
        broken.insert(segment->second.session);
        end_stored(std::move(one), store, fits.error().message());
      }
      continue;
    }
    if (one.name == kListenerName && out.kept.node.incarnation != 0) {
      const auto fits = check_listener(one.fd, out.kept.node, spec.unix_socket);
      if (fits) {
        out.listener = std::move(one.fd);
        continue;
      }
      end_stored(std::move(one), store, fits.error().message());
      continue;
    }
    if (out.kept.node.incarnation != 0 && described.take(one, store)) continue;
    // The manifest that was read stays in the store until the next one is there.
    const bool believed = out.kept.node.incarnation != 0;
    if (believed && number_of(one.name, 'm') == out.kept.node.generation) continue;
    end_stored(std::move(one), store, why);
  }
  for (const auto& [id, segment] : out.kept.segments) {
    if (out.memory.count(id) == 0) broken.insert(segment.session);
  }
  for (const SessionId session : broken) {
    for (const auto& [id, segment] : out.kept.segments) {
      const auto memory = out.memory.find(id);
      if (segment.session != session || memory == out.memory.end()) continue;
      end_stored({segment_name(id), std::move(memory->second)}, store,
                 "its session lost another segment");
      out.memory.erase(memory);
    }
    static_cast<void>(out.kept.apply(SessionEnded{session}));
    out.lost.push_back(session);
  }
  // Before anybody looks whether a socket that was ended still answers.
  if (store.count() < given) static_cast<void>(FdStore::settle());
  out.blocks = described.read(kBlocksName, store);
  out.extents = described.read(kExtentsName, store);
  return out;
}

}  // namespace ho::daemon
