#include "common/layout/layout.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "common/base/check.hpp"
#include "common/layout/words.hpp"
#include "common/text/split_text.hpp"

namespace ho::layout {

namespace {

constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 50U;

Error bad_layout(std::string_view text, const std::string& why) {
  return {Errc::kInvalidArgument, "layout \"" + std::string(text) + "\": " + why};
}

std::optional<Reduction> parse_reduction(std::string_view text) {
  if (text == "sum") return Reduction::kSum;
  if (text == "min") return Reduction::kMin;
  if (text == "max") return Reduction::kMax;
  return std::nullopt;
}

/// Reads names of axes, each used once in the whole layout.
class AxisReader {
 public:
  AxisReader(std::string_view text, const Mesh& mesh)
      : text_(text), mesh_(mesh), used_(mesh.axes.size()) {}

  Result<std::vector<std::uint32_t>> read(std::string_view names) {
    std::vector<std::uint32_t> axes;
    for (const std::string_view name : split_text(names, ',')) {
      const auto axis = mesh_.find_axis(name);
      if (!axis) return bad_layout(text_, "the mesh has no axis \"" + std::string(name) + "\"");
      if (used_[*axis]) return bad_layout(text_, "axis " + std::string(name) + " occurs twice");
      used_[*axis] = true;
      axes.push_back(*axis);
    }
    return axes;
  }

 private:
  std::string_view text_;
  const Mesh& mesh_;
  std::vector<bool> used_;
};

/// Part `index` of `whole` divided into `parts`.
Interval part_of(Interval whole, std::uint64_t parts, std::uint64_t index) {
  const std::uint64_t step = (whole.size() + parts - 1) / parts;
  const std::uint64_t begin = std::min(index * step, whole.size());
  const std::uint64_t end = std::min(begin + step, whole.size());
  return {whole.begin + begin, whole.begin + end};
}

Error not_divisible(const Mesh& mesh, const Layout& layout, const Shape& shape, std::size_t at) {
  std::string text;
  for (const std::uint32_t axis : layout.dimensions[at]) {
    text += (text.empty() ? "" : ",") + mesh.axes[axis].name;
  }
  return {Errc::kInvalidArgument, "dimension " + std::to_string(at) + " has " +
                                      std::to_string(shape[at]) + " elements, which " + text +
                                      " does not divide exactly; use division by ceiling"};
}

}  // namespace

Result<Layout> parse_layout(std::string_view text, const Mesh& mesh, Division division) {
  Layout layout;
  layout.division = division;
  AxisReader reader(text, mesh);
  const std::vector<std::string_view> terms = split_text(text, '+');
  for (const std::string_view dimension : split_text(terms.front(), ';')) {
    if (dimension == "-") {
      layout.dimensions.emplace_back();
      continue;
    }
    auto axes = reader.read(dimension);
    if (!axes) return axes.error();
    layout.dimensions.push_back(std::move(*axes));
  }
  if (layout.dimensions.size() > kDimensionsMax) {
    return bad_layout(text, "more than " + std::to_string(kDimensionsMax) + " dimensions");
  }
  for (std::size_t i = 1; i < terms.size(); ++i) {
    const std::vector<std::string_view> halves = split_text(terms[i], ':');
    const auto how = parse_reduction(halves.front());
    if (halves.size() != 2 || !how) return bad_layout(text, "after + comes sum:, min: or max:");
    const auto axes = reader.read(halves[1]);
    if (!axes) return axes.error();
    for (const std::uint32_t axis : *axes) layout.partials.push_back({axis, *how});
  }
  return layout;
}

Result<std::map<std::size_t, std::string>> by_dimensions(const std::vector<std::string>& layouts) {
  std::map<std::size_t, std::string> out;
  for (const std::string& one : layouts) {
    const auto dimensions = 1 + static_cast<std::size_t>(std::count(one.begin(), one.end(), ';'));
    if (!out.emplace(dimensions, one).second) {
      return Error(Errc::kInvalidArgument,
                   "two for tensors of " + std::to_string(dimensions) + " dimensions");
    }
  }
  return out;
}

Result<Shape> parse_shape(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Error(Errc::kInvalidArgument, "shape \"" + std::string(text) + "\": " + why);
  };
  Shape shape;
  const char separator = text.find('x') == std::string_view::npos ? ',' : 'x';
  for (const std::string_view word : split_text(text, separator)) {
    const auto size = parse_number<std::uint64_t>(word);
    if (!size) return bad(R"(a size is a number; write "15,5")");
    shape.push_back(*size);
  }
  if (const auto checked = check_shape(shape); !checked) return bad(checked.error().context());
  return shape;
}

Result<void> check_shape(const Shape& shape) {
  const auto bad = [](const std::string& why) { return Error(Errc::kInvalidArgument, why); };
  if (shape.empty() || shape.size() > kDimensionsMax) {
    return bad("1 to " + std::to_string(kDimensionsMax) + " dimensions are allowed");
  }
  std::uint64_t elements = 1;
  for (const std::uint64_t size : shape) {
    if (size > kElementsMax / elements) return bad("more than 2^50 elements");
    // A tensor with a size of 0 has none, but distances in it are made of its other sizes.
    elements *= std::max<std::uint64_t>(size, 1);
  }
  return {};
}

std::uint64_t Box::elements() const {
  std::uint64_t product = 1;
  for (const Interval& side : intervals()) product *= side.size();
  return product;
}

Box intersection(const Box& a, const Box& b) {
  HO_CHECK(a.dimensions == b.dimensions);
  Box both;
  both.dimensions = a.dimensions;
  for (std::size_t i = 0; i < a.dimensions; ++i) {
    const std::uint64_t begin = std::max(a.sides[i].begin, b.sides[i].begin);
    both.sides[i] = {begin, std::max(begin, std::min(a.sides[i].end, b.sides[i].end))};
  }
  return both;
}

Result<std::vector<Box>> regions(const Mesh& mesh, const Layout& layout, const Shape& shape) {
  if (layout.dimensions.size() != shape.size()) {
    return Error(Errc::kInvalidArgument,
                 "the layout has " + std::to_string(layout.dimensions.size()) +
                     " dimensions, the shape has " + std::to_string(shape.size()));
  }
  for (std::size_t at = 0; at < shape.size() && layout.division == Division::kExact; ++at) {
    std::uint64_t parts = 1;
    for (const std::uint32_t axis : layout.dimensions[at]) parts *= mesh.axes[axis].size;
    if (shape[at] % parts != 0) return not_divisible(mesh, layout, shape, at);
  }
  std::vector<Box> boxes(mesh.ranks.size());
  for (std::size_t position = 0; position < boxes.size(); ++position) {
    const std::vector<std::uint32_t> at = mesh.coordinates(position);
    Box& box = boxes[position];
    box.dimensions = shape.size();
    for (std::size_t i = 0; i < shape.size(); ++i) {
      Interval side{0, shape[i]};
      for (const std::uint32_t axis : layout.dimensions[i]) {
        side = part_of(side, mesh.axes[axis].size, at[axis]);
      }
      box.sides[i] = side;
    }
  }
  return boxes;
}

}  // namespace ho::layout
