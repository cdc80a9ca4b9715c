#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "common/cli/values.hpp"
#include "common/layout/reshard.hpp"

namespace ho::cli {

/// A mesh and a layout, given on the command line.
struct PlacementWords {
  std::string mesh_option;
  std::string layout_option;
  std::string mesh;
  std::string layout;
};

/// Adds the two options, both required. @return the option of the mesh.
inline CLI::Option* add_placement(CLI::App& command, PlacementWords& words) {
  CLI::Option* mesh =
      command
          .add_option(words.mesh_option, words.mesh,
                      "sizes and names of its axes, as \"4x2:dp,tp\"; ranks count from 0 "
                      "unless listed: \"4x2:dp,tp@8-15\"")
          ->type_name("MESH")
          ->required();
  command.add_option(words.layout_option, words.layout, "axes by dimension, as \"dp,tp;-\"")
      ->type_name("LAYOUT")
      ->required();
  return mesh;
}

inline void add_division(CLI::App& command, std::string& into) {
  add_choice(command, "--division", into,
             "how to divide a dimension with a remainder: ceil (last parts smaller or empty) "
             "or exact (refuse)",
             {"ceil", "exact"});
}

inline layout::Division division_of(const std::string& word) {
  return word == "exact" ? layout::Division::kExact : layout::Division::kCeil;
}

/// @return kInvalidArgument with the option's name.
inline Result<layout::Placement> read_placement(const PlacementWords& words,
                                                layout::Division division) {
  auto mesh = layout::parse_mesh(words.mesh);
  if (!mesh) return mesh.error().at(words.mesh_option);
  auto read = layout::parse_layout(words.layout, *mesh, division);
  if (!read) return read.error().at(words.layout_option);
  return layout::Placement{std::move(*mesh), std::move(*read)};
}

}  // namespace ho::cli
