#include "tools/bench/transport/ucx_rival.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "common/transport/loader/own_files.hpp"
#include "tools/bench/child.hpp"
#include "tools/bench/loop.hpp"

namespace ho::bench {
namespace {

constexpr Duration kStartTimeMax = std::chrono::seconds(20);
/// For the last operations and a flush, after the turn itself.
constexpr Duration kEndTimeMax = std::chrono::seconds(20);

/// Reads one answer of the program. @return false: none in time, or the program has ended.
bool receive(int socket, double& answer, Duration time_max) {
  const timeval limit{std::chrono::ceil<std::chrono::seconds>(time_max).count(), 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return ::recv(socket, &answer, sizeof answer, 0) == sizeof answer;
}

class UcxRival final : public Loop {
 public:
  explicit UcxRival(std::unique_ptr<Child> program) : program_(std::move(program)) {}

  [[nodiscard]] Result<double> run(Duration time) override {
    const std::int64_t time_ns = time.count();
    double bytes_per_s = 0;
    const int socket = program_->socket();
    if (::send(socket, &time_ns, sizeof time_ns, MSG_NOSIGNAL) < 0 ||
        !receive(socket, bytes_per_s, time + kEndTimeMax)) {
      return Error(Errc::kIo, "the plain UCX loop failed");
    }
    return bytes_per_s;
  }

 private:
  std::unique_ptr<Child> program_;
};

[[noreturn]] void become(const std::string& file, const LoopShape& shape,
                         const std::string& transports, int socket) {
  const char* const direction = shape.direction == Direction::kGet ? "get" : "put";
  const std::string size = std::to_string(shape.size_bytes);
  const std::string inflight = std::to_string(shape.inflight);
  const std::string area = std::to_string(shape.area_bytes);
  const std::string pause = std::to_string(shape.pause.count());
  // dup2() of a descriptor to itself does not clear close-on-exec.
  if (socket == kUcxLoopSocket) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, kUcxLoopSocket);
  }
  ::execl(file.c_str(), kUcxLoopProgram, direction, size.c_str(), inflight.c_str(), area.c_str(),
          transports.c_str(), pause.c_str(), nullptr);
  ::_exit(127);
}

}  // namespace

Result<Limit> make_ucx_limit(const LoopShape& shape, const std::string& transports) {
  const auto file = transport::find_own_file(kUcxLoopProgram);
  if (!file) return Error(Errc::kUnsupported, file.error().context());
  auto program =
      Child::start([&](int socket) { become(file->string(), shape, transports, socket); });
  if (!program) return program.error();
  double ready = 0;
  if (!receive((*program)->socket(), ready, kStartTimeMax)) {
    return Error(Errc::kUnsupported, "the plain UCX loop did not start");
  }
  return Limit{"plain UCX loop (" + transports + ")",
               std::make_unique<UcxRival>(std::move(*program))};
}

}  // namespace ho::bench
