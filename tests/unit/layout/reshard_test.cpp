#include "common/layout/reshard.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "common/base/prng.hpp"

using namespace ho;
using namespace ho::layout;

namespace {

constexpr std::uint64_t kElementBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kUnwritten = UINT64_MAX;

using Buffer = std::vector<std::uint64_t>;

/// Indices in the whole tensor of a box's elements, in the order of its buffer.
std::vector<std::uint64_t> elements_of(const Box& box, const Shape& shape) {
  std::vector<std::uint64_t> found;
  for (std::uint64_t element = 0; element < box.elements(); ++element) {
    std::uint64_t rest = element;
    std::uint64_t index = 0;
    std::uint64_t pitch = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      index += (box.sides[i].begin + rest % box.sides[i].size()) * pitch;
      rest /= box.sides[i].size();
      pitch *= shape[i];
    }
    found.push_back(index);
  }
  return found;
}

/// The term that a position holds, in the order of positions.
std::uint64_t term_of(const Placement& placement, std::size_t position) {
  std::uint64_t term = 0;
  const auto at = placement.mesh.coordinates(position);
  for (const Partial& partial : placement.layout.partials) {
    term = term * placement.mesh.axes[partial.axis].size + at[partial.axis];
  }
  return term;
}

std::uint64_t terms_of(const Placement& placement) {
  std::uint64_t terms = 1;
  for (const Partial& each : placement.layout.partials) {
    terms *= placement.mesh.axes[each.axis].size;
  }
  return terms;
}

/// The value of one term of an element; an element's value is their sum.
std::uint64_t value_of(std::uint64_t element, std::uint64_t term) {
  return 1 + element * 1000 + term * 7;
}

void apply(const Get& get, const Buffer& source, Buffer& destination) {
  REQUIRE(get.run_bytes % kElementBytes == 0);
  for (std::uint64_t run = 0; run < get.count; ++run) {
    const std::uint64_t from = get.source_offset_bytes + run * get.source_stride_bytes;
    const std::uint64_t to = get.destination_offset_bytes + run * get.destination_stride_bytes;
    for (std::uint64_t i = 0; i < get.run_bytes / kElementBytes; ++i) {
      std::uint64_t& each = destination.at(to / kElementBytes + i);
      const std::uint64_t value = source.at(from / kElementBytes + i);
      each = get.combine ? each + value : value;
    }
  }
}

/// By rank: the (element, term) pairs that it holds.
using Held = std::map<std::uint32_t, std::set<std::pair<std::uint64_t, std::uint64_t>>>;

/// The least that the busiest link can carry: what one rank needs, or what a set of holders of the
/// same values has to send, divided among them.
std::uint64_t floor_bytes(const Held& has, const std::vector<Box>& wanted, const Placement& to,
                          const Shape& shape, std::uint64_t terms) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint32_t>> holders;
  for (const auto& [rank, held] : has) {
    for (const auto& each : held) holders[each].push_back(rank);
  }
  std::uint64_t floor = 0;
  std::map<std::vector<std::uint32_t>, std::uint64_t> asked;  // elements, by the set of holders
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto own = has.find(to.mesh.ranks[i]);
    std::uint64_t received = 0;
    for (const std::uint64_t element : elements_of(wanted[i], shape)) {
      for (std::uint64_t term = 0; term < terms; ++term) {
        if (own != has.end() && own->second.count({element, term}) > 0) continue;
        ++received;
        ++asked[holders.at({element, term})];
      }
    }
    floor = std::max(floor, received);
  }
  for (const auto& [set, elements] : asked) {
    floor = std::max(floor, (elements + set.size() - 1) / set.size());
  }
  return floor * kElementBytes;
}

