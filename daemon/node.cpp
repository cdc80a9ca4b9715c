#include "daemon/node.hpp"

#include <pthread.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <csignal>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/numa.hpp"
#include "common/base/tally.hpp"
#include "common/base/units.hpp"
#include "common/tls/context.hpp"
#include "daemon/control/listener.hpp"
#include "daemon/control/server.hpp"
#include "daemon/control/service.hpp"
#include "daemon/data/loop.hpp"
#include "daemon/grant/grants.hpp"
#include "daemon/grant/staging.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/protection.hpp"
#include "daemon/targets.hpp"
#include "daemon/tier/ddr/machine_memory.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"

namespace ho::daemon {

namespace {

// After the drain time: for memory still being taken back. Then the process's end does it.
constexpr auto kForcedEndMax = std::chrono::seconds(5);

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP};
/// The fields that SIGHUP applies.
constexpr std::array<std::string_view, 5> kReloaded{"drain_ms", "flash_unused_s_max", "log_level",
                                                    "nodes", "tls"};

Result<std::string> read_boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!(in >> id)) return Error(Errc::kIo, "/proc/sys/kernel/random/boot_id: cannot be read");
  return id;
}

std::uint64_t random_number() {
  std::uint64_t value = 0;
  HO_CHECK(::getrandom(&value, sizeof(value), 0) == sizeof(value));
  return value;
}

/// Sessions that half of this process's descriptors are enough for: each takes two a rail of `tcp`,
/// unless its job asks for more connections.
std::size_t sessions_for_descriptors(std::size_t rails) {
  rlimit limit{};
  if (rails == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return SIZE_MAX;
  return std::max<std::size_t>(limit.rlim_cur / 2 / (2 * rails), 16);
}

/// The NUMA shares that memory can be divided by. A system that forbids placing memory, as
/// containers often do, leaves the pool undivided; the log says so once.
Result<std::vector<NumaShare>> usable_shares(const DaemonConfig& config, const PagePlan& pages) {
  auto shares = check_numa(config, pages);
  if (!shares || shares->empty()) return shares;
  if (const auto usable = check_numa_node(shares->front().node); !usable) {
    log(LogLevel::kWarning, "memory is not placed by NUMA node",
        {{"why", usable.error().context()}});
    return std::vector<NumaShare>();
  }
  for (const NumaShare& share : *shares) {
    log(LogLevel::kInfo, "NUMA node",
        {{"node", std::to_string(share.node.value())},
         {"ddr", format_bytes(share.capacity_bytes)}});
  }
  return shares;
}

Pool::Options pool_options(const DaemonConfig& config, std::vector<NumaShare> shares) {
  Pool::Options options;
  options.numa = std::move(shares);
  options.node = config.node;
  options.node_name = config.node_name;
  options.capacity_bytes = config.ddr_bytes;
  options.segment_bytes = config.segment_bytes;
  options.lease = config.lease;
  options.sessions_max =
      std::min(options.sessions_max, sessions_for_descriptors(config.tcp.size()));
  return options;
}

/// Opens the flash paths. A kernel without io_uring leaves the node without flash, and says so;
/// paths that cannot be used are a mistake that somebody has to look at.
Result<std::unique_ptr<flash::FlashLoop>> start_flash(const DaemonConfig& config,
                                                      std::string& off) {
  if (config.flash.empty()) return std::unique_ptr<flash::FlashLoop>();
  if (auto usable = flash::check_uring(); !usable) {
    off = usable.error().context();
    log(LogLevel::kWarning, "running without flash", {{"why", off}});
    return std::unique_ptr<flash::FlashLoop>();
  }
  flash::UringOptions device;
  flash::FlashLoop::Options options;
  for (const FlashPathSettings& path : config.flash) {
    device.paths.push_back(path.path);
    options.write_bytes_per_day_max.push_back(path.write_bytes_per_day_max);
  }
  device.depth_ops = flash::ExtentStore::depth_ops(device.paths.size());
  options.make_device = [device] { return flash::make_uring_device(device); };
  options.salt = random_number();
  HO_CHECK(::getrandom(options.new_set.data(), options.new_set.size(), 0) ==
           static_cast<ssize_t>(options.new_set.size()));
  auto loop = flash::FlashLoop::start(std::move(options));
  if (!loop) return loop.error();
  for (const std::string& finding : (*loop)->findings()) {
    log(LogLevel::kInfo, "flash", {{"found", finding}});
  }
  const auto status = (*loop)->status();
  if (!status.notice.empty()) log(LogLevel::kInfo, "flash", {{"note", status.notice}});
  for (const flash::PathStatus& path : status.paths) {
    log(LogLevel::kInfo, "flash path",
        {{"path", path.name},
         {"capacity", format_bytes(path.capacity_bytes)},
         {"free", format_bytes(path.free_bytes)},
         {"written", format_bytes(path.wear.total_bytes)}});
    if (path.unused_bytes == 0) continue;
    log(LogLevel::kWarning, "a flash path has grown since it was formatted; its end is not used",
        {{"path", path.name}, {"unused", format_bytes(path.unused_bytes)}});
  }
  return loop;
}

}  // namespace

