#include "common/layout/reshard.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/base/check.hpp"
#include "common/layout/senders.hpp"
#include "common/layout/strided.hpp"

namespace ho::layout {

namespace {

/// Positions of the old mesh that hold the same box and the same term: any of them can send it.
struct Group {
  Box box;
  std::vector<std::size_t> positions;
};

/// Maps parts of the tensor to their holders under the old layout. The boxes form a grid: along
/// each dimension the intervals are disjoint and cover it.
class Holders {
 public:
  Holders(const Placement& from, const std::vector<Box>& boxes);

  [[nodiscard]] std::size_t terms() const { return terms_; }
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }
  /// @return nothing if the position's box is empty.
  [[nodiscard]] std::optional<std::size_t> group_of(std::size_t position) const;
  /// How many tiles of the grid `box` meets.
  [[nodiscard]] std::uint64_t count_tiles(const Box& box) const;
  /// Calls visit(tile) for each of them. A tile's groups are tile * terms() + term.
  template <typename Visit>
  void visit_tiles(const Box& box, Visit visit) const;

 private:
  /// Index in sides_[dimension] of the interval that contains an index.
  [[nodiscard]] std::size_t find(std::size_t dimension, std::uint64_t index) const;

  std::vector<std::vector<Interval>> sides_;  ///< by dimension, in order
  std::size_t terms_ = 1;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;  ///< by position; SIZE_MAX: none
};

Holders::Holders(const Placement& from, const std::vector<Box>& boxes)
    : sides_(from.layout.dimensions.size()), group_of_(boxes.size(), SIZE_MAX) {
  std::size_t tiles = 1;
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    std::vector<Interval>& sides = sides_[i];
    for (const Box& box : boxes) {
      if (box.sides[i].size() > 0) sides.push_back(box.sides[i]);
    }
    std::sort(sides.begin(), sides.end(),
              [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    const auto same = [](const Interval& a, const Interval& b) { return a.begin == b.begin; };
    sides.erase(std::unique(sides.begin(), sides.end(), same), sides.end());
    tiles *= sides.size();
  }
  // In the order of the mesh, so that terms have the order of positions.
  std::vector<Partial> partials = from.layout.partials;
  std::sort(partials.begin(), partials.end(),
            [](const Partial& a, const Partial& b) { return a.axis < b.axis; });
  for (const Partial& partial : partials) terms_ *= from.mesh.axes[partial.axis].size;
  groups_.resize(tiles * terms_);
  for (std::size_t position = 0; position < boxes.size(); ++position) {
    if (boxes[position].empty()) continue;
    std::size_t group = 0;
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      group = group * sides_[i].size() + find(i, boxes[position].sides[i].begin);
    }
    const std::vector<std::uint32_t> at = from.mesh.coordinates(position);
    for (const Partial& partial : partials) {
      group = group * from.mesh.axes[partial.axis].size + at[partial.axis];
    }
    group_of_[position] = group;
    groups_[group].box = boxes[position];
    groups_[group].positions.push_back(position);
  }
}

std::optional<std::size_t> Holders::group_of(std::size_t position) const {
  if (group_of_[position] == SIZE_MAX) return std::nullopt;
  return group_of_[position];
}

std::size_t Holders::find(std::size_t dimension, std::uint64_t index) const {
  const std::vector<Interval>& sides = sides_[dimension];
  const auto after = std::upper_bound(
      sides.begin(), sides.end(), index,
      [](std::uint64_t wanted, const Interval& side) { return wanted < side.begin; });
  HO_CHECK(after != sides.begin());
  return static_cast<std::size_t>(after - sides.begin()) - 1;
}

std::uint64_t Holders::count_tiles(const Box& box) const {
  std::uint64_t tiles = 1;
  for (std::size_t i = 0; i < box.dimensions; ++i) {
    tiles *= find(i, box.sides[i].end - 1) - find(i, box.sides[i].begin) + 1;
  }
  return tiles;
}

template <typename Visit>
void Holders::visit_tiles(const Box& box, Visit visit) const {
  std::array<std::size_t, kDimensionsMax> first{};
  std::array<std::size_t, kDimensionsMax> last{};
  for (std::size_t i = 0; i < box.dimensions; ++i) {
    first[i] = find(i, box.sides[i].begin);
    last[i] = find(i, box.sides[i].end - 1);
  }
  std::array<std::size_t, kDimensionsMax> at = first;
  while (true) {
    std::size_t tile = 0;
    for (std::size_t i = 0; i < box.dimensions; ++i) tile = tile * sides_[i].size() + at[i];
    visit(tile);
    std::size_t i = box.dimensions;
    while (i > 0 && at[i - 1] == last[i - 1]) {
      at[i - 1] = first[i - 1];
      --i;
    }
    if (i == 0) return;
    ++at[i - 1];
  }
}

/// Tells apart the boxes that readers want of one group: they are the same or disjoint.
std::vector<std::uint64_t> begins_of(const Box& box) {
  std::vector<std::uint64_t> out;
  for (const Interval& side : box.intervals()) out.push_back(side.begin);
  return out;
}

/// Counts before anything is made, so that no request takes memory without limit.
Result<void> check_gets(std::uint64_t gets) {
  if (gets <= kGetsMax) return {};
  return Error(Errc::kInvalidArgument,
               "the plan has at least " + std::to_string(gets) + " gets, and at most " +
                   std::to_string(kGetsMax) +
                   " are made: use fewer ranks, or divide outer dimensions");
}

/// A box that one reader needs from one group.
struct Demand {
  std::size_t reader = 0;  ///< position in the new mesh
  std::size_t group = 0;
  bool own = false;  ///< the reader is one of the holders
};

enum class Way : std::uint8_t { kDirect, kRelays };

class Planner {
 public:
  Planner(const Placement& from, const Placement& to, const std::vector<Box>& held,
          const std::vector<Box>& wanted, const ReshardOptions& options, Way way)
      : from_(from),
        to_(to),
        wanted_(wanted),
        options_(options),
        way_(way),
        holders_(from, held),
        relayed_(wanted.size()) {}

