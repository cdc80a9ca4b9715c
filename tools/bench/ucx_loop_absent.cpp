#include "tools/bench/loop.hpp"

namespace ho::bench {

Result<Limit> make_ucx_limit(const LoopShape& /*shape*/) {
  return Error(Errc::kUnsupported, "built without UCX");
}

}  // namespace ho::bench