/// Carries the plan out on real buffers and checks it against what it promises, element by element.
void check(const Placement& from, const Placement& to, const Shape& shape,
           std::uint32_t ranks_per_node = 1, bool relays = false) {
  const auto plan = reshard(from, to, shape, {kElementBytes, ranks_per_node, relays});
  REQUIRE(plan);
  const auto held = regions(from.mesh, from.layout, shape);
  const auto wanted = regions(to.mesh, to.layout, shape);
  REQUIRE(held);
  REQUIRE(wanted);

  std::map<std::uint32_t, Buffer> memory;  // by rank
  Held has;
  for (std::size_t i = 0; i < held->size(); ++i) {
    const std::uint64_t term = term_of(from, i);
    for (const std::uint64_t element : elements_of((*held)[i], shape)) {
      memory[from.mesh.ranks[i]].push_back(value_of(element, term));
      has[from.mesh.ranks[i]].insert({element, term});
    }
  }

  std::uint64_t moved = 0;
  std::uint64_t minimal = 0;
  std::map<std::uint32_t, std::uint64_t> sent;
  std::map<std::uint32_t, std::uint64_t> received;
  REQUIRE(plan->readers.size() == wanted->size());
  std::map<std::uint32_t, Buffer> arrived;  // by rank; relays read it when all other gets are done
  for (std::size_t i = 0; i < wanted->size(); ++i) {
    const Reader& reader = plan->readers[i];
    arrived[reader.rank] = Buffer(elements_of((*wanted)[i], shape).size(), kUnwritten);
    for (const Get& get : reader.gets) {
      if (!get.relay) apply(get, memory.at(get.from), arrived[reader.rank]);
    }
  }
  for (std::size_t i = 0; i < wanted->size(); ++i) {
    const Reader& reader = plan->readers[i];
    REQUIRE(reader.rank == to.mesh.ranks[i]);
    const std::vector<std::uint64_t> elements = elements_of((*wanted)[i], shape);
    Buffer buffer = arrived.at(reader.rank);
    std::uint64_t got = 0;
    for (const Get& get : reader.gets) {
      if (get.relay) apply(get, arrived.at(get.from), buffer);
      got += get.bytes();
      if (get.from == reader.rank) continue;
      moved += get.bytes();
      sent[get.from] += get.bytes();
      received[reader.rank] += get.bytes();
    }
    CHECK(got == elements.size() * terms_of(from) * kElementBytes);
    for (std::size_t at = 0; at < elements.size(); ++at) {
      std::uint64_t value = 0;
      for (std::uint64_t term = 0; term < terms_of(from); ++term) {
        value += value_of(elements[at], term);
        if (has[reader.rank].count({elements[at], term}) == 0) minimal += kElementBytes;
      }
      if (buffer[at] != value) FAIL("a wrong value at " << at << " of rank " << reader.rank);
    }
  }
  CHECK(moved == plan->bytes_moved);
  CHECK(minimal == plan->bytes_minimal);
  CHECK(moved == minimal);
  std::uint64_t busiest = 0;
  for (const auto& [rank, bytes] : sent) busiest = std::max(busiest, bytes);
  for (const auto& [rank, bytes] : received) busiest = std::max(busiest, bytes);
  CHECK(busiest == plan->busiest_link_bytes);
  if (relays && ranks_per_node == 1) {
    CHECK(static_cast<double>(busiest) <=
          1.05 * static_cast<double>(plan->busiest_link_floor_bytes));
  } else if (ranks_per_node == 1) {
    const std::uint64_t floor = floor_bytes(has, *wanted, to, shape, terms_of(from));
    CHECK(floor == plan->busiest_link_floor_bytes);
    CHECK(static_cast<double>(busiest) <= 1.05 * static_cast<double>(floor));
  }
}

Placement place(const std::string& mesh, const std::string& layout) {
  auto read = parse_mesh(mesh);
  REQUIRE(read);
  auto divided = parse_layout(layout, *read);
  REQUIRE(divided);
  return {std::move(*read), std::move(*divided)};
}

/// Every way to divide two dimensions by an ordered choice of three axes.
std::vector<std::vector<std::vector<std::uint32_t>>> all_divisions() {
  std::set<std::vector<std::vector<std::uint32_t>>> found;
  std::vector<std::uint32_t> axes{0, 1, 2};
  do {
    for (std::size_t first = 0; first <= 3; ++first) {
      for (std::size_t both = first; both <= 3; ++both) {
        const auto middle = axes.begin() + static_cast<std::ptrdiff_t>(first);
        const auto end = axes.begin() + static_cast<std::ptrdiff_t>(both);
        const std::vector<std::uint32_t> rows(axes.begin(), middle);
        const std::vector<std::uint32_t> columns(middle, end);
        found.insert({rows, columns});
      }
    }
  } while (std::next_permutation(axes.begin(), axes.end()));
  return {found.begin(), found.end()};
}