  Result<Reshard> plan();

 private:
  [[nodiscard]] std::uint64_t count_demands() const;
  void collect_demands();
  Result<void> choose_senders();
  Result<void> choose_senders(const Group& group, const std::vector<std::size_t>& demands);
  [[nodiscard]] std::vector<std::size_t> on_node_of(const Group& group, std::uint32_t rank) const;
  Result<void> relay(const Group& group, const std::vector<std::size_t>& demands);
  [[nodiscard]] std::size_t count_parts(const std::vector<std::size_t>& demands) const;
  void relay_among(std::vector<std::size_t> demands);
  [[nodiscard]] std::uint64_t sent_floor(const Group& group,
                                         const std::vector<std::size_t>& demands) const;
  [[nodiscard]] std::uint64_t busiest_link(const Reshard& plan) const;
  [[nodiscard]] std::uint64_t count_all_gets() const;
  [[nodiscard]] Reshard to_gets();

  const Placement& from_;
  const Placement& to_;
  const std::vector<Box>& wanted_;  ///< by position in the new mesh
  const ReshardOptions& options_;
  Way way_;
  Holders holders_;
  std::vector<Demand> demands_;         ///< by reader, tile, term
  std::vector<Box> boxes_;              ///< by demand; with relays the part that holders send
  std::vector<Piece> pieces_;           ///< `sender` is a position in the old mesh
  std::vector<Piece> relays_;           ///< `sender` is a position in the new mesh
  std::vector<std::uint64_t> relayed_;  ///< by reader: elements that it reads to pass them on
  std::uint64_t relays_counted_ = 0;
  std::uint64_t elements_minimal_ = 0;
  std::uint64_t most_received_ = 0;
  std::uint64_t most_sent_floor_ = 0;
};

std::uint64_t Planner::count_demands() const {
  std::uint64_t demands = 0;
  for (const Box& box : wanted_) {
    if (!box.empty()) demands += holders_.count_tiles(box) * holders_.terms();
  }
  return demands;
}

void Planner::collect_demands() {
  std::unordered_map<std::uint32_t, std::size_t> position_of;
  for (std::size_t i = 0; i < from_.mesh.ranks.size(); ++i) position_of[from_.mesh.ranks[i]] = i;
  for (std::size_t reader = 0; reader < wanted_.size(); ++reader) {
    if (wanted_[reader].empty()) continue;
    const auto own = position_of.find(to_.mesh.ranks[reader]);
    const auto own_group = own == position_of.end() ? std::nullopt : holders_.group_of(own->second);
    std::uint64_t received = 0;
    holders_.visit_tiles(wanted_[reader], [&](std::size_t tile) {
      for (std::size_t term = 0; term < holders_.terms(); ++term) {
        const std::size_t group = tile * holders_.terms() + term;
        const Box box = intersection(wanted_[reader], holders_.groups()[group].box);
        demands_.push_back({reader, group, own_group == group});
        boxes_.push_back(box);
        if (own_group == group) {
          pieces_.push_back({box, demands_.size() - 1, own->second});
        } else {
          received += box.elements();
          elements_minimal_ += box.elements();
        }
      }
    });
    most_received_ = std::max(most_received_, received);
  }
}

std::vector<std::size_t> Planner::on_node_of(const Group& group, std::uint32_t rank) const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < group.positions.size(); ++i) {
    const std::uint32_t holder = from_.mesh.ranks[group.positions[i]];
    if (holder / options_.ranks_per_node == rank / options_.ranks_per_node) found.push_back(i);
  }
  return found;
}