/// In the order in which they are built; taken apart in the reverse order.
struct Node::Parts {
  Parts(const DaemonConfig& the_config, const Clock& the_clock, Reread read_again,
        UnixListener unix_socket, std::optional<TcpListener> tcp_socket,
        std::unique_ptr<DataLoop> data_loop, NodeFacts facts, PagePlan pages,
        std::vector<NumaShare> shares, std::unique_ptr<flash::FlashLoop> flash_loop)
      : drain(the_config.drain),
        clock(the_clock),
        config(the_config),
        reread(std::move(read_again)),
        unix_listener(std::move(unix_socket)),
        tcp_listener(std::move(tcp_socket)),
        pool(pool_options(the_config, std::move(shares)), the_clock.now()),
        data(std::move(data_loop)),
        flash(std::move(flash_loop)),
        grants(pool, *data, io, pages),
        staging(pool, grants, flash.get(), io,
                {the_config.node_name, the_config.flash_unused_max, facts.flash_off}),
        service(pool, grants, staging, *data, the_clock, std::move(facts)),
        server(io, service),
        signals(io),
        ticker(io) {}

  Duration drain;
  std::shared_ptr<tls::ContextSlot> tls;  ///< null: without TLS
  const Clock& clock;
  const DaemonConfig config;  ///< as it was at the start
  const Reread reread;
  UnixListener unix_listener;
  std::optional<TcpListener> tcp_listener;
  asio::io_context io{1};
  Pool pool;
  std::unique_ptr<DataLoop> data;
  std::unique_ptr<flash::FlashLoop> flash;  ///< nullptr: no flash
  Grants grants;
  Staging staging;
  Service service;
  Server server;
  asio::signal_set signals;
  asio::steady_timer ticker;
  TimePoint drain_end;
  TimePoint forced_end;
  bool cut_off = false;  ///< the drain time has passed
};

sigset_t node_signals() {
  sigset_t out{};
  sigemptyset(&out);
  for (const int signal : kSignals) sigaddset(&out, signal);
  return out;
}

Result<PagePlan> check_memory(const DaemonConfig& config) {
  const auto supply = read_page_supply();
  if (!supply) return supply.error();
  return plan_pages(config.ddr_bytes, *supply);
}

Result<std::vector<NumaShare>> check_numa(const DaemonConfig& config, const PagePlan& pages) {
  if (config.numa.off) return std::vector<NumaShare>();
  NumaRequest request;
  request.capacity_bytes = config.ddr_bytes;
  request.segment_bytes = config.segment_bytes;
  request.nodes = config.numa.nodes;
  std::vector<NumaMemory> machine = read_numa_memory();
  if (pages.kind == PageKind::kHugetlb2M) {
    request.of = "free huge pages";
    for (NumaMemory& memory : machine) memory.bytes = memory.free_huge_bytes;
  }
  auto shares = divide_over_numa(request, machine);
  if (!shares) return shares.error().at("numa");
  return shares;
}

