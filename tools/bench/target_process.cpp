#include "tools/bench/target_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::bench {
namespace {

using transport::ExposeRequest;
using transport::ExposureId;
using transport::Rights;
using transport::Target;

enum class Verb : std::uint8_t { kExpose, kRevoke, kRevokeAndTruncate, kFence };

/// One request over the socket pair. Both ends are this program, so the struct itself is sent.
struct Command {
  Verb verb = Verb::kExpose;
  Rights rights = Rights::kRead;
  std::uint64_t length_bytes = 0;
  std::uint64_t id = 0;
  transport::RailFence fence;
};

struct Answer {
  Errc code = Errc::kOk;
  std::uint64_t id = 0;
  char text[2048] = {};  ///< a key, an address, or the error
};

/// The options of a child.
struct Orders {
  Driver driver = Driver::kLocal;
  std::uint32_t rails = 1;
  char ofi_provider[64] = {};
  char ofi_address[64] = {};
  char tls_folder[512] = {};
  bool ucx_over_tcp = false;
};

/// The only session of a process.
transport::Credentials the_session() { return {SessionId(1), std::string(16, 's')}; }

/// The target polls for this long after the last event, then sleeps, as the daemon's data thread
/// does.
constexpr auto kSpin = std::chrono::microseconds(50);

void set_text(Answer& answer, const std::string& text) {
  HO_CHECK(answer.code != Errc::kOk || text.size() < sizeof answer.text);
  std::strncpy(answer.text, text.c_str(), sizeof answer.text - 1);
}

Answer failed(const Error& error) {
  Answer answer;
  answer.code = error.code();
  set_text(answer, error.context());
  return answer;
}

/// Sends one message, with a descriptor if fd >= 0.
bool send_message(int socket, const void* bytes, std::size_t length, int fd) {
  iovec part{const_cast<void*>(bytes), length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(length);
}

bool receive_message(int socket, void* bytes, std::size_t length, UniqueFd& fd) {
  iovec part{bytes, length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(length)) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int got = -1;
    std::memcpy(&got, CMSG_DATA(header), sizeof got);
    fd = UniqueFd(got);
  }
  return true;
}

/// Runs the child until its end.
class Server {
 public:
  Server(std::unique_ptr<Target> target, int socket, int fences)
      : target_(std::move(target)), socket_(socket), fences_(fences) {}

  /// Returns when the parent has ended.
  void run() {
    auto last_event = std::chrono::steady_clock::now();
    while (true) {
      const std::size_t events = target_->progress();
      const auto now = std::chrono::steady_clock::now();
      if (events > 0) last_event = now;
      const bool sleep = now - last_event > kSpin && target_->arm();
      pollfd waits[3] = {
          {socket_, POLLIN, 0}, {fences_, POLLIN, 0}, {target_->wait_descriptor(), POLLIN, 0}};
      if (::poll(waits, 3, sleep ? -1 : 0) < 0) continue;
      if (waits[0].revents != 0 && !serve_one(socket_)) return;
      if (waits[1].revents != 0 && !serve_one(fences_)) return;
    }
  }

 private:
  struct Held {
    UniqueFd fd;
    std::span<std::byte> memory;
  };

  bool serve_one(int socket) {
    Command command;
    UniqueFd fd;
    if (!receive_message(socket, &command, sizeof command, fd)) return false;
    const Answer answer = carry_out(command, std::move(fd));
    return send_message(socket, &answer, sizeof answer, -1);
  }

  Answer carry_out(const Command& command, UniqueFd fd) {
    switch (command.verb) {
      case Verb::kExpose: return expose(command, std::move(fd));
      case Verb::kFence: return fence(command);
      case Verb::kRevoke:
      case Verb::kRevokeAndTruncate: break;
    }
    return revoke(command);
  }

  Answer fence(const Command& command) {
    const auto ended = target_->fence(the_session().session, command.fence);
    if (!ended) return failed(ended.error());
    Answer answer;
    set_text(answer, *ended);
    return answer;
  }

