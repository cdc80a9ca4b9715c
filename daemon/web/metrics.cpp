#include "daemon/web/metrics.hpp"

#include <malloc.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/counters.hpp"

namespace ho::daemon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

double number(std::uint64_t value) { return static_cast<double>(value); }
double number(bool value) { return value ? 1 : 0; }

ClientMetric::Histogram histogram_of(const DurationHistogram& from) {
  ClientMetric::Histogram out;
  for (std::size_t i = 0; i <= DurationHistogram::kBoundsUs.size(); ++i) {
    out.sample_count += from.count(i);
    if (i == DurationHistogram::kBoundsUs.size()) break;
    out.bucket.push_back(
        {out.sample_count, static_cast<double>(DurationHistogram::kBoundsUs[i]) / 1e6});
  }
  // The serializer adds the last bucket, of all.
  out.sample_sum = static_cast<double>(from.sum_ns()) * 1e-9;
  return out;
}

/// Families in the order in which they are begun.
class Page {
 public:
  Page& gauge(std::string_view name, std::string_view help) {
    return begin(name, help, MetricType::Gauge);
  }
  Page& counter(std::string_view name, std::string_view help) {
    return begin(name, help, MetricType::Counter);
  }
  Page& histogram(std::string_view name, std::string_view help) {
    return begin(name, help, MetricType::Histogram);
  }

  Page& add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        value;
    families_.back().metric.push_back(std::move(metric));
    return *this;
  }
  Page& add(double value) { return add({}, value); }
  Page& add(Labels labels, const DurationHistogram& durations) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram = histogram_of(durations);
    families_.back().metric.push_back(std::move(metric));
    return *this;
  }

  [[nodiscard]] std::string text() const {
    return prometheus::TextSerializer().Serialize(families_);
  }

 private:
  Page& begin(std::string_view name, std::string_view help, MetricType type) {
    MetricFamily family;
    family.name = "hyperoffload_" + std::string(name);
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
    return *this;
  }

  std::vector<MetricFamily> families_;
};

void add_node(const NodeFigures& figures, Page& page) {
  const NodeStatus& status = figures.status;
  page.gauge("build_info", "The daemon's version, as a label; always 1")
      .add({{"version", status.version}, {"node", status.node_name}}, 1);
  page.gauge("uptime_seconds", "Time since the daemon's start")
      .add(number(status.uptime_ms) / 1000);
  const struct mallinfo2 heap = ::mallinfo2();
  page.gauge("heap_bytes", "Bytes of the daemon's own objects, without the pool's memory")
      .add(number(std::uint64_t{heap.uordblks} + std::uint64_t{heap.hblkhd}));
  page.gauge("draining", "1 while the daemon gives nothing out: it ends, or it is drained")
      .add(number(status.draining));
  page.gauge("insecure", "1 where the configuration allows networks without TLS")
      .add(number(status.insecure));
  page.gauge("membership_nodes", "Nodes that this daemon lists, with itself")
      .add({{"kind", status.membership.kind}}, number(std::uint64_t{status.membership.members}));
  page.gauge("membership_trouble", "1 while etcd cannot be used, or does not list this node")
      .add(number(!status.membership.trouble.empty()));
  if (figures.certificate_ends) {
    page.gauge("certificate_expiry_timestamp_seconds", "When the daemon's certificate ends")
        .add(std::chrono::duration<double>(figures.certificate_ends->time_since_epoch()).count());
  }
  page.counter("tls_failures_total", "Connections that ended before TLS was established");
  std::uint64_t tcp_failures = 0;
  page.add({{"listener", "control"}}, number(figures.activity.tls_failures));
  for (const Refusal& one : status.refusals) {
    if (one.cause == "tcp: TLS handshake") tcp_failures = one.count;
  }
  page.add({{"listener", "tcp"}}, number(tcp_failures));
}

void add_tiers(const NodeFigures& figures, Page& page) {
  const NodeStatus& status = figures.status;
  std::uint64_t capacity = 0;
  std::uint64_t free = 0;
  for (const FlashPathStatus& path : status.flash) {
    capacity += path.capacity_bytes;
    free += path.free_bytes;
  }
  page.gauge("tier_capacity_bytes", "Bytes that a tier of this node has")
      .add({{"tier", "ddr"}}, number(status.ddr_capacity_bytes));
  if (!status.flash.empty()) page.add({{"tier", "flash"}}, number(capacity));
  page.gauge("tier_used_bytes", "Bytes of a tier that are granted, or not free again yet")
      .add({{"tier", "ddr"}}, number(status.ddr_granted_bytes));
  if (!status.flash.empty()) page.add({{"tier", "flash"}}, number(capacity - free));
  if (!status.numa.empty()) {
    page.gauge("numa_capacity_bytes", "Bytes of DDR that a NUMA node of the machine provides");
    for (const NumaStatus& one : status.numa) {
      page.add({{"numa_node", std::to_string(one.node.value())}}, number(one.capacity_bytes));
    }
    page.gauge("numa_used_bytes", "Bytes of DDR that are granted of a NUMA node's");
    for (const NumaStatus& one : status.numa) {
      page.add({{"numa_node", std::to_string(one.node.value())}}, number(one.granted_bytes));
    }
  }
  page.gauge("segments", "Segments of DDR by state")
      .add({{"state", "preparing"}}, number(figures.segments_preparing))
      .add({{"state", "live"}}, number(figures.segments_live))
      .add({{"state", "ending"}}, number(figures.segments_ending));
}