std::string random_mesh(Prng& random, bool listed) {
  const std::uint64_t a = 1 + random.below(4);
  const std::uint64_t b = 1 + random.below(3);
  std::string text = std::to_string(a) + "x" + std::to_string(b) + ":a,b";
  if (!listed) return text;
  std::vector<std::uint64_t> ranks(16);
  std::iota(ranks.begin(), ranks.end(), std::uint64_t{0});
  for (std::size_t i = 0; i < a * b; ++i) {
    std::swap(ranks[i], ranks[i + random.below(ranks.size() - i)]);
    text += (i == 0 ? "@" : ",") + std::to_string(ranks[i]);
  }
  return text;
}

std::string random_layout(Prng& random, bool may_be_partial) {
  static const std::vector<std::string> kWhole{"-;-", "a;-", "-;a", "b;a", "a,b;-", "-;b,a", "a;b"};
  static const std::vector<std::string> kPartial{"-;-+sum:a", "a;-+sum:b", "-;b+sum:a",
                                                 "-;-+sum:a,b"};
  if (may_be_partial && random.below(3) == 0) return kPartial[random.below(kPartial.size())];
  return kWhole[random.below(kWhole.size())];
}

}  // namespace

TEST_CASE("reshard: all 2401 pairs of layouts of a 2x2x2 mesh are right and minimal") {
  const auto mesh = parse_mesh("2x2x2:a,b,c");
  REQUIRE(mesh);
  const auto divisions = all_divisions();
  REQUIRE(divisions.size() == 49);
  for (const auto& from : divisions) {
    for (const auto& to : divisions) {
      check({*mesh, {from, {}, Division::kCeil}}, {*mesh, {to, {}, Division::kCeil}}, {8, 8});
    }
  }
}

TEST_CASE("reshard: random meshes, rank lists, shapes and partial sums are right and minimal") {
  Prng random(22);
  for (int round = 0; round < 2000; ++round) {
    const std::string mesh_from = random_mesh(random, random.below(2) == 0);
    const std::string mesh_to = random_mesh(random, random.below(2) == 0);
    const std::string from = random_layout(random, true);
    const std::string to = random_layout(random, false);
    const Shape shape{1 + random.below(13), 1 + random.below(13)};
    INFO(mesh_from << " " << from << " -> " << mesh_to << " " << to << " shape " << shape[0] << ","
                   << shape[1]);
    const auto nodes = static_cast<std::uint32_t>(1 + random.below(4));
    check(place(mesh_from, from), place(mesh_to, to), shape, std::max(nodes, 2U));
    check(place(mesh_from, from), place(mesh_to, to), shape, std::max(nodes, 2U), true);
  }
}

TEST_CASE("reshard: readers of the same values relay parts to one another") {
  // One holder, four readers of all of it: a quarter each from the holder, the rest from the
  // others.
  const auto from = place("1:x", "-");
  const auto to = place("4:x@4-7", "-");
  const auto direct = reshard(from, to, {64}, {1, 1});
  REQUIRE(direct);
  CHECK(direct->busiest_link_bytes == 256);
  const auto plan = reshard(from, to, {64}, {1, 1, true});
  REQUIRE(plan);
  CHECK(plan->bytes_moved == 256);
  CHECK(plan->busiest_link_bytes == 64);
  CHECK(plan->busiest_link_floor_bytes == 64);
  for (const Reader& reader : plan->readers) {
    REQUIRE(reader.gets.size() == 4);
    CHECK(reader.gets[0].run_bytes == 16);
    CHECK_FALSE(reader.gets[0].relay);
    CHECK(reader.gets[1].relay);
  }
  // On two nodes each node gets it once.
  const auto by_node = reshard(from, to, {64}, {1, 2, true});
  REQUIRE(by_node);
  for (const Reader& reader : by_node->readers) {
    REQUIRE(reader.gets.size() == 2);
    CHECK(reader.gets[1].from / 2 == reader.rank / 2);
  }
}

