#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.hpp"

namespace ho {

/// A program of a ProgramsFile. Mirrors programs.proto.
struct ProgramSpec {
  std::string name;
  std::string mesh;           ///< as text, not parsed
  std::string graph;          ///< a path; empty: none
  std::string device_memory;  ///< as text, not parsed; may be empty
  std::uint32_t weight = 1;
  std::uint64_t minimum_bytes_per_s = 0;
  std::uint64_t period_ns = 0;
};

/// An object that one program publishes, and one that reads it.
struct ObjectSpec {
  std::string name;
  std::size_t from = 0;  ///< index of a program
  std::size_t to = 0;
  std::string tensors;      ///< a path
  std::string from_layout;  ///< as text, not parsed; may be empty
  std::vector<std::string> to_layouts;
  std::set<std::string> to_tensors;  ///< names; empty: all
  std::uint32_t every = 1;
  std::uint32_t versions = 2;
  std::uint64_t largest_staleness_ns = 0;  ///< 0: any
  std::uint64_t minimum_bytes_per_s = 0;

  [[nodiscard]] bool reads(const std::string& tensor) const {
    return to_tensors.empty() || to_tensors.count(tensor) > 0;
  }
};

/// Programs that run at the same time: one at least, with different names.
struct ProgramsFile {
  std::vector<ProgramSpec> programs;
  std::vector<ObjectSpec> objects;  ///< one per reader; those of one name agree in the publisher
};

/// Reads an untrusted file; the suffix selects the encoding. Paths in it are relative to its folder
/// and returned as they can be opened.
/// @return errors of the system; kInvalidArgument with file, program or object, and field.
[[nodiscard]] Result<ProgramsFile> read_programs_file(const std::string& path);

}  // namespace ho