/// The least that one rank has to send if holders of a group, and with relays its readers, send
/// equal parts.
std::uint64_t Planner::sent_floor(const Group& group,
                                  const std::vector<std::size_t>& demands) const {
  const auto part = [](std::uint64_t elements, std::size_t ranks) {
    return (elements + ranks - 1) / ranks;
  };
  std::uint64_t all = 0;
  for (const std::size_t demand : demands) all += boxes_[demand].elements();
  const std::size_t holders = group.positions.size();
  if (!options_.relays || holders_.terms() > 1) return part(all, holders);
  std::uint64_t once = 0;
  std::set<std::vector<std::uint64_t>> seen;
  for (const std::size_t demand : demands) {
    if (seen.insert(begins_of(boxes_[demand])).second) once += boxes_[demand].elements();
  }
  return std::max(part(once, holders), part(all, holders + demands.size()));
}

/// In how many parts readers of one box share it. A reader meets so many groups; together these
/// have the fewest parts of which each reader relays equally many, as each part is a get of every
/// reader.
std::size_t Planner::count_parts(const std::vector<std::size_t>& demands) const {
  const std::uint64_t groups = holders_.count_tiles(wanted_[demands_[demands.front()].reader]);
  return demands.size() / std::gcd(demands.size(), groups);
}

/// Readers of one box share it: afterwards those that relay least so far demand a part of it from
/// the holders, and all get the rest from one another.
void Planner::relay_among(std::vector<std::size_t> demands) {
  std::stable_sort(demands.begin(), demands.end(), [&](std::size_t a, std::size_t b) {
    return relayed_[demands_[a].reader] < relayed_[demands_[b].reader];
  });
  const std::vector<Box> parts = split(boxes_[demands.front()], count_parts(demands));
  for (std::size_t i = 0; i < demands.size(); ++i) {
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (k != i) relays_.push_back({parts[k], demands[i], demands_[demands[k]].reader});
    }
    Box& asked = boxes_[demands[i]];
    if (i < parts.size()) {
      asked = parts[i];
      relayed_[demands_[demands[i]].reader] += asked.elements();
    } else {  // it gets all of it from the others
      asked.sides[0].end = asked.sides[0].begin;
    }
  }
}