Result<std::unique_ptr<Node>> Node::create(const DaemonConfig& config, const Clock& clock,
                                           Reread reread) {
  const auto pages = check_memory(config);
  if (!pages) return pages.error();
  auto shares = usable_shares(config, *pages);
  if (!shares) return shares.error();
  auto boot_id = read_boot_id();
  if (!boot_id) return boot_id.error();
  auto tls = load_tls(config);
  if (!tls) return config.at_field("tls", tls.error());
  auto unix_listener = UnixListener::create(config.unix_socket);
  if (!unix_listener) {
    return config.at_field("unix_socket", unix_listener.error().at("unix_socket"));
  }
  std::optional<TcpListener> tcp_listener;
  NodeFacts facts;
  facts.boot_id = std::move(*boot_id);
  facts.instance = random_number();
  facts.refusals = std::make_shared<Tally>("refused", clock);
  facts.protection = protection_of(config);
  if (*tls) facts.protection.certificate_ends = tls::time_text((*tls)->facts().ends);
  warn_of(facts.protection);
  NodeInfo self{config.node, config.node_name, {"unix:" + config.unix_socket}};
  if (config.tcp_listen) {
    auto listener = listen_tcp(*config.tcp_listen);
    if (!listener) return config.at_field("tcp_listen", listener.error());
    self.control_addresses.push_back(listener->address);
    tcp_listener = std::move(*listener);
  }
  facts.nodes.push_back(std::move(self));
  facts.nodes.insert(facts.nodes.end(), config.nodes.begin(), config.nodes.end());
  auto flash = start_flash(config, facts.flash_off);
  if (!flash) return config.at_field("flash", flash.error());
  facts.flash = flash->get();
  const auto slot = *tls ? std::make_shared<tls::ContextSlot>(*tls) : nullptr;
  auto targets = make_targets(config, facts.refusals, slot);
  if (!targets) return targets.error();
  facts.drivers_off = std::move(targets->off);
  auto data = DataLoop::create(std::move(targets->targets));
  if (!data) return data.error();
  auto parts = std::make_unique<Parts>(config, clock, std::move(reread), std::move(*unix_listener),
                                       std::move(tcp_listener), std::move(*data), std::move(facts),
                                       *pages, std::move(*shares), std::move(*flash));
  parts->tls = slot;
  parts->server.set_tls(slot);
  if (auto added = parts->server.add(parts->unix_listener.fd()); !added) return added.error();
  if (parts->tcp_listener) {
    auto added = parts->server.add(parts->tcp_listener->fd.get());
    if (!added) return added.error();
  }
  return std::unique_ptr<Node>(new Node(std::move(parts)));
}

