#include "common/layout/senders.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::layout {

namespace {

/// A share may be missed by this part of it before a box is cut: each cut costs a get.
constexpr std::uint64_t kSlackDivisor = 64;

std::uint64_t distance(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : b - a; }

/// Cuts off about `wanted` elements, along the outermost dimension that comes close, so that runs
/// stay long. Leaves the rest in `box`. @pre box has more than one element.
Box cut(Box& box, std::uint64_t wanted) {
  std::size_t best = 0;
  std::uint64_t best_count = 0;
  std::uint64_t best_error = UINT64_MAX;
  const std::uint64_t elements = box.elements();
  for (std::size_t i = 0; i < box.dimensions; ++i) {
    const std::uint64_t extent = box.sides[i].size();
    if (extent == 1) continue;
    const std::uint64_t slice = elements / extent;
    const std::uint64_t count =
        std::clamp<std::uint64_t>((wanted + slice / 2) / slice, 1, extent - 1);
    const std::uint64_t error = distance(count * slice, wanted);
    if (error >= best_error) continue;
    best = i;
    best_count = count;
    best_error = error;
    if (error <= wanted / kSlackDivisor) break;
  }
  HO_CHECK(best_count > 0);
  Box head = box;
  head.sides[best].end = head.sides[best].begin + best_count;
  box.sides[best].begin = head.sides[best].end;
  return head;
}

}  // namespace

std::vector<Box> split(Box box, std::size_t parts) {
  HO_CHECK(parts > 0 && !box.empty());
  std::vector<Box> out;
  for (std::size_t left = parts; left > 1 && box.elements() > 1; --left) {
    out.push_back(cut(box, std::max<std::uint64_t>(box.elements() / left, 1)));
  }
  out.push_back(box);
  return out;
}

bool Senders::assign_whole(std::span<const std::size_t> demands, std::span<const Box> boxes,
                           std::span<const std::size_t> allowed, std::uint64_t limit,
                           std::vector<Piece>& out) {
  for (const std::size_t demand : demands) {
    const std::size_t sender =
        *std::min_element(allowed.begin(), allowed.end(),
                          [&](std::size_t a, std::size_t b) { return sent_[a] < sent_[b]; });
    sent_[sender] += boxes[demand].elements();
    if (sent_[sender] > limit) return false;
    out.push_back({boxes[demand], demand, sender});
  }
  return true;
}

void Senders::assign_parts(std::span<const std::size_t> demands, std::span<const Box> boxes,
                           std::span<const std::size_t> allowed, std::uint64_t share,
                           std::vector<Piece>& out) {
  const std::uint64_t slack = share / kSlackDivisor;
  std::size_t at = 0;
  for (const std::size_t demand : demands) {
    Box rest = boxes[demand];
    while (true) {
      const std::size_t sender = allowed[at];
      const bool last = at + 1 == allowed.size();
      const std::uint64_t room = share - std::min(share, sent_[sender]);
      if (!last && (room == 0 || room < slack)) {
        ++at;
        continue;
      }
      const std::uint64_t elements = rest.elements();
      const bool whole = last || elements <= room + slack || elements == 1;
      const Box taken = whole ? rest : cut(rest, room);
      sent_[sender] += taken.elements();
      out.push_back({taken, demand, sender});
      if (whole) break;
      ++at;
    }
  }
}

void Senders::assign(std::span<const std::size_t> demands, std::span<const Box> boxes,
                     std::span<const std::size_t> allowed, std::uint64_t floor,
                     std::vector<Piece>& out) {
  HO_CHECK(!allowed.empty());
  std::uint64_t total = 0;
  for (const std::size_t demand : demands) total += boxes[demand].elements();
  for (const std::size_t holder : allowed) total += sent_[holder];
  const std::uint64_t share = (total + allowed.size() - 1) / allowed.size();
  const std::uint64_t limit = std::max(share, floor);

  const std::vector<std::uint64_t> before = sent_;
  const std::size_t pieces_before = out.size();
  if (allowed.size() == 1) {
    for (const std::size_t demand : demands) {
      sent_[allowed[0]] += boxes[demand].elements();
      out.push_back({boxes[demand], demand, allowed[0]});
    }
    return;
  }
  if (assign_whole(demands, boxes, allowed, limit + limit / kSlackDivisor, out)) return;
  sent_ = before;
  out.resize(pieces_before);
  assign_parts(demands, boxes, allowed, share, out);
}

}  // namespace ho::layout
