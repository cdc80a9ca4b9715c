#include "tools/hyperoffload/plan/compile/programs_input.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "client/objects/read_plan.hpp"
#include "client/objects/tiles.hpp"
#include "common/base/units.hpp"
#include "common/cli/values.hpp"
#include "common/layout/layout.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::cli {

namespace {

/// The files' names, for errors.
struct Names {
  const std::string& programs;
  const std::string& hardware;
};

Result<void> check_ranks(const Names& names, const ProgramsInput& inputs) {
  const std::size_t paths = inputs.task.hardware.paths.size();
  constexpr std::size_t kRanksMax = 4096;  // as analyze-ranks
  std::size_t runners = 0;
  for (const analyzer::ProgramTask& program : inputs.task.programs) {
    if (program.graph != nullptr) runners += program.ranks.size();
  }
  if (runners > kRanksMax) {
    return bad_input(std::to_string(runners) + " ranks have a graph; 4096 is the limit")
        .at(names.programs);
  }
  std::map<std::uint32_t, std::string> program_of;
  for (std::size_t i = 0; i < inputs.meshes.size(); ++i) {
    const std::string& name = inputs.file.programs[i].name;
    for (const std::uint32_t rank : inputs.meshes[i].ranks) {
      const auto [at, is_new] = program_of.try_emplace(rank, name);
      if (!is_new) {
        return bad_input("programs " + at->second + " and " + name + " both have rank " +
                         std::to_string(rank) + "; say which are whose, as \"4:dp@0-3\"")
            .at(names.programs);
      }
      if (paths > 1 && rank >= paths) {
        return bad_input("program " + name + " has rank " + std::to_string(rank) +
                         ", and there are paths of " + std::to_string(paths) + " ranks")
            .at(names.hardware);
      }
    }
  }
  return {};
}

Result<void> read_program(const Names& names, ProgramsInput& inputs, const ProgramSpec& spec) {
  auto mesh = layout::parse_mesh(spec.mesh);
  if (!mesh) return mesh.error().at("mesh");
  analyzer::ProgramTask task;
  task.ranks = mesh->ranks;
  task.claim = {spec.weight, spec.minimum_bytes_per_s};
  const TierSpec& ddr = *inputs.task.hardware.local_ddr;
  if (spec.minimum_bytes_per_s > std::min(ddr.read.bytes_per_s, ddr.write.bytes_per_s)) {
    return bad_input("minimum_rate is more than localDdr of " + names.hardware + " carries");
  }
  task.period_ns = spec.period_ns;
  inputs.meshes.push_back(*std::move(mesh));
  if (!spec.graph.empty()) {
    auto graph = read_graph_file(spec.graph);
    if (!graph) return graph.error();
    inputs.paths.push_back(spec.graph);
    task.graph = &inputs.graphs.emplace_back(*std::move(graph));
    const bool takes_time = std::any_of(task.graph->ops.begin(), task.graph->ops.end(),
                                        [](const Op& op) { return op.duration_ns > 0; });
    if (!takes_time) return bad_input(spec.graph + ": its ops take no time");
    task.device_budget_bytes = inputs.task.hardware.device_bytes;
    if (!spec.device_memory.empty()) {
      const auto memory = parse_memory_size(spec.device_memory);
      if (!memory) {
        return bad_input("device_memory \"" + spec.device_memory +
                         "\" is neither a size such as \"28GiB\" nor a share such as \"60%\"");
      }
      task.device_budget_bytes = memory->of(analyzer::peak_unmanaged_bytes(*task.graph));
    }
    if (task.device_budget_bytes == 0) {
      return bad_input("device_memory is missing, and " + names.hardware + " has no deviceBytes");
    }
  }
  inputs.task.programs.push_back(std::move(task));
  return {};
}

/// What the ranks of two programs have of a tensor, by position.
struct MovedTensor {
  std::vector<std::uint64_t> stored;  ///< by publishers; equal tiles once
  std::vector<std::uint64_t> needed;  ///< by readers
  std::vector<std::uint64_t> rows;    ///< by readers, in whole chunks of rows
  std::vector<std::uint64_t> grid;    ///< the same, of a grid
};

constexpr std::uint64_t kTileBytesMax = 1024 * kGiB;
/// A grid pays where readers fetch this much less.
constexpr double kGridGainMin = 1.1;

Result<std::vector<std::uint64_t>> tile_bytes(const layout::Placement& placement,
                                              const ObjectTensor& tensor) {
  const auto boxes = layout::regions(placement.mesh, placement.layout, tensor.shape);
  if (!boxes) return boxes.error();
  std::vector<std::uint64_t> out;
  out.reserve(boxes->size());
  for (const layout::Box& box : *boxes) {
    out.push_back(box.elements() * tensor.element_bytes);
    // Its pieces are listed one by one.
    if (out.back() > kTileBytesMax) return bad_input("a rank has more than 1 TiB of it");
  }
  return out;
}

Result<MovedTensor> move_tensor(const layout::Mesh& from, const layout::Mesh& to,
                                const ObjectTensor& tensor, const std::string& wanted_layout) {
  if (auto ok = layout::check_shape(tensor.shape); !ok) return ok.error().at("shape");
  const auto old = client::placement_of(from, tensor);
  if (!old) return old.error().at("from");
  ObjectTensor mine = tensor;
  mine.layout = wanted_layout;
  const auto wanted = client::placement_of(to, mine);
  if (!wanted) return wanted.error().at("to");
  MovedTensor out;
  auto stored = tile_bytes(*old, tensor);
  if (!stored) return stored.error().at("from");
  out.stored = *std::move(stored);
  for (std::size_t i = 0; i < out.stored.size(); ++i) {
    if (client::holder_of(*old, i) != i) out.stored[i] = 0;
  }
  auto needed = tile_bytes(*wanted, tensor);
  if (!needed) return needed.error().at("to");
  out.needed = *std::move(needed);
  for (const auto& [fetched, chunking] :
       {std::pair(&out.rows, Chunking::kRows), std::pair(&out.grid, Chunking::kGrid)}) {
    fetched->resize(out.needed.size());
    for (std::size_t i = 0; i < out.needed.size(); ++i) {
      const std::size_t holder = client::holder_of(*wanted, i);
      if (holder < i) {  // it has the same tile
        (*fetched)[i] = (*fetched)[holder];
        continue;
      }
      const client::WantedTensor want{{tensor.name, wanted_layout, {}, 0, ""}, out.needed[i]};
      const auto plan = client::plan_read(from, {tensor}, chunking, to, to.ranks[i], {want});
      if (!plan) return plan.error();
      (*fetched)[i] = plan->fetched_bytes;
    }
  }
  return out;
}

std::vector<analyzer::RankBytes> no_bytes(const layout::Mesh& mesh) {
  std::vector<analyzer::RankBytes> out;
  out.reserve(mesh.ranks.size());
  for (const std::uint32_t rank : mesh.ranks) out.push_back({rank, 0});
  return out;
}

Result<void> add_bytes(std::vector<analyzer::RankBytes>& to,
                       const std::vector<std::uint64_t>& more) {
  constexpr std::uint64_t kBytesMax = 1ULL << 50U;
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i].bytes += more[i];
    if (to[i].bytes > kBytesMax) return bad_input("a rank has more than 2^50 bytes of the object");
  }
  return {};
}

