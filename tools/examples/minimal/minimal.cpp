// A job in one page: a graph, a plan for less device memory than it needs, and the loop over ops.
// usage: minimal POOL, such as unix:/run/hyperoffload/control.sock. Needs `hyperoffload` in PATH.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <hyperoffload/hyperoffload.hpp>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t kLayers = 8;
constexpr std::uint32_t kFloats = 1 << 18;  // 1 MiB: the size of each storage
constexpr std::uint32_t kState = kLayers;   // the id of the state; the weights are 0 .. 7

/// The step for the analyzer: op i reads weight i, updates it, and adds it to the state.
std::string graph() {
  const std::string bytes = std::to_string(kFloats * sizeof(float));
  std::string storages;
  std::string ops;
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    const std::string n = std::to_string(i);
    storages += R"({"id":)" + n + R"(,"name":"weight)" + n +
                R"(","kind":"WEIGHT","persistent":true)" + R"(,"bytes":")" + bytes + "\"},";
    ops += std::string(i > 0 ? "," : "") + R"({"id":)" + n + R"(,"name":"layer)" + n +
           R"(","durationNs":"2000000","reads":[)" + n + ",8],\"writes\":[" + n + ",8]}";
  }
  return R"({"version":1,"name":"minimal","storages":[)" + storages +
         R"({"id":8,"name":"state","kind":"OPTIMIZER_STATE","persistent":true,"bytes":")" + bytes +
         R"("}],"ops":[)" + ops + "]}";
}

/// The job's own kernel. It knows addresses only.
void layer(float* weight, float* state) {
  for (std::uint32_t i = 0; i < kFloats; ++i) {
    weight[i] += 1;
    state[i] += weight[i];
  }
}

/// A schedule for 4 of the 9 MiB. A job would keep it: it depends on graph and hardware only.
std::string plan(const std::string& pool) {
  std::ofstream("graph.json") << graph();
  const std::string command =
      "hyperoffload bench profile hardware.json --seconds 0.5 --pool " + pool +
      " >profile.txt && hyperoffload analyze graph.json --device-memory 4MiB"
      " --hardware hardware.json --out step.hos >plan.txt";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("no plan");
  std::ifstream file("step.hos", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void run(const std::string& address) {
  const std::string schedule = plan(address);
  hyperoffload::Pool::Options options;
  options.pool = address;
  options.name = "minimal";
  hyperoffload::Pool pool(options);

  // Host memory stands for the device's here. It outlives the runtime.
  const ho_schedule_needs needs = hyperoffload::schedule_needs(schedule.data(), schedule.size());
  const std::unique_ptr<void, decltype(&std::free)> arena(
      std::aligned_alloc(needs.align_bytes, needs.arena_bytes), &std::free);
  hyperoffload::Runtime runtime(pool, arena.get(), needs.arena_bytes);
  hyperoffload::Plan plan(runtime, schedule.data(), schedule.size());

  const std::vector<float> zeros(kFloats);  // initial values
  for (std::uint32_t id = 0; id <= kState; ++id) {
    plan.write(id, zeros.data(), kFloats * sizeof(float));
  }
  for (int step = 0; step < 3; ++step) {
    plan.step_begin();
    for (std::uint32_t p = 0; p < plan.position_count(); ++p) {
      plan.before(p);                                // its operands are in the arena now
      const std::uint32_t op = plan.position_op(p);  // the plan may have changed the order
      layer(static_cast<float*>(plan.operand(p, op)), static_cast<float*>(plan.operand(p, kState)));
      plan.after(p);
    }
    plan.step_end();
  }
  std::vector<float> state(kFloats);
  plan.read(kState, state.data(), kFloats * sizeof(float));
  std::printf("state %.0f, device memory %.0f of 9 MiB\n", double{state.back()},
              double(plan.counters().peak_device_bytes) / (1 << 20));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "unix:/run/hyperoffload/control.sock");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "minimal: %s\n", error.what());
    return 1;
  }
}
