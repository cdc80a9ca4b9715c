// The program hyperoffload-ucx-loop: plain UCX, to compare the network drivers with. It neither
// checks nor recovers. A separate program, because UCX changes the process that loads it.
// ucx_rival.cpp starts it and describes their messages.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "tools/bench/child.hpp"
#include "tools/bench/loop.hpp"
#include "tools/bench/transport/ucx_rival.hpp"

namespace ho::bench {
namespace {

struct Greeting {
  std::uint64_t base = 0;
  std::uint32_t address_bytes = 0;
  std::uint32_t key_bytes = 0;
  char bytes[1024] = {};  ///< the worker's address, then the packed key
};

constexpr char kGo = 'g';
constexpr char kRest = 'r';

/// Never closed: they end with the process or the measurement.
struct Stack {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_mem_h memory = nullptr;
  std::byte* area = nullptr;
};

/// Turns off a check that drops Soft-RoCE's messages; the ucx driver explains it.
bool leave_out_check(ucp_config_t* config) {
  for (const transport::RdmaDevice& device : transport::active_rdma_devices()) {
    if (!device.software) continue;
    return ucp_config_modify(config, "UD_ETH_DGID_CHECK", "n") == UCS_OK;
  }
  return true;
}

bool open_stack(Stack& stack, const char* transports, std::uint64_t area_bytes) {
  ucp_config_t* config = nullptr;
  if (ucp_config_read(nullptr, nullptr, &config) != UCS_OK) return false;
  if (ucp_config_modify(config, "TLS", transports) != UCS_OK) return false;
  // Both ends are on this machine; UCX's TCP would listen at all of its addresses.
  const bool tcp = std::strcmp(transports, "tcp") == 0;
  if (tcp && ucp_config_modify(config, "NET_DEVICES", "lo") != UCS_OK) return false;
  if (!leave_out_check(config)) return false;
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA;
  const bool started = ucp_init(&params, config, &stack.context) == UCS_OK;
  ucp_config_release(config);
  if (!started) return false;
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  if (ucp_worker_create(stack.context, &worker, &stack.worker) != UCS_OK) return false;
  void* base = ::mmap(nullptr, area_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (base == MAP_FAILED) return false;
  stack.area = static_cast<std::byte*>(base);
  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  map.address = base;
  map.length = area_bytes;
  return ucp_mem_map(stack.context, &map, &stack.memory) == UCS_OK;
}

void run_target(int socket, const LoopShape& shape, const char* transports) {
  Stack stack;
  if (!open_stack(stack, transports, shape.area_bytes)) return;
  void* key = nullptr;
  std::size_t key_bytes = 0;
  if (ucp_rkey_pack(stack.context, stack.memory, &key, &key_bytes) != UCS_OK) return;
  ucp_address_t* address = nullptr;
  std::size_t address_bytes = 0;
  if (ucp_worker_get_address(stack.worker, &address, &address_bytes) != UCS_OK) return;
  Greeting greeting;
  if (address_bytes + key_bytes > sizeof greeting.bytes) return;
  greeting.base = reinterpret_cast<std::uintptr_t>(stack.area);
  greeting.address_bytes = static_cast<std::uint32_t>(address_bytes);
  greeting.key_bytes = static_cast<std::uint32_t>(key_bytes);
  std::memcpy(greeting.bytes, address, address_bytes);
  std::memcpy(greeting.bytes + address_bytes, key, key_bytes);
  if (::send(socket, &greeting, sizeof greeting, MSG_NOSIGNAL) < 0) return;
  // Polls without a pause while the initiator runs, and rests while another loop is measured.
  while (true) {
    char word = 0;
    if (::recv(socket, &word, 1, 0) != 1) return;
    while (word != kRest) {
      for (int i = 0; i < 1000; ++i) (void)ucp_worker_progress(stack.worker);
      const ssize_t got = ::recv(socket, &word, 1, MSG_DONTWAIT);
      if (got == 0) return;
    }
  }
}

class UcxLoop final : public Loop {
 public:
  UcxLoop(const LoopShape& shape, std::unique_ptr<Child> child)
      : shape_(shape), child_(std::move(child)), requests_(shape.inflight) {}

  [[nodiscard]] Result<void> open(const char* transports) {
    const Error failed(Errc::kUnsupported, "the plain UCX loop did not start");
    Greeting greeting;
    if (::recv(child_->socket(), &greeting, sizeof greeting, 0) != sizeof greeting) return failed;
    if (!open_stack(stack_, transports, shape_.area_bytes)) return failed;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<ucp_address_t*>(greeting.bytes);
    if (ucp_ep_create(stack_.worker, &params, &ep_) != UCS_OK) return failed;
    if (ucp_ep_rkey_unpack(ep_, greeting.bytes + greeting.address_bytes, &key_) != UCS_OK) {
      return failed;
    }
    base_ = greeting.base;
    return {};
  }

  [[nodiscard]] Result<double> run(Duration time) override {
    const SteadyClock clock;
    if (::send(child_->socket(), &kGo, 1, MSG_NOSIGNAL) != 1) return lost();
    const TimePoint start = clock.now();
    std::uint64_t moved_bytes = 0;
    Duration took{0};
    while (took < time) {
      for (void*& request : requests_) {
        if (request != nullptr && !finished(request)) continue;
        if (request != nullptr) {
          ucp_request_free(request);
          request = nullptr;
          moved_bytes += shape_.size_bytes;
          not_before_ = clock.now() + shape_.pause;
        }
        if (shape_.pause > Duration{0} && clock.now() < not_before_) continue;
        request = post();
        if (UCS_PTR_IS_ERR(request)) return lost();
        if (request != nullptr) continue;
        moved_bytes += shape_.size_bytes;
        not_before_ = clock.now() + shape_.pause;
      }
      const bool resting = shape_.pause > Duration{0} &&
                           std::all_of(requests_.begin(), requests_.end(),
                                       [](const void* request) { return request == nullptr; });
      if (resting) std::this_thread::sleep_until(not_before_);
      (void)ucp_worker_progress(stack_.worker);
      took = clock.now() - start;
    }
    for (void*& request : requests_) {
      if (request == nullptr) continue;
      if (!wait(request, clock)) return lost();
      request = nullptr;
      moved_bytes += shape_.size_bytes;
    }
    // Puts are visible at the target only after a flush.
    ucp_request_param_t none{};
    void* flush = ucp_ep_flush_nbx(ep_, &none);
    if (UCS_PTR_IS_ERR(flush)) return lost();
    if (flush != nullptr && !wait(flush, clock)) return lost();
    took = clock.now() - start;
    if (::send(child_->socket(), &kRest, 1, MSG_NOSIGNAL) != 1) return lost();
    return static_cast<double>(moved_bytes) * 1e9 / static_cast<double>(took.count());
  }

 private:
  static Error lost() { return Error(Errc::kIo, "the plain UCX loop failed"); }
  static bool finished(void* request) {
    return ucp_request_check_status(request) != UCS_INPROGRESS;
  }

  bool wait(void* request, const SteadyClock& clock) {
    const TimePoint limit = clock.now() + std::chrono::seconds(5);
    while (!finished(request)) {
      (void)ucp_worker_progress(stack_.worker);
      if (clock.now() > limit) return false;
    }
    ucp_request_free(request);
    return true;
  }

  void* post() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
    param.memh = stack_.memory;
    std::byte* local = stack_.area + at_;
    const std::uint64_t remote = base_ + at_;
    at_ += shape_.size_bytes;
    if (at_ + shape_.size_bytes > shape_.area_bytes) at_ = 0;
    if (shape_.direction == Direction::kGet) {
      return ucp_get_nbx(ep_, local, shape_.size_bytes, remote, key_, &param);
    }
    return ucp_put_nbx(ep_, local, shape_.size_bytes, remote, key_, &param);
  }

  const LoopShape shape_;
  std::unique_ptr<Child> child_;
  std::vector<void*> requests_;
  Stack stack_;
  ucp_ep_h ep_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  std::uint64_t base_ = 0;
  std::uint64_t at_ = 0;
  TimePoint not_before_{};
};

/// Runs a turn for each request of the starter, until the starter ends.
int serve(Loop& loop) {
  const double ready = 0;
  if (::send(kUcxLoopSocket, &ready, sizeof ready, MSG_NOSIGNAL) < 0) return 1;
  while (true) {
    std::int64_t time_ns = 0;
    if (::recv(kUcxLoopSocket, &time_ns, sizeof time_ns, 0) != sizeof time_ns) return 0;
    const auto ran = loop.run(Duration(time_ns));
    if (!ran) return 1;
    const double bytes_per_s = *ran;
    if (::send(kUcxLoopSocket, &bytes_per_s, sizeof bytes_per_s, MSG_NOSIGNAL) < 0) return 1;
  }
}

}  // namespace
}  // namespace ho::bench

/// arguments: "get" or "put", bytes of an operation, operations in flight, bytes of the area,
/// UCX's name of the transport, nanoseconds of pause.
int main(int count, char** arguments) {
  if (count != 7) return 2;
  ho::bench::LoopShape shape;
  shape.direction = std::strcmp(arguments[1], "get") == 0 ? ho::bench::Direction::kGet
                                                          : ho::bench::Direction::kPut;
  shape.size_bytes = std::strtoull(arguments[2], nullptr, 10);
  shape.inflight = static_cast<std::uint32_t>(std::strtoul(arguments[3], nullptr, 10));
  shape.area_bytes = std::strtoull(arguments[4], nullptr, 10);
  const char* const transports = arguments[5];
  shape.pause = ho::Duration(std::strtoll(arguments[6], nullptr, 10));
  auto target = ho::bench::Child::start([&](int socket) {
    ::close(ho::bench::kUcxLoopSocket);
    ho::bench::run_target(socket, shape, transports);
  });
  if (!target) return 1;
  ho::bench::UcxLoop loop(shape, std::move(*target));
  if (!loop.open(transports)) return 1;
  return ho::bench::serve(loop);
}