/// Gives tensors that have no layouts of their own those of the object, and checks that it has what
/// the reader names.
Result<void> set_layouts(const ObjectSpec& spec, std::vector<TensorMove>& tensors) {
  const auto layouts = layout::by_dimensions(spec.to_layouts);
  if (!layouts) return layouts.error().at("to_layout");
  std::map<std::size_t, std::string> unused = *layouts;
  std::set<std::string> missing = spec.to_tensors;
  for (TensorMove& tensor : tensors) {
    const std::size_t dimensions = tensor.shape.size();
    if (tensor.from.empty()) tensor.from = spec.from_layout;
    if (!spec.reads(tensor.name)) {
      tensor.to.clear();  // it need not suit the readers' mesh
      continue;
    }
    missing.erase(tensor.name);
    unused.erase(dimensions);
    const auto at = layouts->find(dimensions);
    if (tensor.to.empty() && at != layouts->end()) tensor.to = at->second;
  }
  if (!missing.empty())
    return bad_input("to_tensors: there is no tensor \"" + *missing.begin() + "\"");
  if (unused.empty()) return {};
  return bad_input("to_layout \"" + unused.begin()->second + "\": it reads no tensor of " +
                   std::to_string(unused.begin()->first) + " dimensions");
}

/// What the readers of an object fetch if its publisher cuts tiles in a grid.
using Grid = std::vector<analyzer::RankBytes>;

