#include "common/layout/layout.hpp"

#include <string>

#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/place/layout_options.hpp"

namespace ho::cli {

namespace {

struct LayoutArguments {
  PlacementWords placement{"--mesh", "--layout", {}, {}};
  std::string shape;
  std::string division = "ceil";
};

void write_corner(JsonWriter& json, std::string_view name, const layout::Box& box,
                  std::uint64_t layout::Interval::*corner) {
  json.key(name).begin_array();
  for (const layout::Interval& side : box.intervals()) json.value(side.*corner);
  json.end();
}

std::string to_json(const layout::Mesh& mesh, const std::vector<layout::Box>& boxes) {
  JsonWriter json;
  json.begin_object().key("ranks").begin_array();
  for (std::size_t position = 0; position < boxes.size(); ++position) {
    json.begin_object().field("rank", mesh.ranks[position]).key("boxes").begin_array();
    if (!boxes[position].empty()) {
      json.begin_object();
      write_corner(json, "begin", boxes[position], &layout::Interval::begin);
      write_corner(json, "end", boxes[position], &layout::Interval::end);
      json.end();
    }
    json.end().end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_text(const layout::Box& box) {
  if (box.empty()) return "nothing";
  std::string text;
  for (const layout::Interval& side : box.intervals()) {
    text += (text.empty() ? "[" : " x [") + std::to_string(side.begin) + ", " +
            std::to_string(side.end) + ")";
  }
  return text;
}

std::string to_table(const layout::Mesh& mesh, const std::vector<layout::Box>& boxes,
                     Format format) {
  Table table({{"rank", Table::kRight}, {"holds"}, {"elements", Table::kRight}});
  for (std::size_t position = 0; position < boxes.size(); ++position) {
    const layout::Box& box = boxes[position];
    table.add({std::to_string(mesh.ranks[position]), to_text(box), std::to_string(box.elements())});
  }
  return table.text(format);
}

int run_layout(Console& console, const LayoutArguments& args) {
  const auto placement = read_placement(args.placement, division_of(args.division));
  if (!placement) return console.refuse(placement.error());
  const auto shape = layout::parse_shape(args.shape);
  if (!shape) return console.refuse(shape.error());
  const auto boxes = layout::regions(placement->mesh, placement->layout, *shape);
  if (!boxes) return console.refuse(boxes.error());
  console.print(console.json() ? to_json(placement->mesh, *boxes)
                               : to_table(placement->mesh, *boxes, console.format()));
  return kExitDone;
}

}  // namespace

void add_layout(Program& program) {
  auto [command, args] = add_command<LayoutArguments>(
      program, program.root(), "layout", "Show which part of a tensor each rank holds", run_layout);
  add_placement(command, args.placement);
  command.add_option("--shape", args.shape, "the tensor's sizes, as \"15,5\"")
      ->type_name("SIZES")
      ->required();
  add_division(command, args.division);
  set_manual(
      command,
      {"A layout lists for each dimension the mesh axes that divide it, from major to minor, "
       "\"-\" for none. An axis that it does not name holds replicas; one behind \"+sum:\" "
       "holds terms of a sum.",
       {"hyperoffload layout --mesh 4x2:dp,tp --layout 'dp,tp;-' --shape 15,5",
        "hyperoffload layout --mesh 4x2:dp,tp --layout '-;tp+sum:dp' --shape 64,64"},
       {{kExitDone, "shown"}}});
}

}  // namespace ho::cli