TEST_CASE("reshard: with relays all 2401 pairs and others are right, minimal and balanced") {
  const auto mesh = parse_mesh("2x2x2:a,b,c");
  REQUIRE(mesh);
  const auto divisions = all_divisions();
  for (const auto& from : divisions) {
    for (const auto& to : divisions) {
      check({*mesh, {from, {}, Division::kCeil}}, {*mesh, {to, {}, Division::kCeil}}, {8, 8}, 1,
            true);
    }
  }
  check(place("2x2:a,b", "a;-"), place("3x2x2:x,y,z@4-15", "-;y"), {24, 40}, 1, true);
  check(place("2:a", "-;-"), place("5:x@2-6", "-;-"), {20, 60}, 1, true);
  check(place("2x2:p,q@0-3", "q;-"), place("4x2:r,s@4-11", "r;-"), {12, 64}, 1, true);
  check(place("3:a", "-;a"), place("2x2x2:x,y,z@3-10", "x;y"), {48, 60}, 1, true);
}

TEST_CASE("reshard: readers of many small tiles relay equal parts of them") {
  // Each tile has fewer elements than it has readers.
  const auto from = place("16:x", "x");
  const auto to = place("32:y@16-47", "-");
  for (const std::uint64_t size : {std::uint64_t{64}, std::uint64_t{256}}) {
    const auto plan = reshard(from, to, {size}, {4, 1, true});
    REQUIRE(plan);
    CHECK(plan->busiest_link_bytes == 4 * size);  // what a reader needs
    CHECK(plan->busiest_link_floor_bytes == 4 * size);
    for (const Reader& reader : plan->readers) CHECK(reader.gets.size() <= 32);
    check(from, to, {size}, 1, true);
  }
}

TEST_CASE("reshard: relays are left out where the busiest link would not carry less") {
  // One element has one relay, which would send it to seven ranks; two holders send it to four.
  const auto plan = reshard(place("2:x", "-"), place("8:y@2-9", "-"), {1}, {4, 1, true});
  REQUIRE(plan);
  CHECK(plan->busiest_link_bytes == 16);
  for (const Reader& reader : plan->readers) {
    REQUIRE(reader.gets.size() == 1);
    CHECK_FALSE(reader.gets[0].relay);
  }
}

TEST_CASE("reshard: dimensions beyond two are walked whole") {
  check(place("2x2:a,b", "a;-;b"), place("4:x", "-;x;-"), {4, 6, 5});
  check(place("2x2:a,b", "-;a;-;b"), place("3:x@5,1,0", "-;-;x;-"), {3, 4, 5, 2});
}

TEST_CASE("reshard: the runs are as long as both buffers allow") {
  const auto whole = place("1:x", "-;-;-");
  const auto rows = place("2:x@1-2", "x;-;-");
  const auto columns = place("2:x@1-2", "-;-;x");
  const Shape shape{4, 6, 10};
  const auto by_rows = reshard(whole, rows, shape, {4, 1});
  REQUIRE(by_rows);
  REQUIRE(by_rows->readers[1].gets.size() == 1);
  CHECK(by_rows->readers[1].gets[0].run_bytes == 2 * 6 * 10 * 4);
  CHECK(by_rows->readers[1].gets[0].source_offset_bytes == 2 * 6 * 10 * 4);
  const auto by_columns = reshard(whole, columns, shape, {4, 1});
  REQUIRE(by_columns);
  REQUIRE(by_columns->readers[1].gets.size() == 1);  // two loops are one: 24 rows
  const Get& get = by_columns->readers[1].gets[0];
  CHECK(get.run_bytes == 5 * 4);
  CHECK(get.count == 24);
  CHECK(get.source_stride_bytes == 10 * 4);
  CHECK(get.destination_stride_bytes == 5 * 4);
}

TEST_CASE("reshard: replicas of a tile send equal parts") {
  // Two holders, three readers of all of it: each holder sends one and a half.
  const auto plan = reshard(place("2:x", "-"), place("3:x@4-6", "-"), {64}, {1, 1});
  REQUIRE(plan);
  CHECK(plan->busiest_link_bytes == 96);
  CHECK(plan->busiest_link_floor_bytes == 96);
}

TEST_CASE("reshard: a holder on the reader's node is preferred") {
  const auto plan = reshard(place("2:x@0,4", "-"), place("2:y@1,5", "-"), {64}, {1, 4});
  REQUIRE(plan);
  CHECK(plan->readers[0].gets.at(0).from == 0);
  CHECK(plan->readers[1].gets.at(0).from == 4);
}