void add_flash(const NodeFigures& figures, Page& page) {
  const NodeStatus& status = figures.status;
  page.gauge("flash_off", "1 where flash is configured and unavailable")
      .add(number(!status.flash_off.empty()));
  if (status.flash.empty()) return;
  const auto each = [&](const auto& value) {
    for (const FlashPathStatus& path : status.flash) {
      page.add({{"path", path.path}}, number(value(path)));
    }
  };
  page.gauge("flash_extents", "Extents on flash").add(number(figures.flash_extents));
  page.counter("flash_written_bytes_total", "Bytes written to a flash path since it was formatted");
  each([](const FlashPathStatus& path) { return path.written_total_bytes; });
  page.gauge("flash_written_today_bytes", "Bytes written to a flash path since midnight UTC");
  each([](const FlashPathStatus& path) { return path.written_today_bytes; });
  page.gauge("flash_write_budget_bytes", "Bytes a day that may be written to a path; 0: no limit");
  each([](const FlashPathStatus& path) { return path.write_bytes_per_day_max; });
  page.gauge("flash_read_only", "1 after an I/O error, until the daemon's next start");
  each([](const FlashPathStatus& path) { return path.read_only; });
}

void add_blocks(const NodeFigures& figures, Page& page) {
  if (!figures.blocks) return;
  const BlockFigures& blocks = *figures.blocks;
  page.gauge("blocks", "KV blocks that are stored").add(number(blocks.blocks));
  page.gauge("blocks_bytes", "Bytes of KV blocks in a tier; a block may be in both")
      .add({{"tier", "ddr"}}, number(blocks.ddr_bytes))
      .add({{"tier", "flash"}}, number(blocks.flash_bytes));
  page.counter("blocks_looked_up_total", "KV blocks that jobs asked for, by where they were")
      .add({{"found", "ddr"}}, number(blocks.hits - blocks.flash_hits))
      .add({{"found", "flash"}}, number(blocks.flash_hits))
      .add({{"found", "nowhere"}}, number(blocks.misses));
  page.counter("blocks_stored_total", "KV blocks stored").add(number(blocks.puts));
  page.counter("blocks_evicted_total", "KV blocks evicted").add(number(blocks.evictions));
}

void add_requests(const NodeFigures& figures, Page& page) {
  const Activity& activity = figures.activity;
  page.gauge("sessions", "Open sessions").add(number(std::uint64_t{figures.status.sessions}));
  page.counter("sessions_opened_total", "Sessions opened").add(number(activity.sessions_opened));
  page.counter("sessions_ended_total", "Sessions that ended, by reason")
      .add({{"reason", "closed"}}, number(activity.sessions_closed))
      .add({{"reason", "lapsed"}}, number(activity.sessions_lapsed))
      .add({{"reason", "evicted"}}, number(activity.sessions_evicted));
  page.counter("lease_renewals_total", "Leases renewed").add(number(activity.lease_renewals));
  page.counter("grants_total", "Grants of DDR").add(number(activity.grants));
  page.counter("granted_bytes_total", "Bytes of DDR granted").add(number(activity.granted_bytes));
  page.counter("requests_total", "Requests over control connections");
  for (const auto& [request, count] : activity.requests) {
    page.add({{"request", request}}, number(count));
  }
  page.counter("request_errors_total", "Requests answered with an error, by its code");
  for (const auto& [which, count] : activity.errors) {
    page.add({{"request", which.first}, {"code", which.second}}, number(count));
  }
  page.counter("refusals_total", "Wrong or forbidden requests and accesses, by cause");
  for (const Refusal& one : figures.status.refusals) {
    page.add({{"cause", one.cause}}, number(one.count));
  }
  page.gauge("queue_requests", "Requests that wait for a thread or are under way there")
      .add({{"queue", "data"}}, number(figures.data_requests))
      .add({{"queue", "flash"}}, number(figures.flash_requests));
  page.gauge("control_connections", "Control connections that are served")
      .add(number(figures.control_connections));
}

