#pragma once

#include <hyperoffload/objects.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <hyperoffload/objects.hpp>
#include <string>
#include <vector>

#include "common/layout/layout.hpp"
#include "common/layout/mesh.hpp"

namespace ho::test {

/// One tensor of 4-byte elements on some ranks, with each rank's memory.
class ObjectRanks {
 public:
  ObjectRanks(const std::string& mesh, const std::string& layout, const layout::Shape& shape)
      : mesh_(mesh), layout_(layout), shape_(shape) {
    const auto parsed = layout::parse_mesh(mesh);
    REQUIRE(parsed.ok());
    const auto dimensions = layout::parse_layout(layout, *parsed);
    REQUIRE(dimensions.ok());
    const auto boxes = layout::regions(*parsed, *dimensions, shape);
    REQUIRE(boxes.ok());
    boxes_ = *boxes;
    for (const layout::Box& box : boxes_) tiles_.emplace_back(box.elements());
  }

  [[nodiscard]] std::size_t count() const { return tiles_.size(); }
  /// The tensor as objects.h describes it, for one rank.
  [[nodiscard]] ho_tensor tensor(std::size_t rank) {
    ho_tensor out{};
    out.name = "weight";
    out.layout = layout_.c_str();
    out.dtype = "u32";
    out.shape = shape_.data();
    out.dimensions = static_cast<std::uint32_t>(shape_.size());
    out.element_bytes = 4;
    out.data = tiles_[rank].empty() ? nullptr : tiles_[rank].data();
    out.bytes = tiles_[rank].size() * 4;
    return out;
  }
  [[nodiscard]] ho_object_options options(std::size_t rank, std::uint64_t run = 0) const {
    ho_object_options out{};
    out.name = "weights";
    out.mesh = mesh_.c_str();
    out.rank = static_cast<std::uint32_t>(rank);
    out.run = run;
    return out;
  }
  /// Each element encodes its place in the tensor and the version.
  void fill(std::uint32_t version) {
    visit([&](std::uint32_t& element, std::uint32_t place) { element = place * 31 + version; });
  }
  void clear() {
    visit([](std::uint32_t& element, std::uint32_t /*place*/) { element = 0; });
  }
  [[nodiscard]] bool holds(std::size_t rank, std::uint32_t version) {
    bool same = true;
    visit_rank(rank, [&](const std::uint32_t& element, std::uint32_t place) {
      same = same && element == place * 31 + version;
    });
    return same;
  }

 private:
  template <typename Visit>
  void visit(Visit each) {
    for (std::size_t rank = 0; rank < tiles_.size(); ++rank) visit_rank(rank, each);
  }
  template <typename Visit>
  void visit_rank(std::size_t rank, Visit each) {
    const layout::Box& box = boxes_[rank];
    std::vector<std::uint64_t> at(shape_.size(), 0);
    for (std::uint32_t& element : tiles_[rank]) {
      std::uint64_t place = 0;
      for (std::size_t i = 0; i < at.size(); ++i) {
        place = place * shape_[i] + box.sides[i].begin + at[i];
      }
      each(element, static_cast<std::uint32_t>(place));
      for (std::size_t i = at.size(); i > 0 && ++at[i - 1] == box.sides[i - 1].size(); --i) {
        at[i - 1] = 0;
      }
    }
  }

  const std::string mesh_;
  const std::string layout_;
  const layout::Shape shape_;
  std::vector<layout::Box> boxes_;
  std::vector<std::vector<std::uint32_t>> tiles_;
};

/// A publisher of the tensor for each rank.
inline std::vector<hyperoffload::Publisher> publish_all(ho_pool* pool, ObjectRanks& ranks,
                                                        std::uint64_t run) {
  std::vector<hyperoffload::Publisher> out;
  for (std::size_t rank = 0; rank < ranks.count(); ++rank) {
    out.emplace_back(pool, ranks.options(rank, run), std::vector{ranks.tensor(rank)});
  }
  return out;
}

}  // namespace ho::test