Result<void> Planner::relay(const Group& group, const std::vector<std::size_t>& demands) {
  std::uint64_t all = 0;
  for (const std::size_t demand : demands) all += boxes_[demand].elements();
  // Where holders send no more than some reader receives anyway, relays would only cut boxes.
  const std::size_t holders = group.positions.size();
  if ((all + holders - 1) / holders <= most_received_) return {};
  std::map<std::pair<std::vector<std::uint64_t>, std::uint32_t>, std::vector<std::size_t>> sharing;
  for (const std::size_t demand : demands) {
    const std::uint32_t rank = to_.mesh.ranks[demands_[demand].reader];
    const bool by_node = options_.ranks_per_node > 1;
    if (by_node && !on_node_of(group, rank).empty()) continue;  // it has a near holder
    sharing[{begins_of(boxes_[demand]), by_node ? rank / options_.ranks_per_node : 0}].push_back(
        demand);
  }
  for (const auto& [box, readers] : sharing) {
    if (readers.size() < 2) continue;
    const std::uint64_t elements = boxes_[readers.front()].elements();
    relays_counted_ += readers.size() * std::min<std::uint64_t>(count_parts(readers), elements);
    if (auto ok = check_gets(relays_counted_); !ok) return ok;
    relay_among(readers);
  }
  return {};
}

Result<void> Planner::choose_senders(const Group& group,
                                     const std::vector<std::size_t>& all_demands) {
  most_sent_floor_ = std::max(most_sent_floor_, sent_floor(group, all_demands));
  if (way_ == Way::kRelays && holders_.terms() == 1) {
    if (auto ok = relay(group, all_demands); !ok) return ok;
  }
  std::vector<std::size_t> demands;
  for (const std::size_t demand : all_demands) {
    if (!boxes_[demand].empty()) demands.push_back(demand);
  }
  Senders senders(group.positions.size());
  const std::size_t first = pieces_.size();
  std::vector<std::size_t> all(group.positions.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  std::vector<std::size_t> elsewhere;
  for (const std::size_t demand : demands) {
    std::vector<std::size_t> near;
    if (options_.ranks_per_node > 1)
      near = on_node_of(group, to_.mesh.ranks[demands_[demand].reader]);
    if (near.empty()) {
      elsewhere.push_back(demand);
    } else {
      senders.assign({&demand, 1}, boxes_, near, most_received_, pieces_);
    }
  }
  senders.assign(elsewhere, boxes_, all, most_received_, pieces_);
  for (std::size_t i = first; i < pieces_.size(); ++i) {
    pieces_[i].sender = group.positions[pieces_[i].sender];
  }
  return {};
}

Result<void> Planner::choose_senders() {
  std::vector<std::vector<std::size_t>> of_group(holders_.groups().size());
  for (std::size_t i = 0; i < demands_.size(); ++i) {
    if (!demands_[i].own) of_group[demands_[i].group].push_back(i);
  }
  for (std::size_t i = 0; i < of_group.size(); ++i) {
    if (of_group[i].empty()) continue;
    if (auto ok = choose_senders(holders_.groups()[i], of_group[i]); !ok) return ok;
  }
  // By demand: the order of readers, and for each element that of the terms.
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.demand < b.demand; });
  return {};
}

std::uint64_t Planner::count_all_gets() const {
  std::uint64_t gets = 0;
  for (const Piece& piece : pieces_) {
    const Demand& demand = demands_[piece.demand];
    gets += count_gets(holders_.groups()[demand.group].box, wanted_[demand.reader], piece.box);
  }
  for (const Piece& piece : relays_) {
    gets += count_gets(wanted_[piece.sender], wanted_[demands_[piece.demand].reader], piece.box);
  }
  return gets;
}

