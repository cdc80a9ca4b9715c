#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/importers/traces.hpp"

// Parts of an ONNX file, for tests.
namespace ho::test {

using Sizes = std::vector<std::uint64_t>;

inline constexpr std::uint64_t kFloat = 1;
inline constexpr std::uint64_t kInt64 = 7;

inline WireWriter value_info(std::string_view name, std::uint64_t type, const Sizes& sizes) {
  WireWriter shape;
  for (const std::uint64_t size : sizes) shape.message(1, WireWriter().number(1, size));
  const auto tensor = WireWriter().number(1, type).message(2, shape);
  return WireWriter().bytes(1, name).message(2, WireWriter().message(1, tensor));
}

/// An initializer without its data.
inline WireWriter tensor(std::uint64_t type, const Sizes& dims, std::string_view name) {
  WireWriter out;
  for (const std::uint64_t size : dims) out.number(1, size);
  return out.number(2, type).bytes(8, name);
}

struct Attribute {
  std::string name;
  std::vector<std::int64_t> numbers = {};
};

inline WireWriter op(std::string_view type, const std::vector<std::string>& inputs,
                     const std::vector<std::string>& outputs,
                     const std::vector<Attribute>& attributes = {}) {
  WireWriter out;
  for (const std::string& name : inputs) out.bytes(1, name);
  for (const std::string& name : outputs) out.bytes(2, name);
  out.bytes(3, std::string(type) + ":" + outputs.front()).bytes(4, type);
  for (const Attribute& attribute : attributes) {
    WireWriter one;
    one.bytes(1, attribute.name);
    for (const std::int64_t n : attribute.numbers) one.number(8, static_cast<std::uint64_t>(n));
    if (attribute.numbers.size() == 1) {
      one.number(3, static_cast<std::uint64_t>(attribute.numbers.front()));
    }
    out.message(5, one);
  }
  return out;
}

inline WireWriter constant(const std::string& name, const Sizes& dims,
                           const std::vector<std::int64_t>& values) {
  WireWriter tensor;
  for (const std::uint64_t size : dims) tensor.number(1, size);
  tensor.number(2, kInt64);
  for (const std::int64_t value : values) tensor.number(7, static_cast<std::uint64_t>(value));
  WireWriter out;
  out.bytes(2, name).bytes(4, "Constant");
  out.message(5, WireWriter().bytes(1, "value").message(5, tensor));
  return out;
}

struct Model {
  WireWriter graph;

  Model& node(const WireWriter& message) {
    graph.message(1, message);
    return *this;
  }
  Model& input(std::string_view name, std::uint64_t type, const Sizes& sizes) {
    graph.message(11, value_info(name, type, sizes));
    return *this;
  }
  Model& output(std::string_view name, std::uint64_t type, const Sizes& sizes) {
    graph.message(12, value_info(name, type, sizes));
    return *this;
  }
  [[nodiscard]] std::string bytes() const {
    return WireWriter().number(1, 7).message(7, graph).text();
  }
};

}  // namespace ho::test
