#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace ho {

/// A type of a tensor's elements by one name, torch's: "bfloat16" for "bf16" and "bfloat16". A name
/// that is not known stands for itself: programs may have types of their own.
[[nodiscard]] constexpr std::string_view element_type(std::string_view name) {
  struct Names {
    std::string_view name;
    std::string_view alias;
  };
  // Short names, those of C, and those of Python's buffers, which publishers of complex numbers
  // had.
  constexpr std::array kAliases{
      Names{"float64", "f64"},   Names{"float64", "double"}, Names{"float32", "f32"},
      Names{"float32", "float"}, Names{"float16", "f16"},    Names{"float16", "half"},
      Names{"bfloat16", "bf16"}, Names{"complex128", "Zd"},  Names{"complex64", "Zf"},
      Names{"int64", "i64"},     Names{"int32", "i32"},      Names{"int16", "i16"},
      Names{"int8", "i8"},       Names{"uint64", "u64"},     Names{"uint32", "u32"},
      Names{"uint16", "u16"},    Names{"uint8", "u8"}};
  const auto* const found = std::find_if(kAliases.begin(), kAliases.end(),
                                         [&](const Names& one) { return one.alias == name; });
  return found == kAliases.end() ? name : found->name;
}

}  // namespace ho
