#include "daemon/node.hpp"

#include <pthread.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/tally.hpp"
#include "common/base/units.hpp"
#include "common/system/random.hpp"
#include "common/tls/context.hpp"
#include "daemon/blocks/block_store.hpp"
#include "daemon/control/listener.hpp"
#include "daemon/control/server.hpp"
#include "daemon/control/service.hpp"
#include "daemon/data/loop.hpp"
#include "daemon/flash_start.hpp"
#include "daemon/grant/grants.hpp"
#include "daemon/grant/staging.hpp"
#include "daemon/joining.hpp"
#include "daemon/memory_start.hpp"
#include "daemon/node_options.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/protection.hpp"
#include "daemon/start_check.hpp"
#include "daemon/takeover.hpp"
#include "daemon/targets.hpp"
#include "daemon/tier/ddr/machine_memory.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"
#include "daemon/watchdog.hpp"
#include "daemon/web/node_web.hpp"
#include "proto/control/control_address.hpp"

namespace ho::daemon {

namespace {

// After the drain time: for memory still being taken back. Then the process's end does it.
constexpr auto kForcedEndMax = std::chrono::seconds(5);

/// For the answer to an upgrade to be sent.
constexpr auto kLastWordsTime = std::chrono::milliseconds(20);

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP};
/// The fields that SIGHUP applies.
constexpr std::array<std::string_view, 7> kReloaded{
    "access", "drain_ms", "flash_unused_s_max", "log_level", "nodes", "quotas", "tls"};

}  // namespace

/// In the order in which they are built; taken apart in the reverse order.
struct Node::Parts {
  Parts(const DaemonConfig& the_config, const Clock& the_clock, Reread read_again,
        UnixListener unix_socket, std::optional<TcpListener> tcp_socket,
        std::unique_ptr<DataLoop> data_loop, NodeFacts facts, PagePlan pages,
        std::vector<NumaShare> shares, std::unique_ptr<flash::FlashLoop> flash_loop,
        Succession succession)
      : drain(the_config.drain),
        clock(the_clock),
        config(the_config),
        reread(std::move(read_again)),
        unix_listener(std::move(unix_socket)),
        tcp_listener(std::move(tcp_socket)),
        store(std::move(succession.store)),
        keeper(*store, std::move(succession.off)),
        inherited(std::move(succession.inherited)),
        pool(pool_options(the_config, std::move(shares)), the_clock.now()),
        data(std::move(data_loop)),
        flash(std::move(flash_loop)),
        grants(pool, *data, io, pages, keeper),
        staging(pool, grants, flash.get(), io,
                {the_config.node_name, the_config.flash_unused_max, facts.flash_off}),
        service(pool, grants, staging, *data, keeper, the_clock, std::move(facts)),
        server(io, service),
        signals(io),
        ticker(io),
        watchdog(io, *data) {
    if (the_config.blocks_ddr_bytes == 0) return;
    blocks.emplace(pool, grants, staging, the_clock,
                   BlockStore::Options{the_config.blocks_ddr_bytes,
                                       flash ? the_config.blocks_flash_bytes : 0, random_u64()});
    service.set_blocks(*blocks);
  }

  Duration drain;
  std::shared_ptr<tls::ContextSlot> tls;  ///< null: without TLS
  const Clock& clock;
  const DaemonConfig config;  ///< as it was at the start
  const Reread reread;
  UnixListener unix_listener;
  std::optional<TcpListener> tcp_listener;
  asio::io_context io{1};
  std::unique_ptr<FdStore> store;
  Keeper keeper;
  Inherited inherited;
  std::vector<Inherited::Reserved> reserved;  ///< by the last process, until reserve()
  Pool pool;
  std::unique_ptr<DataLoop> data;
  std::unique_ptr<flash::FlashLoop> flash;  ///< nullptr: no flash
  Grants grants;
  Staging staging;
  std::optional<BlockStore> blocks;  ///< nullopt: no block store
  Service service;
  Server server;
  std::unique_ptr<NodeWeb> web;            ///< null: not configured
  std::unique_ptr<Membership> membership;  ///< null: static, or not serving yet
  asio::signal_set signals;
  asio::steady_timer ticker;
  Watchdog watchdog;
  TimePoint drain_end;
  TimePoint forced_end;
  bool serving = false;
  bool cut_off = false;  ///< the drain time has passed
  End end = End::kStopped;
  bool running = false;  ///< run() has not returned; in ~Node: an exception ended it
};