Reshard Planner::to_gets() {
  Reshard out;
  out.readers.resize(wanted_.size());
  for (std::size_t i = 0; i < wanted_.size(); ++i) out.readers[i].rank = to_.mesh.ranks[i];
  for (const Piece& piece : pieces_) {
    const Demand& demand = demands_[piece.demand];
    Get like;
    like.from = from_.mesh.ranks[piece.sender];
    if (demand.group % holders_.terms() > 0) like.combine = from_.layout.partials.front().how;
    append_gets(holders_.groups()[demand.group].box, wanted_[demand.reader], piece.box,
                options_.element_bytes, like, out.readers[demand.reader].gets);
    if (!demand.own) out.bytes_moved += piece.box.elements() * options_.element_bytes;
  }
  for (const Piece& piece : relays_) {
    const std::size_t reader = demands_[piece.demand].reader;
    Get like;
    like.from = to_.mesh.ranks[piece.sender];
    like.relay = true;
    append_gets(wanted_[piece.sender], wanted_[reader], piece.box, options_.element_bytes, like,
                out.readers[reader].gets);
    out.bytes_moved += piece.box.elements() * options_.element_bytes;
  }
  out.bytes_minimal = elements_minimal_ * options_.element_bytes;
  out.busiest_link_bytes = busiest_link(out);
  out.busiest_link_floor_bytes =
      std::max(most_sent_floor_, most_received_) * options_.element_bytes;
  return out;
}

std::uint64_t Planner::busiest_link(const Reshard& plan) const {
  std::unordered_map<std::uint32_t, std::uint64_t> sent;
  for (const Reader& reader : plan.readers) {
    for (const Get& get : reader.gets) {
      if (get.from != reader.rank) sent[get.from] += get.bytes();
    }
  }
  std::uint64_t most = most_received_ * options_.element_bytes;
  for (const auto& [rank, bytes] : sent) most = std::max(most, bytes);
  return most;
}

Result<Reshard> Planner::plan() {
  if (auto ok = check_gets(count_demands()); !ok) return ok.error();
  collect_demands();
  if (auto ok = choose_senders(); !ok) return ok.error();
  if (auto ok = check_gets(count_all_gets()); !ok) return ok.error();
  return to_gets();
}

/// What all readers together need bounds every sum of a plan.
Result<void> check_total(const Placement& from, const std::vector<Box>& wanted,
                         std::uint64_t element_bytes) {
  constexpr std::uint64_t kBytesMax = (std::uint64_t{1} << 63U) - 1;
  std::uint64_t each = element_bytes;  // bytes of an element, in all its terms
  for (const Partial& partial : from.layout.partials) each *= from.mesh.axes[partial.axis].size;
  std::uint64_t left = kBytesMax / each;
  for (const Box& box : wanted) {
    if (box.elements() > left) {
      return Error(Errc::kInvalidArgument, "all ranks together need 2^63 bytes and more");
    }
    left -= box.elements();
  }
  return {};
}

bool has_mixed_reductions(const Layout& layout) {
  return std::any_of(layout.partials.begin(), layout.partials.end(),
                     [&](const Partial& each) { return each.how != layout.partials.front().how; });
}

}  // namespace

Result<Reshard> reshard(const Placement& from, const Placement& to, const Shape& shape,
                        const ReshardOptions& options) {
  if (options.element_bytes == 0 || options.element_bytes > 1024) {
    return Error(Errc::kInvalidArgument, "an element has 1 to 1024 bytes");
  }
  if (options.ranks_per_node == 0) {
    return Error(Errc::kInvalidArgument, "a node has at least one rank");
  }
  if (!to.layout.partials.empty()) {
    return Error(Errc::kInvalidArgument,
                 "the new layout is partial: a value can be made whole, not divided into terms");
  }
  if (has_mixed_reductions(from.layout)) {
    return Error(Errc::kInvalidArgument,
                 "the old layout mixes reductions; make it whole along one axis at a time");
  }
  auto held = regions(from.mesh, from.layout, shape);
  if (!held) return held.error().at("the old layout");
  auto wanted = regions(to.mesh, to.layout, shape);
  if (!wanted) return wanted.error().at("the new layout");
  if (auto ok = check_total(from, *wanted, options.element_bytes); !ok) return ok.error();
  auto direct = Planner(from, to, *held, *wanted, options, Way::kDirect).plan();
  if (!options.relays) return direct;
  auto relayed = Planner(from, to, *held, *wanted, options, Way::kRelays).plan();
  if (!relayed) return direct;
  // Relays cost gets, and steps that wait for one another.
  const bool better = !direct || relayed->busiest_link_bytes < direct->busiest_link_bytes;
  return better ? relayed : direct;
}

}  // namespace ho::layout
