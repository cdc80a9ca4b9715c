#pragma once

#include <deque>
#include <string>
#include <vector>

#include "client/objects/chunks.hpp"
#include "common/base/result.hpp"
#include "common/layout/mesh.hpp"
#include "common/model/graph.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/programs.hpp"
#include "tools/analyzer/programs/plan_programs.hpp"

namespace ho::cli {

/// All that a file of programs and those that it names say. Not copied: the task points to graphs.
struct ProgramsInput {
  ProgramsInput() = default;
  ProgramsInput(const ProgramsInput&) = delete;
  ProgramsInput& operator=(const ProgramsInput&) = delete;

  ProgramsFile file;
  std::vector<layout::Mesh> meshes;                      ///< by program
  std::deque<Graph> graphs;                              ///< each file once
  std::vector<std::vector<TensorMove>> tensors;          ///< by object, each with its layouts
  std::vector<std::vector<analyzer::RankBytes>> needed;  ///< by object: the readers' tiles
  std::vector<Chunking> chunking;                        ///< by object: how its tiles are cut
  std::vector<std::string> paths;                        ///< what was read
  analyzer::ProgramsTask task;
};

/// Reads and checks everything. @return errors of the system; kInvalidArgument with file, program
/// or object.
[[nodiscard]] Result<void> read_programs(const std::string& programs, const std::string& hardware,
                                         ProgramsInput& into);

}  // namespace ho::cli
