#include "tools/importers/pytorch/tensor_trace.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "tools/importers/bytes/literal_cursor.hpp"
#include "tools/importers/pytorch/trace_replay.hpp"

namespace ho::importers {

namespace {

/// Reads one argument and appends every tensor in it to `out`.
class TensorReader {
 public:
  TensorReader(LiteralCursor& in, TensorTrace& trace, std::vector<TensorRef>& out)
      : in_(in), trace_(trace), out_(out) {}

  Result<void> read(std::uint32_t argument, int depth) {
    constexpr int kDepthMax = 8;
    if (depth > kDepthMax) return in_.bad("lists are nested more than 8 deep");
    if (depth == 0) element_ = 0;
    std::array<std::uint64_t, 5> numbers{};
    std::string device;
    std::size_t count = 0;
    bool tensor = true;
    auto listed = in_.list([&]() -> Result<void> {
      const std::size_t place = count++;
      const char next = in_.peek();
      if (next == '[' || next == '(') {
        tensor = false;
        if (depth == 0) element_ = static_cast<std::uint32_t>(place + 1);
        return read(argument, depth + 1);
      }
      if (next == '"' || next == '\'') {
        auto text = in_.string();
        if (!text) return text.error();
        if (place == 5) device = *std::move(text);
        tensor = tensor && place == 5;
        return {};
      }
      auto word = in_.value();
      if (!word) return word.error();
      const auto number = to_count(*word);
      tensor = tensor && place < 5 && number;
      if (tensor) numbers[place] = *number;
      return {};
    });
    if (!listed) return listed.error();
    if (!tensor || count != 6) return {};
    return add(numbers, device, argument);
  }

 private:
  Result<void> add(const std::array<std::uint64_t, 5>& numbers, const std::string& device,
                   std::uint32_t argument) {
    constexpr std::size_t kDevicesMax = 1024;
    if (numbers[3] == 0 || numbers[4] == 0) return {};  // an absent or empty tensor
    if (++trace_.operands > kOperandsMax) {
      return Error(Errc::kOutOfRange,
                   "more than " + std::to_string(kOperandsMax) + " tensors in all nodes");
    }
    const auto next = static_cast<std::uint32_t>(trace_.devices.size());
    const auto [at, fresh] = trace_.device_numbers.emplace(device, next);
    if (fresh) {
      if (next >= kDevicesMax) return in_.bad("more than 1024 devices");
      trace_.devices.push_back(device);
    }
    TensorRef ref;
    ref.tensor = numbers[0];
    ref.storage = numbers[1];
    ref.offset = numbers[2];
    ref.elements = numbers[3];
    ref.element_bytes = numbers[4];
    ref.device = at->second;
    ref.argument = argument;
    ref.element = element_;
    out_.push_back(ref);
    return {};
  }

  LiteralCursor& in_;
  TensorTrace& trace_;
  std::vector<TensorRef>& out_;
  std::uint32_t element_ = 0;
};

/// The device to plan for: the most used one other than the host, or the host if no other device
/// was used.
std::uint32_t main_device(const TensorTrace& trace) {
  std::vector<std::uint64_t> uses(trace.devices.size());
  for (const TraceNode& node : trace.nodes) {
    for (const auto* list : {&node.inputs, &node.outputs}) {
      for (const TensorRef& tensor : *list) ++uses[tensor.device];
    }
  }
  const auto rank = [&](std::size_t i) {
    const std::string& name = trace.devices[i];
    const bool host = name.starts_with("cpu") || name.starts_with("meta") || name.empty();
    return std::pair(host ? 0 : 1, uses[i]);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < trace.devices.size(); ++i) {
    if (rank(i) > rank(best)) best = i;
  }
  return static_cast<std::uint32_t>(best);
}

/// Removes the tensors of other devices. @return their number.
std::uint64_t keep_device(TensorTrace& trace, std::uint32_t device) {
  std::uint64_t dropped = 0;
  for (TraceNode& node : trace.nodes) {
    for (auto* list : {&node.inputs, &node.outputs}) {
      dropped += std::erase_if(*list, [device](const TensorRef& t) { return t.device != device; });
    }
  }
  return dropped;
}

}  // namespace

Result<void> TensorTrace::read_tensors(std::string_view text, std::vector<TensorRef>& out) {
  LiteralCursor in(text);
  TensorReader reader(in, *this, out);
  std::uint32_t argument = 0;
  return in.list([&]() -> Result<void> {
    const char next = in.peek();
    const std::uint32_t place = argument++;
    if (next == '[' || next == '(') return reader.read(place, 0);
    auto skipped = in.value();
    if (!skipped) return skipped.error();
    return {};
  });
}

Result<Imported> import_tensor_trace(TensorTrace trace, const Options& options) {
  if (trace.nodes.empty()) return Error(Errc::kInvalidArgument, "the trace has no nodes");
  std::sort(trace.nodes.begin(), trace.nodes.end(),
            [](const TraceNode& a, const TraceNode& b) { return a.id < b.id; });
  for (std::size_t i = 1; i < trace.nodes.size(); ++i) {
    if (trace.nodes[i].id == trace.nodes[i - 1].id) {
      return Error(Errc::kInvalidArgument,
                   "node id " + std::to_string(trace.nodes[i].id) + " occurs twice");
    }
  }
  Draft draft;
  if (!trace.devices.empty()) {
    const std::uint32_t device = main_device(trace);
    const std::uint64_t dropped = keep_device(trace, device);
    draft.remark("Tensors on " + clean_name(trace.devices[device]) + " are planned; " +
                 std::to_string(dropped) + " uses of tensors elsewhere are left out.");
  }
  if (auto replayed = replay_trace(trace, draft); !replayed) return replayed.error();
  return std::move(draft).finish(trace.name, options.rates);
}

}  // namespace ho::importers
