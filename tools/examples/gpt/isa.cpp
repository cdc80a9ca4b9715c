#include "tools/examples/gpt/elementwise.hpp"

namespace ho::gpt {

const Elementwise& elementwise() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    return isa::avx512();
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return isa::avx2();
#endif
  return isa::baseline();
}

}  // namespace ho::gpt