TEST_CASE("reshard: terms of a partial value are combined in the order of positions") {
  const auto plan = reshard(place("3:x@2,0,1", "-+sum:x"), place("1:y@0", "-"), {8}, {4, 1});
  REQUIRE(plan);
  const std::vector<Get>& gets = plan->readers[0].gets;
  REQUIRE(gets.size() == 3);
  CHECK(gets[0].from == 2);
  CHECK_FALSE(gets[0].combine);
  CHECK(gets[1].from == 0);
  CHECK(gets[1].combine == Reduction::kSum);
  CHECK(gets[2].from == 1);
}

TEST_CASE("reshard: terms are combined in the order of positions, however axes are written") {
  for (const char* const layout : {"-+sum:dp,tp", "-+sum:tp,dp", "-+sum:tp+sum:dp"}) {
    const auto plan = reshard(place("2x2:dp,tp", layout), place("1:y@4", "-"), {8}, {4, 1});
    REQUIRE(plan);
    std::vector<std::uint32_t> order;
    for (const Get& get : plan->readers[0].gets) order.push_back(get.from);
    CHECK(order == std::vector<std::uint32_t>{0, 1, 2, 3});
  }
}

TEST_CASE("reshard: a partial destination and mixed reductions are refused") {
  CHECK_FALSE(reshard(place("2:x", "-"), place("2:x", "-+sum:x"), {8}, {1, 1}));
  CHECK_FALSE(reshard(place("2x2:x,y", "-+sum:x+max:y"), place("4:z", "-"), {8}, {1, 1}));
  CHECK_FALSE(reshard(place("2:x", "x"), place("2:x", "-"), {8}, {0, 1}));
}

TEST_CASE("reshard: a plan of more gets than the limit is refused before it is made") {
  const auto refused = [](const Placement& from, const Placement& to, const Shape& shape,
                          bool relays = false) {
    const auto plan = reshard(from, to, shape, {1, 1, relays});
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code() == Errc::kInvalidArgument);
    return plan.error().context();
  };
  const Shape cube{std::uint64_t{1} << 40U, 8, 8};
  CHECK(refused(place("65536:a", "a"), place("65536:r", "-"), {65536}).find("4294967296 gets") !=
        std::string::npos);
  // From and to each of four ranks, one for each index of the first dimension.
  CHECK(refused(place("4:x", "-;x;-"), place("4:x", "-;-;x"), cube).find("17592186044416 gets") !=
        std::string::npos);
  // Where relays need more, there are none.
  for (const bool relays : {false, true}) {
    const auto plan =
        reshard(place("1:a@65535", "-"), place("4096:r", "-"), {65536}, {1, 1, relays});
    REQUIRE(plan);
    CHECK(plan->readers[0].gets.size() == 1);
  }
}

TEST_CASE("reshard: what all ranks need together is below 2^63 bytes") {
  const Shape largest{std::uint64_t{1} << 50U};
  const auto from = place("1:a@65535", "-");
  const auto plan = reshard(from, place("7:r", "-"), largest, {1024, 1});
  REQUIRE(plan);
  CHECK(plan->bytes_moved == std::uint64_t{7} << 60U);
  for (const char* const readers : {"8:r", "64:r"}) {
    const auto refused = reshard(from, place(readers, "-"), largest, {1024, 1});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::kInvalidArgument);
  }
  // Each term of a partial value is read.
  CHECK_FALSE(reshard(place("8:a@8-15", "-+sum:a"), place("1:r", "-"), largest, {1024, 1}));
}

TEST_CASE("reshard: a tensor without elements needs no gets") {
  for (const bool relays : {false, true}) {
    for (const Shape& shape : {Shape{0, 6}, Shape{6, 0}}) {
      for (const char* const from : {"a;b", "-;-", "-;b+sum:a"}) {
        const auto plan =
            reshard(place("2x2:a,b", from), place("3:x@3-5", "x;-"), shape, {4, 2, relays});
        REQUIRE(plan);
        CHECK(plan->bytes_moved == 0);
        REQUIRE(plan->readers.size() == 3);
        for (const Reader& reader : plan->readers) CHECK(reader.gets.empty());
      }
    }
  }
}
