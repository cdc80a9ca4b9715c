#include "client/objects/relay_plan.hpp"

#include <algorithm>
#include <utility>

#include "client/objects/tiles.hpp"
#include "common/base/check.hpp"

namespace ho::client {

namespace {

using Axes = std::vector<std::uint32_t>;

std::string names_of(const layout::Mesh& mesh, const Axes& axes) {
  std::string out;
  for (const std::uint32_t axis : axes) {
    out += (out.empty() ? "" : ",") + mesh.axes[axis].name;
  }
  return out.empty() ? "-" : out;
}

/// "x,y;-;-" of a tensor with so many dimensions.
std::string first_divided(const std::string& axes, std::size_t dimensions) {
  std::string out = axes;
  for (std::size_t d = 1; d < dimensions; ++d) out += ";-";
  return out;
}

/// The mesh of the ranks that differ from `position` in `axes` only.
std::string sub_mesh(const layout::Mesh& mesh, std::size_t position, const Axes& axes,
                     std::size_t& place) {
  std::string sizes;
  std::size_t count = 1;
  for (const std::uint32_t axis : axes) {
    sizes += (sizes.empty() ? "" : "x") + std::to_string(mesh.axes[axis].size);
    count *= mesh.axes[axis].size;
  }
  std::vector<std::uint32_t> at = mesh.coordinates(position);
  std::string ranks;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t rest = i;
    for (std::size_t a = axes.size(); a-- > 0;) {
      const std::uint32_t size = mesh.axes[axes[a]].size;
      at[axes[a]] = static_cast<std::uint32_t>(rest % size);
      rest /= size;
    }
    std::size_t other = 0;
    for (std::size_t a = 0; a < at.size(); ++a) other = other * mesh.axes[a].size + at[a];
    if (other == position) place = i;
    ranks += (ranks.empty() ? "@" : ",") + std::to_string(mesh.ranks[other]);
  }
  return sizes + ":" + names_of(mesh, axes) + ranks;
}

layout::Shape shape_of(const layout::Box& box) {
  layout::Shape out;
  for (const layout::Interval& side : box.intervals()) out.push_back(side.size());
  return out;
}

/// The part of `whole` that a place in a mesh has by a layout of that mesh.
Result<layout::Box> divided(const layout::Box& whole, const std::string& mesh_text,
                            const std::string& layout_text, std::size_t place) {
  const auto mesh = layout::parse_mesh(mesh_text);
  if (!mesh) return mesh.error();
  const auto layout = layout::parse_layout(layout_text, *mesh);
  if (!layout) return layout.error();
  auto boxes = layout::regions(*mesh, *layout, shape_of(whole));
  if (!boxes) return boxes.error();
  layout::Box out = (*boxes)[place];
  for (std::size_t d = 0; d < out.dimensions; ++d) {
    out.sides[d].begin += whole.sides[d].begin;
    out.sides[d].end += whole.sides[d].begin;
  }
  return out;
}

/// Where a part that is cut along the first dimension lies in a tile.
TileRange range_in(const layout::Box& tile, const layout::Box& part, std::uint64_t element_bytes) {
  if (part.empty()) return {};
  const std::uint64_t bytes = part.elements() * element_bytes;
  const std::uint64_t row_bytes = bytes / part.sides[0].size();
  return {(part.sides[0].begin - tile.sides[0].begin) * row_bytes, bytes};
}

}  // namespace

Result<std::vector<std::vector<std::uint32_t>>> parse_relay(std::string_view text,
                                                            const layout::Mesh& mesh) {
  std::vector<Axes> out(1);
  std::string name;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ';';
    if (c != ',' && c != ';') {
      name += c;
      continue;
    }
    const auto axis = mesh.find_axis(name);
    const bool again = axis && std::any_of(out.begin(), out.end(), [&](const Axes& step) {
                         return std::find(step.begin(), step.end(), *axis) != step.end();
                       });
    if (!axis || again) {
      return Error(Errc::kInvalidArgument, "relay \"" + std::string(text) + "\": " +
                                               (again ? "axis \"" + name + "\" twice"
                                                      : "the mesh has no axis \"" + name + "\""));
    }
    out.back().push_back(*axis);
    name.clear();
    if (c == ';' && i < text.size()) out.emplace_back();
  }
  return out;
}

Result<RelayPlan> plan_relays(const layout::Mesh& mesh, std::size_t position,
                              const std::vector<ObjectTensor>& tensors,
                              const std::vector<std::vector<std::uint32_t>>& steps) {
  HO_CHECK(position < mesh.ranks.size());
  RelayPlan out;
  out.steps.resize(steps.size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    out.steps[s].mesh = sub_mesh(mesh, position, steps[s], out.steps[s].position);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ObjectTensor& tensor = tensors[i];
    const auto placed = placement_of(mesh, tensor);
    if (!placed) return placed.error();
    const auto boxes = layout::regions(placed->mesh, placed->layout, tensor.shape);
    if (!boxes) return boxes.error().at(tensor.name);
    const layout::Box& tile = (*boxes)[position];
    const std::vector<Axes>& dimensions = placed->layout.dimensions;
    Axes first_axes = dimensions.front();
    layout::Box box = tile;  // what the rank has after the step
    for (std::size_t s = steps.size(); s-- > 0;) {
      const bool used = std::any_of(steps[s].begin(), steps[s].end(), [&](std::uint32_t axis) {
        return std::any_of(dimensions.begin(), dimensions.end(), [&](const Axes& one) {
          return std::find(one.begin(), one.end(), axis) != one.end();
        });
      });
      std::size_t ranks = 1;
      for (const std::uint32_t axis : steps[s]) ranks *= mesh.axes[axis].size;
      // A tile without elements is one in all ranks of the step.
      if (used || box.empty() || ranks == 1) continue;
      RelayedTensor& relayed = out.steps[s].tensors.emplace_back();
      relayed.wanted = i;
      relayed.tensor = tensor;
      relayed.tensor.shape = shape_of(box);
      relayed.tensor.layout = first_divided(names_of(mesh, steps[s]), tensor.shape.size());
      const auto part =
          divided(box, out.steps[s].mesh, relayed.tensor.layout, out.steps[s].position);
      if (!part) return part.error().at(tensor.name);
      relayed.after = range_in(tile, box, tensor.element_bytes);
      relayed.before = range_in(tile, *part, tensor.element_bytes);
      first_axes.insert(first_axes.end(), steps[s].begin(), steps[s].end());
      box = *part;
    }
    RelayPlan::First& first = out.first.emplace_back();
    first.layout = names_of(mesh, first_axes);
    for (std::size_t d = 1; d < dimensions.size(); ++d) {
      first.layout += ";" + names_of(mesh, dimensions[d]);
    }
    first.range = range_in(tile, box, tensor.element_bytes);
  }
  return out;
}

}  // namespace ho::client