sigset_t node_signals() {
  sigset_t out{};
  sigemptyset(&out);
  for (const int signal : kSignals) sigaddset(&out, signal);
  return out;
}

Result<std::unique_ptr<Node>> Node::create(const DaemonConfig& config, const Clock& clock,
                                           Reread reread, Succession succession) {
  const HeldPages held = held_pages(succession.inherited);
  const auto pages = check_memory(config, held);
  if (!pages) return pages.error();
  const bool takes_over =
      !succession.inherited.memory.empty() || !succession.inherited.reserved.empty();
  if (auto free = check_reserve(config); !free && !takes_over) {
    return config.at_field("ddr_reserve", free.error());
  }
  auto shares = usable_shares(config, *pages, held);
  if (!shares) return shares.error();
  auto boot_id = read_boot_id();
  if (!boot_id) return boot_id.error();
  auto tls = load_tls_at_start(config, takes_over);
  if (!tls) return tls.error();
  UniqueFd& inherited = succession.inherited.listener;
  auto unix_listener = inherited.valid()
                           ? UnixListener::adopt(std::move(inherited), config.unix_socket)
                           : UnixListener::create(config.unix_socket);
  if (!unix_listener) {
    return config.at_field("unix_socket", unix_listener.error().at("unix_socket"));
  }
  std::optional<TcpListener> tcp_listener;
  NodeFacts facts;
  facts.boot_id = std::move(*boot_id);
  facts.instance = random_u64();
  std::uint64_t& incarnation = succession.inherited.kept.node.incarnation;
  if (incarnation == 0) incarnation = facts.instance;
  facts.incarnation = incarnation;
  facts.refusals = std::make_shared<Tally>("refused", clock);
  facts.protection = protection_of(config);
  if (*tls) facts.protection.certificate_ends = tls::time_text((*tls)->facts().ends);
  warn_of(facts.protection);
  NodeInfo self{config.node, config.node_name, {"unix:" + config.unix_socket}};
  if (config.tcp_listen) {
    auto listener = listen_tcp(*config.tcp_listen, "tcp_listen");
    if (!listener) return config.at_field("tcp_listen", listener.error());
    self.control_addresses.push_back(listener->address);
    tcp_listener = std::move(*listener);
  }
  facts.nodes.push_back(std::move(self));
  facts.nodes.insert(facts.nodes.end(), config.nodes.begin(), config.nodes.end());
  if (config.etcd) facts.membership.kind = "etcd";
  auto flash = start_flash(config, std::move(succession.inherited.extents), facts.flash_off);
  if (!flash) return config.at_field("flash", flash.error());
  facts.flash = flash->get();
  const auto slot = *tls ? std::make_shared<tls::ContextSlot>(*tls) : nullptr;
  auto targets = make_targets(config, facts.refusals, slot);
  if (!targets) return targets.error();
  facts.drivers_off = std::move(targets->off);
  facts.tcp = targets->tcp_traffic;
  auto data = DataLoop::create(std::move(targets->targets));
  if (!data) return data.error();
  auto parts =
      std::make_unique<Parts>(config, clock, std::move(reread), std::move(*unix_listener),
                              std::move(tcp_listener), std::move(*data), std::move(facts), *pages,
                              std::move(*shares), std::move(*flash), std::move(succession));
  parts->tls = slot;
  parts->service.set_access(known_access(config));
  parts->server.set_tls(slot);
  if (auto added = parts->server.add(parts->unix_listener.fd()); !added) return added.error();
  if (parts->tcp_listener) {
    auto added = parts->server.add(parts->tcp_listener->fd.get());
    if (!added) return added.error();
  }
  if (auto shown = serve_web(*parts); !shown) {
    return config.at_field("http_listen", shown.error());
  }
  return std::unique_ptr<Node>(new Node(std::move(parts)));
}

