#include "tools/analyzer/programs/object_rates.hpp"

#include <algorithm>
#include <cmath>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::analyzer {

namespace {

std::uint64_t rounded_up(double value) {
  return value < 0x1p63 ? static_cast<std::uint64_t>(std::ceil(value)) : UINT64_MAX;
}

/// The links' names of the tier from which a rank reads what others publish.
const std::vector<std::string>& read_path(const Hardware& hardware, std::uint32_t rank) {
  const RankPath& path = path_of(hardware, rank);
  return hardware.remote_ddr ? path.remote_ddr : path.local_ddr;
}

const Link& read_link(const Hardware& hardware) {
  return hardware.remote_ddr ? hardware.remote_ddr->read : hardware.local_ddr->read;
}

std::uint64_t publish_ns(const ObjectEdge& edge, const Hardware& hardware) {
  std::uint64_t slowest_ns = 0;
  const Link& write = hardware.local_ddr->write;
  for (const RankBytes& one : edge.publishers) {
    if (one.bytes == 0) continue;
    slowest_ns = std::max(slowest_ns, write.latency_ns + time_ns(one.bytes, write.bytes_per_s));
  }
  for (const SharedLink& link : hardware.links) {
    std::uint64_t bytes = 0;
    for (const RankBytes& one : edge.publishers) {
      if (names(path_of(hardware, one.rank).local_ddr, link)) bytes = sum_of(bytes, one.bytes);
    }
    slowest_ns = std::max(slowest_ns, time_ns(bytes, link.write_bytes_per_s));
  }
  return slowest_ns;
}

}  // namespace

std::uint64_t time_ns(std::uint64_t bytes, std::uint64_t bytes_per_s) {
  return rounded_up(static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s));
}

std::uint64_t rate_of(std::uint64_t bytes, std::uint64_t ns) {
  return rounded_up(static_cast<double>(bytes) * 1e9 / static_cast<double>(ns));
}

std::variant<ObjectRates, Impossible> rates_of(const ObjectEdge& edge, const ObjectTimes& times,
                                               const Hardware& hardware) {
  HO_CHECK(times.shortest_interval_ns > 0 && hardware.local_ddr);
  HO_CHECK(times.shortest_interval_ns <= times.longest_interval_ns);
  const auto no = [&](const std::string& why) { return Impossible{edge.object + ": " + why}; };
  const std::uint64_t interval_ns = times.shortest_interval_ns;
  ObjectRates out;
  out.interval_ns = times.longest_interval_ns;
  out.publish_ns = publish_ns(edge, hardware);
  if (out.publish_ns >= interval_ns) {
    return no("to publish a version takes " + format_duration_ns(out.publish_ns) +
              ", and the next one comes after " + format_duration_ns(interval_ns));
  }
  if (edge.versions < 2) {
    return no("with one version kept, publishers wait for readers; set versions to 2 or more");
  }
  // A version may be found until the next one is there, and is held until it has been read.
  const std::uint64_t held_max_ns = (edge.versions - 1) * interval_ns - out.publish_ns;
  // A reader that reads no longer than from look to look has always read when it looks again.
  const std::uint64_t look_ns = times.look_ns;
  const std::uint64_t keeps_up_ns =
      look_ns < interval_ns ? std::max(interval_ns - look_ns, look_ns) : look_ns;
  std::uint64_t read_max_ns = std::min(held_max_ns, keeps_up_ns);
  const std::uint64_t before_ns = times.longest_interval_ns + out.publish_ns + look_ns;
  if (edge.largest_age_ns > 0) {
    if (edge.largest_age_ns <= before_ns) {
      return no("versions are up to " + format_duration_ns(before_ns) +
                " old before they are read, and largest_staleness is " +
                format_duration_ns(edge.largest_age_ns) +
                "; publish more often, or look more often");
    }
    read_max_ns = std::min(read_max_ns, edge.largest_age_ns - before_ns);
  }
  const Link& read = read_link(hardware);
  for (const RankBytes& one : edge.readers) {
    if (one.bytes == 0) {
      out.reader_bytes_per_s.push_back(0);
      continue;
    }
    if (read_max_ns <= read.latency_ns) return no("there is no time to read it");
    const std::uint64_t needed =
        std::max(rate_of(one.bytes, read_max_ns - read.latency_ns), edge.least_bytes_per_s);
    if (needed > read.bytes_per_s) {
      return no("rank " + std::to_string(one.rank) + " has to read it at " +
                format_rate(static_cast<double>(needed), "B/s") + ", and can at " +
                format_rate(static_cast<double>(read.bytes_per_s), "B/s"));
    }
    out.reader_bytes_per_s.push_back(needed);
    out.read_ns = std::max(out.read_ns, read.latency_ns + time_ns(one.bytes, needed));
  }
  out.age_ns = before_ns + out.read_ns;
  return out;
}

std::vector<LinkShare> link_use(const ObjectEdge& edge, const ObjectTimes& times,
                                const ObjectRates& rates, const Hardware& hardware) {
  std::vector<LinkShare> out(hardware.links.size());
  for (std::size_t l = 0; l < out.size(); ++l) {
    const SharedLink& link = hardware.links[l];
    for (std::size_t i = 0; i < edge.readers.size(); ++i) {
      if (names(read_path(hardware, edge.readers[i].rank), link)) {
        out[l].read_bytes_per_s = sum_of(out[l].read_bytes_per_s, rates.reader_bytes_per_s[i]);
      }
    }
    for (const RankBytes& one : edge.publishers) {
      if (one.bytes > 0 && names(path_of(hardware, one.rank).local_ddr, link)) {
        out[l].write_bytes_per_s =
            sum_of(out[l].write_bytes_per_s, rate_of(one.bytes, times.shortest_interval_ns));
      }
    }
  }
  return out;
}

}  // namespace ho::analyzer
