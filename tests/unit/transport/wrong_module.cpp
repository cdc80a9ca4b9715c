// Three files that load and are not the ucx driver's module: without its symbol, of an older
// version, and of another build.
#include "common/transport/ucx/loader/ucx_module.hpp"

extern "C" {
#if defined(HO_WRONG_none)
extern const int ho_something_else __attribute__((visibility("default")));
const int ho_something_else = 0;
#elif defined(HO_WRONG_old)
/// All that an older version is known to have in common.
extern const std::uint32_t ho_ucx_module __attribute__((visibility("default")));
const std::uint32_t ho_ucx_module = 0;
#else
extern const ho::transport::UcxModule ho_ucx_module __attribute__((visibility("default")));
const ho::transport::UcxModule ho_ucx_module = {.build = "0.0.0, another compiler"};
#endif
}