Result<void> read_object(ProgramsInput& inputs, const ObjectSpec& spec, std::vector<Grid>& grids) {
  auto tensors = read_tensors_file(spec.tensors);
  if (!tensors) return tensors.error();
  inputs.paths.push_back(spec.tensors);
  if (auto ok = set_layouts(spec, *tensors); !ok) return ok.error();
  const layout::Mesh& from = inputs.meshes[spec.from];
  const layout::Mesh& to = inputs.meshes[spec.to];
  analyzer::ObjectEdge edge;
  edge.object = spec.name;
  edge.from = spec.from;
  edge.to = spec.to;
  edge.publishers = no_bytes(from);
  edge.readers = no_bytes(to);
  std::vector<analyzer::RankBytes> needed = no_bytes(to);
  Grid grid = no_bytes(to);
  // The tensors of a model have few different shapes.
  std::map<std::tuple<layout::Shape, std::uint64_t, std::string_view, std::string_view>,
           MovedTensor>
      known;
  for (const TensorMove& tensor : *tensors) {
    const std::string where = spec.tensors + ": tensor \"" + tensor.name + "\"";
    const auto [at, is_new] =
        known.try_emplace({tensor.shape, tensor.element_bytes, tensor.from, tensor.to});
    if (is_new) {
      const ObjectTensor one{tensor.name, tensor.from, tensor.shape,
                             static_cast<std::uint32_t>(tensor.element_bytes), ""};
      auto moved = move_tensor(from, to, one, tensor.to);
      if (!moved) return moved.error().at(where);
      at->second = *std::move(moved);
    }
    for (const auto& [sum, more] :
         {std::pair(&edge.publishers, &at->second.stored), std::pair(&needed, &at->second.needed),
          std::pair(&edge.readers, &at->second.rows), std::pair(&grid, &at->second.grid)}) {
      if (sum != &edge.publishers && !spec.reads(tensor.name)) continue;
      if (auto ok = add_bytes(*sum, *more); !ok) return ok.error().at(where);
    }
  }
  edge.every = spec.every;
  edge.versions = spec.versions;
  edge.largest_age_ns = spec.largest_staleness_ns;
  edge.least_bytes_per_s = spec.minimum_bytes_per_s;
  inputs.task.edges.push_back(std::move(edge));
  inputs.needed.push_back(std::move(needed));
  grids.push_back(std::move(grid));
  inputs.tensors.push_back(*std::move(tensors));
  return {};
}

/// Chooses how each object is cut: all its readers fetch from one publisher. A grid costs a copy at
/// both ends.
void choose_chunking(ProgramsInput& inputs, std::vector<Grid>& grids) {
  const auto sum_of = [](const std::vector<analyzer::RankBytes>& ranks) {
    double sum = 0;
    for (const analyzer::RankBytes& one : ranks) sum += static_cast<double>(one.bytes);
    return sum;
  };
  std::vector<analyzer::ObjectEdge>& edges = inputs.task.edges;
  std::map<std::string, std::pair<double, double>> sums;  // by object: in rows, in a grid
  for (std::size_t e = 0; e < edges.size(); ++e) {
    sums[edges[e].object].first += sum_of(edges[e].readers);
    sums[edges[e].object].second += sum_of(grids[e]);
  }
  for (std::size_t e = 0; e < edges.size(); ++e) {
    const auto& [rows, grid] = sums[edges[e].object];
    const bool pays = rows > kGridGainMin * grid;
    if (pays) edges[e].readers = std::move(grids[e]);
    inputs.chunking.push_back(pays ? Chunking::kGrid : Chunking::kRows);
  }
}

}  // namespace

Result<void> read_programs(const std::string& programs, const std::string& hardware_file,
                           ProgramsInput& inputs) {
  const Names names{programs, hardware_file};
  auto hardware = read_hardware_file(names.hardware);
  if (!hardware) return hardware.error();
  if (!hardware->local_ddr)
    return bad_input("no localDdr, where programs publish").at(names.hardware);
  inputs.task.hardware = *std::move(hardware);
  auto file = read_programs_file(names.programs);
  if (!file) return file.error();
  inputs.file = *std::move(file);
  inputs.paths = {names.programs, names.hardware};
  for (const ProgramSpec& spec : inputs.file.programs) {
    if (auto ok = read_program(names, inputs, spec); !ok) {
      return ok.error().at("program \"" + spec.name + "\"").at(names.programs);
    }
  }
  if (auto ok = check_ranks(names, inputs); !ok) return ok;
  std::vector<Grid> grids;
  for (const ObjectSpec& spec : inputs.file.objects) {
    if (auto ok = read_object(inputs, spec, grids); !ok) {
      return ok.error().at("object \"" + spec.name + "\"").at(names.programs);
    }
  }
  choose_chunking(inputs, grids);
  return {};
}

}  // namespace ho::cli