void add_operations(const NodeFigures& figures, Page& page) {
  struct Served {
    Labels labels;
    const transport::TrafficWay& way;
  };
  std::vector<Served> all;
  const auto add = [&](const char* driver, const char* tier, const transport::Traffic& traffic) {
    const Labels labels{{"driver", driver}, {"tier", tier}};
    for (const bool get : {true, false}) {
      Labels own = labels;
      own.push_back({"direction", get ? "get" : "put"});
      all.push_back({std::move(own), get ? traffic.get : traffic.put});
    }
  };
  if (figures.tcp != nullptr) add("tcp", "ddr", *figures.tcp);
  if (!figures.status.flash.empty()) add("flash", "flash", figures.stages);
  if (all.empty()) return;
  page.counter("operations_total", "Operations that this daemon served, with those that failed");
  for (const Served& one : all) page.add(one.labels, number(one.way.ops.value()));
  page.counter("operation_bytes_total", "Bytes that these operations moved");
  for (const Served& one : all) page.add(one.labels, number(one.way.bytes.value()));
  page.counter("operation_errors_total", "Operations that failed or were refused");
  for (const Served& one : all) page.add(one.labels, number(one.way.errors.value()));
  page.histogram("operation_duration_seconds", "From a request to its answer, in this daemon");
  for (const Served& one : all) page.add(one.labels, one.way.latency);
}

/// What users moved over links that they share, as far as everybody may see them.
void add_users(const NodeFigures& figures, Page& page) {
  if (figures.tcp == nullptr || figures.status.users.empty()) return;
  page.counter("user_link_bytes_total", "Bytes that a user's sessions moved over tcp");
  for (const UserStatus& user : figures.status.users) {
    page.add({{"user", user.owner}, {"direction", "in"}}, number(user.link_in_bytes));
    page.add({{"user", user.owner}, {"direction", "out"}}, number(user.link_out_bytes));
  }
  page.counter("user_link_wait_seconds_total", "Time that these transfers waited for their turn");
  for (const UserStatus& user : figures.status.users) {
    page.add({{"user", user.owner}}, number(user.link_waited_ms) * 1e-3);
  }
}

/// Shows the oldest sessions; figures of steps for those that have reported some.
void add_sessions(const NodeFigures& figures, Page& page) {
  const std::size_t count = std::min(figures.sessions.size(), kSessionsShown);
  const auto shown = std::span(figures.sessions).first(count);
  const auto labels_of = [](const SessionInfo& one) {
    return Labels{{"session", std::to_string(one.id.value())}, {"name", one.name}};
  };
  page.gauge("session_granted_bytes", "Bytes of DDR that a session holds");
  for (const SessionInfo& one : shown) page.add(labels_of(one), number(one.granted_bytes));
  const auto each = [&](const auto& value) {
    for (const SessionInfo& one : shown) {
      if (one.progress.any()) page.add(labels_of(one), value(one.progress));
    }
  };
  const auto seconds = [](std::uint64_t ns) { return number(ns) * 1e-9; };
  page.counter("session_steps_total", "Steps of a session's plans, as its job says");
  each([](const JobProgress& job) { return number(job.steps); });
  page.counter("session_step_stall_seconds_total", "Time that these steps waited for transfers");
  each([&](const JobProgress& job) { return seconds(job.stall_ns); });
  page.gauge("session_last_step_seconds", "Duration of the last step");
  each([&](const JobProgress& job) {
    return job.last.empty() ? 0.0 : seconds(job.last.back().duration_ns);
  });
  page.gauge("session_predicted_step_seconds", "Duration of a step by the plan");
  each([&](const JobProgress& job) { return seconds(job.predicted_step_ns); });
  page.gauge("session_copies_missing", "Values that should have two homes and have one now");
  each([](const JobProgress& job) { return number(job.copies_missing); });
  page.counter("session_moved_bytes_total", "Bytes moved during steps, as the job says");
  for (const SessionInfo& one : shown) {
    if (!one.progress.any()) continue;
    const auto add = [&](const char* kind, std::uint64_t bytes) {
      Labels labels = labels_of(one);
      labels.push_back({"class", kind});
      page.add(std::move(labels), number(bytes));
    };
    add("prefetch", one.progress.prefetch_bytes);
    add("store", one.progress.store_bytes);
    add("stage_in", one.progress.stage_in_bytes);
    add("stage_out", one.progress.stage_out_bytes);
  }
}

}  // namespace

std::string metrics_text(const NodeFigures& figures) {
  Page page;
  add_node(figures, page);
  add_tiers(figures, page);
  add_flash(figures, page);
  add_blocks(figures, page);
  add_requests(figures, page);
  add_operations(figures, page);
  add_users(figures, page);
  add_sessions(figures, page);
  return page.text();
}

}  // namespace ho::daemon
