#include <catch2/catch.hpp>

#include "tests/unit/importers/traces.hpp"

namespace ho::test {
namespace {

using importers::ChakraType;
using importers::import_chakra;

/// A node of a PyTorch trace as Chakra's converter writes it: Python's text, the caller as control
/// dependency, the order as data dependency, all attributes. Source: pytorch_converter.py of
/// mlcommons/chakra.
struct ConvertedNode {
  std::uint64_t id = 0;
  std::uint64_t caller = 0;
  std::string name = {};
  std::string schema = {};
  std::string inputs = "[]";
  std::string outputs = "[]";
  std::uint64_t us = 0;
  bool kernel = false;
  ChakraType type = ChakraType::kCompute;
};

/// How versions of the converter mark nodes of the host.
enum class HostMark : std::uint8_t { kBool = 27, kInt32 = 7 };

WireWriter converted(const ConvertedNode& node, HostMark mark) {
  WireWriter out;
  out.number(1, node.id).bytes(2, node.name).number(3, static_cast<std::uint64_t>(node.type));
  if (node.caller != 0) out.bytes(4, std::string(1, static_cast<char>(node.caller)));
  if (node.id > 2) out.bytes(5, std::string(1, static_cast<char>(node.id - 1)));
  if (node.us > 0) out.number(7, node.us);
  const auto values = [](const std::string& text) {
    return WireWriter().bytes(1, text).bytes(2, "[]").bytes(3, "[]");
  };
  out.message(8, values(node.inputs)).message(9, values(node.outputs));
  for (const std::string name : {"rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid"}) {
    out.message(10, WireWriter().bytes(1, name).number(9, 1));
  }
  out.message(10, WireWriter().bytes(1, "op_schema").bytes(29, node.schema));
  out.message(10, WireWriter()
                      .bytes(1, "is_cpu_op")
                      .number(static_cast<std::uint32_t>(mark), node.kernel ? 0 : 1));
  out.message(10, WireWriter().bytes(1, "stream").number(9, node.kernel ? 7 : 0));
  if (node.type != ChakraType::kCompute) {
    out.message(10, WireWriter().bytes(1, "comm_type").number(9, 0));
    out.message(10, WireWriter().bytes(1, "comm_size").number(9, 64));
    out.message(10, WireWriter().bytes(1, "pg_name").bytes(29, "0"));
  }
  return out;
}

constexpr const char* kWeight = "[1, 10, 0, 16, 4, 'cuda:0']";
constexpr const char* kInput = "[2, 20, 0, 8, 4, 'cuda:0']";
constexpr const char* kResult = "[3, 30, 0, 16, 4, 'cuda:0']";
constexpr const char* kGradient = "[4, 40, 0, 16, 4, 'cuda:0']";

std::string list(std::initializer_list<std::string> items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "[" : ", ") + item;
  return out + "]";
}

/// The step of one layer on one of several ranks: forward, backward, all-reduce of the gradient,
/// update.
std::string data_parallel_step(HostMark mark) {
  const std::string process_group =
      "(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup "
      "process_group) -> (Tensor[], __torch__.torch.classes.c10d.Work)";
  const std::string mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
  const std::string linear =
      "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor";
  const std::string add =
      "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()";
  const std::string forward = list({kInput, kWeight});
  const std::string backward = list({kResult, kInput});
  const std::string reduced = list({list({kGradient}), "'<Object>'", "True", "-1"});
  const std::string recorded =
      list({list({kGradient}), "33", "['0', 'default_pg']", "'allreduce'"});
  const std::string update = list({list({kWeight}), list({kGradient}), "1"});
  const std::string reduce_kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)";
  ChakraBuilder out("1.1.0-chakra.0.0.4");
  for (const ConvertedNode& node : std::initializer_list<ConvertedNode>{
           {2, 0, "[pytorch|profiler|execution_trace|thread]"},
           {3, 2, "aten::linear", linear, forward, list({kResult}), 30},
           {4, 3, "aten::t", "aten::t(Tensor(a) self) -> Tensor(a)", list({kWeight}),
            list({"[5, 10, 0, 16, 4, 'cuda:0']"}), 2},
           {5, 3, "aten::mm", mm, forward, list({kResult}), 20},
           {6, 5, "ampere_sgemm_64x64_nn", mm, forward, list({kResult}), 100, true},
           {7, 2, "autograd::engine::evaluate_function: MmBackward0", "", "[]", "[]", 9},
           {8, 7, "aten::mm", mm, backward, list({kGradient}), 20},
           {9, 8, "ampere_sgemm_64x64_tn", mm, backward, list({kGradient}), 200, true},
           {10, 2, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"},
           {11, 10, "torch::autograd::AccumulateGrad", "", list({kGradient}), "[]", 5},
           {12, 2, "c10d::allreduce_", "c10d::allreduce_" + process_group, reduced,
            list({list({kGradient}), "'<Object>'"}), 40},
           {13, 12, "record_param_comms", "", recorded, list({list({kGradient})}), 30},
           {14, 13, "nccl:all_reduce", "", list({kGradient}), "[]", 25},
           {15, 14, reduce_kernel, "", list({kGradient}), "[]", 400, true, ChakraType::kCollective},
           {16, 2, "Optimizer.step#SGD.step"},
           {17, 16, "aten::_foreach_add_", add, update, "[]", 15},
           {18, 17, "multi_tensor_apply_kernel", add, update, "[]", 50, true},
       }) {
    out.frame(converted(node, mark));
  }
  return out.bytes();
}

TEST_CASE("chakra: a converted step has the kernels' durations, one collective and its phases") {
  for (const HostMark mark : {HostMark::kBool, HostMark::kInt32}) {
    const auto made = import_chakra(data_parallel_step(mark), {});
    REQUIRE(error_of(made).empty());
    std::vector<std::string> ops;
    for (const Op& op : made->graph.ops) {
      ops.push_back(op.name + " " + op.phase + " " + std::to_string(op.duration_ns / 1000));
    }
    CHECK(ops == std::vector<std::string>{"aten::mm forward 100", "aten::mm backward 200",
                                          "record_param_comms forward 400",
                                          "aten::_foreach_add_ optimizer 50"});
    CHECK(made->notes.measured_ops == 4);
  }
}

TEST_CASE("chakra: a converted step's collective is fixed and works on the gradient in place") {
  const auto made = import_chakra(data_parallel_step(HostMark::kBool), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  const Op* const collective = find_op(graph, "record_param_comms");
  REQUIRE(collective != nullptr);
  CHECK(collective->fixed);
  CHECK(collective->group == "0");  // the kernel's pg_name
  CHECK(collective->reads == collective->writes);
  CHECK(names(graph, collective->writes) == std::vector<std::string>{"aten::mm#8"});
  CHECK(find_storage(graph, "aten::mm#8")->kind == StorageKind::kGradient);
  CHECK(find_storage(graph, "storage#10")->kind == StorageKind::kWeight);
  CHECK(find_storage(graph, "storage#20")->kind == StorageKind::kInput);
}

TEST_CASE("chakra: a converted send or receive has no group, by its caller's name or its type") {
  struct Case {
    std::string caller;
    ChakraType type;  ///< older converters call each kernel of NCCL a collective
    std::string group;
  };
  for (const auto& [caller, type, group] :
       std::initializer_list<Case>{{"c10d::send", ChakraType::kCollective, ""},
                                   {"c10d::recv_", ChakraType::kCollective, ""},
                                   {"DistributedBackend", ChakraType::kSend, ""},
                                   {"DistributedBackend", ChakraType::kReceive, ""},
                                   {"c10d::alltoall_base_", ChakraType::kCollective, "0"},
                                   {"c10d::alltoall_base_", ChakraType::kCompute, "ranks"}}) {
    INFO(caller << " with type " << static_cast<int>(type));
    ChakraBuilder out("1.1.0-chakra.0.0.4");
    for (const ConvertedNode& node : std::initializer_list<ConvertedNode>{
             {2, 0, "aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor",
              list({kInput, kWeight}), list({kResult}), 20},
             {3, 0, caller},
             {4, 3, "record_param_comms", "", list({list({kResult})}), list({list({kResult})}), 30},
             {5, 4, "ncclDevKernel_SendRecv(ncclDevKernelArgs)", "", list({kResult}), "[]", 400,
              true, type}}) {
      out.frame(converted(node, HostMark::kBool));
    }
    const auto made = import_chakra(out.bytes(), {});
    REQUIRE(error_of(made).empty());
    const Op* const moved = find_op(made->graph, "record_param_comms");
    REQUIRE(moved != nullptr);
    CHECK(moved->fixed);
    CHECK(moved->duration_ns == 400'000);
    CHECK(moved->group == group);
  }
}

TEST_CASE("chakra: a collective on a buffer of its caller's is one op, with or without a record") {
  // FSDP gathers its weights so: the buffer is an argument, and not an input in the record.
  const std::string schema =
      "c10d::_allgather_base_(Tensor output, Tensor input) -> (Tensor, Work)";
  const std::string both = list({kResult, kInput});
  for (const bool with_record : {true, false}) {
    ChakraBuilder out("1.1.0-chakra.0.0.4");
    const auto add = [&out](const ConvertedNode& node) {
      out.frame(converted(node, HostMark::kBool));
    };
    add({2, 0, "c10d::_allgather_base_", schema, both, list({kResult})});
    if (with_record) {
      add({3, 2, "record_param_comms", "", list({kInput}), list({kResult})});
    }
    add({4, 0, "aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor", both, list({kGradient}),
         7});
    importers::Options options;
    options.rates.network_bytes_per_s = 1e6;
    const auto made = import_chakra(out.bytes(), options);
    REQUIRE(error_of(made).empty());
    const Graph& graph = made->graph;
    REQUIRE(graph.ops.size() == 2);
    CHECK(graph.ops[0].fixed);
    // The record has the gathered 64 bytes. A call alone does not show which operand is only
    // written.
    CHECK(graph.ops[0].duration_ns == (with_record ? 64'000 : 96'000));
    REQUIRE(graph.ops[0].writes.size() == 1);
    CHECK(std::count(graph.ops[1].reads.begin(), graph.ops[1].reads.end(),
                     graph.ops[0].writes[0]) == 1);
  }
}

}  // namespace
}  // namespace ho::test