  Answer expose(const Command& command, UniqueFd fd) {
    void* base = ::mmap(nullptr, command.length_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (base == MAP_FAILED) return failed(errno_error(errno, "mapping a segment"));
    const std::span<std::byte> memory(static_cast<std::byte*>(base), command.length_bytes);
    const auto exposure =
        target_->expose(ExposeRequest{memory, command.rights, fd.get(), the_session().session});
    if (!exposure) return failed(exposure.error());
    // Faults pages in ahead, as the daemon does, so that the first transfers do not pay for it.
    if (!exposure->mapping.empty()) {
      const int advice = command.rights == Rights::kRead ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
      (void)::madvise(exposure->mapping.data(), exposure->mapping.size(), advice);
    }
    held_[exposure->id] = Held{std::move(fd), memory};
    Answer answer;
    answer.id = exposure->id.value();
    set_text(answer, exposure->key);
    return answer;
  }

  Answer revoke(const Command& command) {
    const ExposureId id(command.id);
    const auto revoked = target_->revoke(id);
    if (!revoked) return failed(revoked.error());
    const Held& held = held_.at(id);
    const bool truncate = command.verb == Verb::kRevokeAndTruncate;
    if (truncate && ::ftruncate(held.fd.get(), 0) != 0) {
      return failed(errno_error(errno, "truncating a segment"));
    }
    ::munmap(held.memory.data(), held.memory.size());
    held_.erase(id);
    return Answer{};
  }

  std::unique_ptr<Target> target_;
  const int socket_;
  const int fences_;
  std::unordered_map<ExposureId, Held> held_;
};

Result<std::unique_ptr<Target>> make_ofi(const TargetProcess::Options& how) {
  transport::OfiTargetOptions options;
  options.provider = how.ofi_provider;
  options.allow_emulation = how.ofi_provider.empty();
  options.rails.resize(how.rails);
  for (std::uint32_t i = 0; i < how.rails; ++i) {
    options.rails[i].address = "127.0.0." + std::to_string(1 + i);
  }
  if (!how.ofi_address.empty()) options.rails = {{"", how.ofi_address}};
  return transport::make_ofi_target(options);
}

Result<std::unique_ptr<Target>> make_tcp(const TargetProcess::Options& how) {
  transport::TcpTargetOptions options;
  options.rails.resize(how.rails);
  for (std::uint32_t i = 0; i < how.rails; ++i) {
    options.rails[i].address = "127.0.0." + std::to_string(1 + i);
  }
  if (!how.tls_folder.empty()) {
    auto context = tls::Context::load(tls::files_in(how.tls_folder));
    if (!context) return context.error();
    options.tls = std::make_shared<tls::ContextSlot>(std::move(*context));
  }
  return transport::make_tcp_target(options);
}

Result<std::unique_ptr<Target>> make_target(const TargetProcess::Options& options) {
  switch (options.driver) {
    case Driver::kLocal: return transport::make_local_target();
    case Driver::kOfi: return make_ofi(options);
    case Driver::kTcp: return make_tcp(options);
    case Driver::kUcx:
      return transport::make_ucx_target(options.ucx_over_tcp ? ucx_over_tcp()
                                                             : transport::UcxDevices{});
  }
  return Error(Errc::kInvalidArgument, "no such driver");
}

[[noreturn]] void run_child(int inherited_socket, int inherited_fences) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The child keeps nothing of the parent's open, above all not the sockets of its transports.
  constexpr int kSocket = 3;
  constexpr int kFences = 4;
  const int moved = ::fcntl(inherited_fences, F_DUPFD, kFences + 1);  // the next may be its place
  ::dup2(inherited_socket, kSocket);
  ::dup2(moved, kFences);
  ::close_range(kFences + 1, ~0U, 0);
  Orders orders;
  UniqueFd none;
  if (!receive_message(kSocket, &orders, sizeof orders, none)) ::_exit(0);  // not needed
  auto target = make_target({orders.driver, orders.rails, orders.ofi_provider, orders.ofi_address,
                             orders.tls_folder, orders.ucx_over_tcp});
  auto address = target ? (*target)->admit(the_session()) : Result<std::string>(target.error());
  Answer hello;
  if (address) {
    set_text(hello, *address);
  } else {
    hello = failed(address.error());
  }
  if (send_message(kSocket, &hello, sizeof hello, -1) && address) {
    Server(std::move(*target), kSocket, kFences).run();
  }
  ::_exit(0);
}

Result<Answer> receive_answer(int socket) {
  Answer answer;
  UniqueFd none;
  if (!receive_message(socket, &answer, sizeof answer, none)) {
    return Error(Errc::kUnavailable, "the target process is gone");
  }
  if (answer.code != Errc::kOk) return Error(answer.code, answer.text);
  return answer;
}

}  // namespace

transport::UcxDevices ucx_over_tcp() {
  transport::UcxDevices devices;
  devices.devices = "lo";
  devices.transports = "tcp";
  devices.allow_emulation = true;
  return devices;
}

/// The channel for fence requests, shared with the threads that wait for answers.
struct TargetProcess::Fences {
  explicit Fences(UniqueFd fd) : socket(std::move(fd)) {}
  std::mutex mutex;
  UniqueFd socket;

  Result<std::string> ask(const transport::RailFence& fence) {
    const std::lock_guard lock(mutex);
    Command command;
    command.verb = Verb::kFence;
    command.fence = fence;
    if (!send_message(socket.get(), &command, sizeof command, -1)) {
      return Error(Errc::kUnavailable, "the target process is gone");
    }
    const auto answer = receive_answer(socket.get());
    if (!answer) return answer.error();
    if (answer->text[0] != '\0') set_address(answer->text);
    return std::string(answer->text);
  }

  /// The session's; a fence may change it.
  std::string address() {
    const std::lock_guard lock(address_mutex_);
    return address_;
  }
  void set_address(const std::string& address) {
    const std::lock_guard lock(address_mutex_);
    address_ = address;
  }

 private:
  std::mutex address_mutex_;  ///< apart from the other: an answer may take long
  std::string address_;
};