Node::Node(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Node::~Node() {
  parts_->server.stop();
  parts_->data->shut();
  parts_->data->stop();
  // Before the segments go, which its transfers read and write.
  if (parts_->flash) parts_->flash->stop();
  parts_->grants.stop();
}

void Node::run() {
  Parts& parts = *parts_;
  for (const int signal : kSignals) {
    std::error_code error;
    parts.signals.add(signal, error);
    HO_CHECK(!error);
  }
  await_signal();
  // main() holds them back until here; one that came meanwhile is delivered now.
  const sigset_t held = node_signals();
  HO_CHECK(pthread_sigmask(SIG_UNBLOCK, &held, nullptr) == 0);
  parts.server.start();
  tick();
  const std::string kind(page_kind_name(parts.grants.page_kind()));
  log(LogLevel::kInfo, "serving",
      {{"node", parts.pool.options().node_name},
       {"ddr", format_bytes(parts.pool.options().capacity_bytes)},
       {"segment", format_bytes(parts.pool.options().segment_bytes)},
       {"pages", kind},
       {"unix", parts.unix_listener.path()},
       {"tcp", parts.tcp_listener ? parts.tcp_listener->address : "none"}});
  ::sd_notifyf(0, "READY=1\nSTATUS=Giving %s in %s pages",
               format_bytes(parts.pool.options().capacity_bytes).c_str(), kind.c_str());
  parts.io.run();
  log(LogLevel::kInfo, "stopped");
}

void Node::await_signal() {
  parts_->signals.async_wait([this](std::error_code error, int signal) {
    if (error) return;
    if (signal == SIGHUP) {
      reload();
    } else {
      begin_end();
    }
    await_signal();
  });
}

/// Applies the changed fields that need no restart, and names the others.
void Node::reload() {
  Parts& parts = *parts_;
  ::sd_notify(0, "RELOADING=1");
  const auto fresh = parts.reread();
  if (fresh) {
    set_log_level(fresh->log_level);
    parts.drain = fresh->drain;
    parts.staging.set_unused_max(fresh->flash_unused_max);
    parts.service.set_others(fresh->nodes);
    reload_tls(*fresh);
    log(LogLevel::kInfo, "configuration reloaded", {{"file", fresh->file}});
    for (const std::string& field : changed_fields(parts.config, *fresh)) {
      if (std::find(kReloaded.begin(), kReloaded.end(), field) != kReloaded.end()) continue;
      log(LogLevel::kWarning, "a changed field needs a restart", {{"field", field}});
    }
  } else {
    log(LogLevel::kError, "the configuration is wrong; nothing was reloaded",
        {{"error", fresh.error().context()}});
  }
  ::sd_notify(0, "READY=1");
}

/// Connections that begin from now on use the files as they are now. Bad ones change nothing.
void Node::reload_tls(const DaemonConfig& fresh) {
  Parts& parts = *parts_;
  if (fresh.tls.has_value() != parts.config.tls.has_value()) {
    return log(LogLevel::kWarning, "a changed field needs a restart", {{"field", "tls"}});
  }
  if (!fresh.tls) return;
  auto context = load_tls(fresh);
  if (!context) {
    return log(LogLevel::kError, "the certificates are wrong; those read before stay in use",
               {{"error", fresh.at_field("tls", context.error()).context()}});
  }
  const std::string ends = tls::time_text((*context)->facts().ends);
  log(LogLevel::kInfo, "certificates reloaded", {{"name", (*context)->own().name}, {"ends", ends}});
  parts.service.set_certificate_ends(ends);
  parts.tls->set(std::move(*context));
}

/// Begins the end; the second time, hastens it.
void Node::begin_end() {
  Parts& parts = *parts_;
  const TimePoint now = parts.clock.now();
  if (parts.pool.draining()) {
    parts.drain_end = now;
  } else {
    log(LogLevel::kInfo, "draining", {{"sessions", std::to_string(parts.pool.sessions().size())}});
    ::sd_notify(0, "STOPPING=1\nSTATUS=Draining");
    parts.pool.start_draining();
    parts.drain_end = now + parts.drain;
  }
  parts.forced_end = parts.drain_end + kForcedEndMax;
  tick();  // not only when the timer of a daemon at rest is over
}

void Node::drain_step() {
  Parts& parts = *parts_;
  const TimePoint now = parts.clock.now();
  if (now >= parts.drain_end && !parts.cut_off) {
    parts.cut_off = true;
    // No client may hear that a transfer is done after the memory has gone.
    parts.server.stop();
    parts.data->shut();
    parts.grants.give_up();
    while (!parts.pool.sessions().empty()) {
      const SessionId session = parts.pool.sessions().begin()->first;
      log(LogLevel::kWarning, "ending a session that did not close",
          {{"session", std::to_string(session.value())}});
      parts.staging.close_session(session, [] {});
    }
  }
  const bool drained = parts.pool.sessions().empty() && parts.grants.idle() && parts.staging.idle();
  if (!drained && now < parts.forced_end) return;
  if (!drained) log(LogLevel::kError, "memory was not given back in time");
  parts.server.stop();
  parts.io.stop();
}

void Node::tick() {
  parts_->service.tick();
  if (parts_->pool.draining()) drain_step();
  parts_->ticker.expires_after(parts_->pool.tick_period());
  parts_->ticker.async_wait([this](std::error_code error) {
    if (!error) tick();
  });
}

}  // namespace ho::daemon