/// Opens the address of /metrics, if there is one.
Result<void> Node::serve_web(Parts& parts) {
  if (!parts.config.http_listen) return {};
  const auto listener = listen_tcp(*parts.config.http_listen, "http_listen");
  if (!listener) return listener.error();
  HttpServer::Options options;
  options.loopback_hosts_only = is_loopback(parts.config.http_listen->host);
  parts.web = std::make_unique<NodeWeb>(
      parts.io,
      NodeWeb::Parts{parts.pool, parts.service, parts.server, *parts.data, parts.tls, parts.clock},
      options);
  log(LogLevel::kInfo, "status page", {{"at", "http://" + listener->address.substr(4) + "/"}});
  return parts.web->listen(listener->fd.get());
}

Node::Node(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Node::~Node() {
  parts_->membership.reset();
  parts_->server.stop();
  parts_->data->shut();
  parts_->data->stop();
  // Before the segments go, which its transfers read and write.
  if (parts_->flash) parts_->flash->stop();
  parts_->grants.stop();
  // After an exception as after a kill: the next daemon takes over.
  if (parts_->end == End::kUpgrade || parts_->running) {
    parts_->grants.leave();
    parts_->unix_listener.leave();
  } else {
    parts_->keeper.clear();
  }
}

Node::End Node::run() {
  Parts& parts = *parts_;
  parts.running = true;
  for (const int signal : kSignals) {
    std::error_code error;
    parts.signals.add(signal, error);
    HO_CHECK(!error);
  }
  // main() holds them back until here; one that came meanwhile is delivered now.
  const sigset_t held = node_signals();
  HO_CHECK(pthread_sigmask(SIG_UNBLOCK, &held, nullptr) == 0);
  parts.service.set_upgrade([this] { return check_upgrade(); }, [this] { begin_upgrade(); });
  KeptNode& node = parts.inherited.kept.node;
  node.node = parts.config.node;
  node.segment_bytes = parts.config.segment_bytes;
  node.unix_socket = parts.unix_listener.path();
  node.socket_device = parts.unix_listener.device();
  node.socket_inode = parts.unix_listener.inode();
  parts.reserved = std::move(parts.inherited.reserved);
  std::string blocks = std::move(parts.inherited.blocks);
  take_over({parts.pool, parts.grants, parts.staging, parts.keeper, *parts.data, parts.clock},
            std::move(parts.inherited),
            [this, blocks = std::move(blocks)](const TakenOver& taken) mutable {
              parts_->service.set_taken(taken);
              if (parts_->blocks && !blocks.empty()) parts_->blocks->adopt(std::move(blocks));
              parts_->staging.free_unclaimed();
              await_signal();
              reserve();
            });
  const auto until_stopped = asio::make_work_guard(parts.io);
  parts.io.run();
  parts.running = false;
  log(LogLevel::kInfo, parts.end == End::kUpgrade  ? "ended for an upgrade"
                       : parts.end == End::kFailed ? "could not start"
                                                   : "stopped");
  return parts.end;
}

/// Serves once memory is reserved; at once where jobs may wait for this daemon.
void Node::reserve() {
  Parts& parts = *parts_;
  auto left = std::move(parts.reserved);
  if (!parts.config.ddr_reserve) {
    for (const auto& one : left) parts.keeper.forget_reserved(one.number, one.place);
    return serve();
  }
  const bool jobs_wait = !parts.pool.sessions().empty() || !left.empty();
  const std::string all = format_bytes(parts.pool.options().capacity_bytes);
  const auto progress = [this, all](std::uint64_t bytes) {
    if (parts_->serving) return;
    ::sd_notifyf(0, "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=Reserving memory: %s of %s",
                 format_bytes(bytes).c_str(), all.c_str());
  };
  const auto filled = [this](const Result<void>& done) {
    if (parts_->serving) return;
    if (done) return serve();
    parts_->end = End::kFailed;
    parts_->io.stop();
  };
  if (jobs_wait) serve();
  parts.grants.reserve(std::move(left), progress, filled);
}

/// All that was there before is there again: from now on requests are heard.
void Node::serve() {
  Parts& parts = *parts_;
  parts.serving = true;
  parts.keeper.keep_listener(parts.unix_listener.fd());
  parts.server.start();
  tick();
  join();
  const std::string kind(page_kind_name(parts.grants.page_kind()));
  note_state(
      LogLevel::kInfo, "serving",
      {{"node", parts.pool.options().node_name},
       {"ddr", format_bytes(parts.pool.options().capacity_bytes)},
       {"segment", format_bytes(parts.pool.options().segment_bytes)},
       {"pages", kind},
       {"unix", parts.unix_listener.path()},
       {"tcp", parts.tcp_listener ? parts.tcp_listener->address : "none"},
       {"restart", parts.keeper.on() ? "sessions outlive this process" : parts.keeper.off()}});
  ::sd_notifyf(0, "READY=1\nSTATUS=Giving %s in %s pages",
               format_bytes(parts.pool.options().capacity_bytes).c_str(), kind.c_str());
  parts.watchdog.start();
}

/// Lists this daemon for others, now that it serves. A machine without a name was refused before.
void Node::join() {
  Parts& parts = *parts_;
  const NodeFacts& facts = parts.service.facts();
  auto joined = join_pool(parts.config, {facts.nodes.front(), facts.instance}, parts.clock,
                          [&parts](Membership::View view) {
                            asio::post(parts.io, [&parts, view = std::move(view)] {
                              parts.service.set_others(view.others);
                              parts.service.set_membership(view.status);
                            });
                          });
  HO_CHECK(joined.ok());
  parts.membership = std::move(*joined);
  if (parts.membership) offer_name_claims(parts.service, parts.membership, parts.io);
}

void Node::note_state(LogLevel level, std::string_view what, std::vector<LogField> fields) {
  Events::Note note;
  note.level = level;
  note.what = what;
  note.fields = std::move(fields);
  parts_->service.events().note(note);
}

/// What the next process would refuse must not end this one.
Result<void> Node::check_upgrade() const {
  const Parts& parts = *parts_;
  const auto fresh = parts.reread();
  if (!fresh) return fresh.error().at("the configuration is wrong");
  const auto may = check_next(*fresh, parts.config, parts.pool, parts.grants.page_kind());
  if (!may) return may.error();
  return FdStore::settle();
}

void Node::begin_upgrade() {
  parts_->end = End::kUpgrade;
  parts_->pool.start_draining();  // nothing new begins
  ::sd_notify(0, "STATUS=Ending for an upgrade");
  parts_->ticker.expires_after(kLastWordsTime);
  parts_->ticker.async_wait([this](std::error_code canceled) {
    if (canceled) return;
    parts_->server.stop();
    parts_->service.leave_blocks();  // last: each request may change them
    // systemd takes nothing from a process that has ended.
    static_cast<void>(FdStore::settle());
    parts_->io.stop();
  });
}

void Node::await_signal() {
  parts_->signals.async_wait([this](std::error_code error, int signal) {
    if (error) return;
    if (signal == SIGHUP) {
      reload();
    } else {
      begin_end(signal == SIGINT ? End::kInterrupted : End::kStopped);
    }
    await_signal();
  });
}

/// Applies the changed fields that need no restart, and names the others.
void Node::reload() {
  Parts& parts = *parts_;
  if (!parts.serving) return;  // it has just been read
  ::sd_notify(0, "RELOADING=1");
  const auto fresh = parts.reread();
  if (fresh) {
    set_log_level(fresh->log_level);
    parts.drain = fresh->drain;
    parts.staging.set_unused_max(fresh->flash_unused_max);
    if (!parts.membership) parts.service.set_others(fresh->nodes);
    reload_tls(*fresh);
    if (auto access = Access::create(*fresh, nullptr)) {
      parts.service.set_access(std::move(*access));
    } else {
      note_state(LogLevel::kError, "users of the configuration are unknown; access stays as it was",
                 {{"error", access.error().context()}});
    }
    note_state(LogLevel::kInfo, "configuration reloaded", {{"file", fresh->file}});
    for (const std::string& field : changed_fields(parts.config, *fresh)) {
      if (std::find(kReloaded.begin(), kReloaded.end(), field) != kReloaded.end()) continue;
      note_state(LogLevel::kWarning, "a changed field needs a restart", {{"field", field}});
    }
  } else {
    note_state(LogLevel::kError, "the configuration is wrong; nothing was reloaded",
               {{"error", fresh.error().context()}});
  }
  ::sd_notify(0, "READY=1");
}

/// Connections that begin from now on use the files as they are now. Bad ones change nothing.
void Node::reload_tls(const DaemonConfig& fresh) {
  Parts& parts = *parts_;
  if (fresh.tls.has_value() != parts.config.tls.has_value()) {
    return note_state(LogLevel::kWarning, "a changed field needs a restart", {{"field", "tls"}});
  }
  if (!fresh.tls) return;
  auto context = load_tls(fresh);
  if (!context) {
    return note_state(LogLevel::kError, "the certificates are wrong; those read before stay in use",
                      {{"error", context.error().context()}});
  }
  warn_of_certificate(fresh, *context);
  const std::string ends = tls::time_text((*context)->facts().ends);
  note_state(LogLevel::kInfo, "certificates reloaded",
             {{"name", (*context)->own().name}, {"ends", ends}});
  parts.service.set_certificate_ends(ends);
  parts.tls->set(std::move(*context));
}

/// Begins the end; the second time, hastens it.
void Node::begin_end(End how) {
  Parts& parts = *parts_;
  const TimePoint now = parts.clock.now();
  // A stop that comes beside an upgrade is for good: nothing is left to a next process.
  const bool upgrades = std::exchange(parts.end, how) == End::kUpgrade;
  if (parts.pool.draining() && !upgrades) {
    parts.drain_end = now;
  } else {
    note_state(LogLevel::kInfo, "draining",
               {{"sessions", std::to_string(parts.pool.sessions().size())}});
    // The unit's TimeoutStopSec must not cut a long drain short.
    ::sd_notifyf(0, "STOPPING=1\nSTATUS=Draining\nEXTEND_TIMEOUT_USEC=%jd",
                 (parts.drain + 2 * kForcedEndMax) / std::chrono::microseconds(1));
    parts.drain_end = now + parts.drain;
    parts.pool.start_draining(parts.drain_end);
    if (parts.membership) parts.membership->withdraw();
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
  parts.web.reset();
  parts.server.stop();
  parts.io.stop();
}

void Node::tick() {
  // A tick that was already due when an upgrade began still runs. It must free nothing: the next
  // process has the sessions.
  if (parts_->end == End::kUpgrade) return;
  parts_->service.tick();
  parts_->grants.tick();
  if (parts_->pool.draining()) drain_step();
  parts_->ticker.expires_after(parts_->pool.tick_period());
  parts_->ticker.async_wait([this](std::error_code error) {
    if (!error) tick();
  });
}

}  // namespace ho::daemon