TargetProcess::TargetProcess(pid_t pid, UniqueFd socket, UniqueFd fences)
    : pid_(pid), socket_(std::move(socket)), fences_(std::make_shared<Fences>(std::move(fences))) {}

transport::PeerAddress TargetProcess::peer(NodeId node) const {
  transport::PeerAddress peer;
  peer.node = node;
  peer.session = the_session();
  peer.address = fences_->address();
  peer.fence = [fences = fences_](const transport::RailFence& fence) {
    auto answer = std::make_shared<std::promise<Result<std::string>>>();
    auto future = answer->get_future();
    std::thread([fences, fence, answer] { answer->set_value(fences->ask(fence)); }).detach();
    return future;
  };
  return peer;
}

Result<std::unique_ptr<Segment>> Segment::create(std::uint64_t length_bytes) {
  UniqueFd fd(::memfd_create("ho-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(length_bytes)) != 0) {
    return errno_error(errno, "sizing a segment");
  }
  void* base =
      ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (base == MAP_FAILED) return errno_error(errno, "mapping a segment");
  return std::make_unique<Segment>(
      std::move(fd), std::span<std::byte>(static_cast<std::byte*>(base), length_bytes));
}

Segment::~Segment() { ::munmap(bytes_.data(), bytes_.size()); }

UniqueFd Segment::duplicate() const { return UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)); }

Result<std::unique_ptr<TargetProcess>> TargetProcess::prepare() {
  int ends[4] = {-1, -1, -1, -1};
  for (int* const pair : {ends, ends + 2}) {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      return errno_error(errno, "socketpair");
    }
  }
  UniqueFd ours(ends[0]);
  UniqueFd our_fences(ends[2]);
  const UniqueFd theirs(ends[1]);
  const UniqueFd their_fences(ends[3]);
  const pid_t pid = ::fork();
  if (pid < 0) return errno_error(errno, "fork");
  if (pid == 0) run_child(theirs.get(), their_fences.get());
  return std::make_unique<TargetProcess>(pid, std::move(ours), std::move(our_fences));
}

Result<void> TargetProcess::begin(const Options& options) {
  Orders orders;
  HO_CHECK(options.ofi_provider.size() < sizeof orders.ofi_provider);
  HO_CHECK(options.ofi_address.size() < sizeof orders.ofi_address);
  HO_CHECK(options.tls_folder.size() < sizeof orders.tls_folder);
  orders.driver = options.driver;
  orders.rails = options.rails;
  orders.ucx_over_tcp = options.ucx_over_tcp;
  options.ofi_provider.copy(orders.ofi_provider, sizeof orders.ofi_provider);
  options.ofi_address.copy(orders.ofi_address, sizeof orders.ofi_address);
  options.tls_folder.copy(orders.tls_folder, sizeof orders.tls_folder);
  if (!send_message(socket_.get(), &orders, sizeof orders, -1)) {
    return Error(Errc::kUnavailable, "the target process is gone");
  }
  const auto hello = receive_answer(socket_.get());
  if (!hello) return hello.error();
  fences_->set_address(hello->text);
  return {};
}

Result<std::unique_ptr<TargetProcess>> TargetProcess::start(const Options& options) {
  auto process = prepare();
  if (!process) return process;
  const auto begun = (*process)->begin(options);
  if (!begun) return begun.error();
  return process;
}

TargetProcess::~TargetProcess() { signal(SIGKILL); }

void TargetProcess::signal(int number) {
  if (reaped_) return;
  ::kill(pid_, number);
  if (number != SIGKILL && number != SIGSTOP) return;
  int status = 0;
  while (::waitpid(pid_, &status, number == SIGSTOP ? WUNTRACED : 0) < 0 && errno == EINTR) {
  }
  reaped_ = !WIFSTOPPED(status);
}

bool TargetProcess::alive() {
  if (reaped_) return false;
  int status = 0;
  reaped_ = ::waitpid(pid_, &status, WNOHANG) == pid_;
  return !reaped_;
}

Result<TargetProcess::Exposed> TargetProcess::expose(const Segment& segment, Rights rights) {
  Command command;
  command.rights = rights;
  command.length_bytes = segment.bytes().size();
  if (!send_message(socket_.get(), &command, sizeof command, segment.fd())) {
    return Error(Errc::kUnavailable, "the target process is gone");
  }
  const auto answer = receive_answer(socket_.get());
  if (!answer) return answer.error();
  return Exposed{ExposureId(answer->id), answer->text};
}

Result<void> TargetProcess::revoke(ExposureId id, Truncate truncate) {
  Command command;
  command.verb = truncate == Truncate::kYes ? Verb::kRevokeAndTruncate : Verb::kRevoke;
  command.id = id.value();
  if (!send_message(socket_.get(), &command, sizeof command, -1)) {
    return Error(Errc::kUnavailable, "the target process is gone");
  }
  const auto answer = receive_answer(socket_.get());
  if (!answer) return answer.error();
  return {};
}

}  // namespace ho::bench
