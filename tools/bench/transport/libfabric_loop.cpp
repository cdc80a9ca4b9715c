// The plain libfabric program that the ofi driver is compared with. It neither checks nor recovers.
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "tools/bench/child.hpp"
#include "tools/bench/latencies.hpp"
#include "tools/bench/loop.hpp"

namespace ho::bench {
namespace {

constexpr std::uint64_t kKey = 42;
constexpr auto kServerSpin = std::chrono::microseconds(50);
constexpr int kSleepMsMax = 1000;  ///< so that a lost peer is noticed

/// The target's message to the initiator. base: 0, or an address if the provider uses them.
struct Greeting {
  std::uint64_t base = 0;
  std::uint64_t key = 0;
  std::uint32_t format = 0;
  std::uint32_t name_bytes = 0;
  char name[128] = {};
};

/// libfabric's objects. Never closed: they end with the process or the measurement.
struct Stack {
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* av = nullptr;
  fid_cq* cq = nullptr;
  fid_ep* ep = nullptr;
};

fi_info* make_hints(const std::string& provider) {
  fi_info* hints = fi_allocinfo();
  hints->ep_attr->type = FI_EP_RDM;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->caps = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  return hints;
}

int open_stack(Stack& stack, fi_wait_obj wait) {
  int bad = fi_fabric(stack.info->fabric_attr, &stack.fabric, nullptr);
  if (bad == 0) bad = fi_domain(stack.fabric, stack.info, &stack.domain, nullptr);
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_TABLE;
  if (bad == 0) bad = fi_av_open(stack.domain, &av_attr, &stack.av, nullptr);
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_CONTEXT;
  cq_attr.size = 1024;
  cq_attr.wait_obj = wait;
  if (bad == 0) bad = fi_cq_open(stack.domain, &cq_attr, &stack.cq, nullptr);
  if (bad == 0) bad = fi_endpoint(stack.domain, stack.info, &stack.ep, nullptr);
  if (bad == 0) bad = fi_ep_bind(stack.ep, &stack.av->fid, 0);
  if (bad == 0) bad = fi_ep_bind(stack.ep, &stack.cq->fid, FI_TRANSMIT | FI_RECV);
  if (bad == 0) bad = fi_enable(stack.ep);
  return bad;
}

void* map_area(std::uint64_t bytes) {
  // Shared memory, as the daemon's is.
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

void run_target(int socket, const LoopShape& shape, const std::string& provider) {
  Stack stack;
  if (!transport::open_libfabric()) return;
  fi_info* hints = make_hints(provider);
  if (fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, hints, &stack.info) != 0) {
    return;
  }
  void* area = map_area(shape.area_bytes);
  if (area == nullptr || open_stack(stack, FI_WAIT_FD) != 0) return;
  fid_mr* mr = nullptr;
  if (fi_mr_reg(stack.domain, area, shape.area_bytes, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kKey, 0,
                &mr, nullptr) != 0) {
    return;
  }
  Greeting greeting;
  const bool by_address = (stack.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  greeting.base = by_address ? reinterpret_cast<std::uintptr_t>(area) : 0;
  greeting.key = fi_mr_key(mr);
  greeting.format = stack.info->addr_format;
  std::size_t name_bytes = sizeof greeting.name;
  if (fi_getname(&stack.ep->fid, greeting.name, &name_bytes) != 0) return;
  greeting.name_bytes = static_cast<std::uint32_t>(name_bytes);
  if (::send(socket, &greeting, sizeof greeting, MSG_NOSIGNAL) < 0) return;
  int descriptor = -1;
  if (fi_control(&stack.cq->fid, FI_GETWAIT, &descriptor) != 0) return;
  auto last = std::chrono::steady_clock::now();
  while (true) {
    pollfd waits[2] = {{socket, POLLIN, 0}, {descriptor, POLLIN, 0}};
    fid* waited[] = {&stack.cq->fid};
    const bool sleep = std::chrono::steady_clock::now() - last > kServerSpin &&
                       fi_trywait(stack.fabric, waited, 1) == 0;
    if (::poll(waits, 2, sleep ? -1 : 0) < 0) continue;
    if (waits[0].revents != 0) return;
    if (waits[1].revents != 0) last = std::chrono::steady_clock::now();
    fi_cq_entry entries[16];
    (void)fi_cq_read(stack.cq, entries, 16);
  }
}

class LibfabricLoop final : public Loop {
 public:
  LibfabricLoop(const LoopShape& shape, Waits waits, std::unique_ptr<Child> child)
      : shape_(shape),
        waits_(waits),
        child_(std::move(child)),
        contexts_(shape.inflight),
        latencies_(shape.inflight) {
    for (auto& context : contexts_) free_.push_back(&context);
  }
  [[nodiscard]] std::vector<double> latencies_us() const override { return latencies_.us(); }
  void forget_samples() override { latencies_.forget(); }

  [[nodiscard]] Result<void> open(const std::string& provider) {
    Greeting greeting;
    if (::recv(child_->socket(), &greeting, sizeof greeting, 0) != sizeof greeting) {
      return Error(Errc::kUnsupported, "the plain libfabric target did not start");
    }
    if (auto there = transport::open_libfabric(); !there) return there;
    fi_info* hints = make_hints(provider);
    hints->addr_format = greeting.format;
    hints->dest_addr = ::malloc(greeting.name_bytes);
    std::memcpy(hints->dest_addr, greeting.name, greeting.name_bytes);
    hints->dest_addrlen = greeting.name_bytes;
    int bad = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &stack_.info);
    fi_freeinfo(hints);
    const bool asleep = waits_ == Waits::kAsleep;
    if (bad == 0) bad = open_stack(stack_, asleep ? FI_WAIT_FD : FI_WAIT_NONE);
    if (bad == 0 && asleep) bad = fi_control(&stack_.cq->fid, FI_GETWAIT, &wait_descriptor_);
    if (bad == 0 && fi_av_insert(stack_.av, greeting.name, 1, &peer_, 0, nullptr) != 1) bad = -1;
    area_ = static_cast<std::byte*>(map_area(shape_.area_bytes));
    fid_mr* mr = nullptr;
    if (bad == 0) {
      bad = fi_mr_reg(stack_.domain, area_, shape_.area_bytes, FI_READ | FI_WRITE, 0, kKey + 1, 0,
                      &mr, nullptr);
    }
    if (bad != 0 || area_ == nullptr) return Error(Errc::kIo, "the plain libfabric initiator");
    descriptor_ = fi_mr_desc(mr);
    greeting_ = greeting;
    return {};
  }

  [[nodiscard]] Result<double> run(Duration time) override {
    const SteadyClock clock;
    const TimePoint start = clock.now();
    std::uint64_t moved_bytes = 0;
    TimePoint now = start;
    while (now - start < time || free_.size() < contexts_.size()) {
      while (now - start < time && !free_.empty() && clock.now() >= not_before_) {
        latencies_.begin(slot_of(free_.back()), clock.now());
        const ssize_t posted = post(free_.back());
        if (posted == -FI_EAGAIN) break;
        if (posted != 0) return Error(Errc::kIo, "the plain libfabric loop lost its peer");
        free_.pop_back();
      }
      rest();
      std::array<fi_cq_entry, 16> entries;
      const ssize_t got = fi_cq_read(stack_.cq, entries.data(), entries.size());
      if (got < 0 && got != -FI_EAGAIN) return Error(Errc::kIo, "the plain libfabric loop failed");
      now = clock.now();
      for (ssize_t i = 0; i < got; ++i) {
        free_.push_back(static_cast<fi_context2*>(entries[static_cast<std::size_t>(i)].op_context));
        latencies_.end(slot_of(free_.back()), now);
        not_before_ = now + shape_.pause;
        moved_bytes += shape_.size_bytes;
      }
      if (now - start > time + std::chrono::seconds(5)) {
        return Error(Errc::kDeadline, "the plain libfabric loop is stuck");
      }
    }
    return static_cast<double>(moved_bytes) * 1e9 / static_cast<double>((now - start).count());
  }

 private:
  [[nodiscard]] std::size_t slot_of(const fi_context2* context) const {
    return static_cast<std::size_t>(context - contexts_.data());
  }
  /// Sleeps for the pause, and for a completion if asked to.
  void rest() {
    if (free_.size() == contexts_.size()) {
      if (shape_.pause > Duration{0}) std::this_thread::sleep_until(not_before_);
      return;
    }
    if (waits_ == Waits::kPolling) return;
    fid* waited[] = {&stack_.cq->fid};
    if (fi_trywait(stack_.fabric, waited, 1) != 0) return;
    pollfd wait{wait_descriptor_, POLLIN, 0};
    (void)::poll(&wait, 1, kSleepMsMax);
  }
  ssize_t post(fi_context2* context) {
    std::byte* local = area_ + at_;
    const std::uint64_t remote = greeting_.base + at_;
    ssize_t posted = 0;
    if (shape_.direction == Direction::kGet) {
      posted = fi_read(stack_.ep, local, shape_.size_bytes, descriptor_, peer_, remote,
                       greeting_.key, context);
    } else {
      iovec part{local, shape_.size_bytes};
      fi_rma_iov target{remote, shape_.size_bytes, greeting_.key};
      fi_msg_rma message{};
      message.msg_iov = &part;
      message.desc = &descriptor_;
      message.iov_count = 1;
      message.addr = peer_;
      message.rma_iov = &target;
      message.rma_iov_count = 1;
      message.context = context;
      posted = fi_writemsg(stack_.ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    }
    if (posted == 0) {
      at_ += shape_.size_bytes;
      if (at_ + shape_.size_bytes > shape_.area_bytes) at_ = 0;
    }
    return posted;
  }

  const LoopShape shape_;
  const Waits waits_;
  int wait_descriptor_ = -1;
  std::unique_ptr<Child> child_;
  std::vector<fi_context2> contexts_;
  std::vector<fi_context2*> free_;
  Latencies latencies_;
  TimePoint not_before_{};
  Stack stack_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  void* descriptor_ = nullptr;
  std::byte* area_ = nullptr;
  Greeting greeting_;
  std::uint64_t at_ = 0;
};

}  // namespace

Result<Limit> make_libfabric_limit(const LoopShape& shape, const std::string& provider,
                                   Waits waits) {
  auto child =
      Child::start([&shape, &provider](int socket) { run_target(socket, shape, provider); });
  if (!child) return child.error();
  auto loop = std::make_unique<LibfabricLoop>(shape, waits, std::move(*child));
  const auto opened = loop->open(provider);
  if (!opened) return opened.error();
  const std::string how = waits == Waits::kAsleep ? ", asleep until an operation ends" : "";
  return Limit{"plain libfabric loop (" + provider + how + ")", std::move(loop)};
}

}  // namespace ho::bench
