// The one symbol of the driver's module.
#include "common/transport/ucx/ucx_transport.hpp"

extern "C" {
// Declared first: a constant would otherwise be known to this file alone.
extern const ho::transport::UcxModule ho_ucx_module __attribute__((visibility("default")));
const ho::transport::UcxModule ho_ucx_module = {
    .set_log = ho::transport::set_ucx_log,
    .make_transport = ho::transport::open_ucx_transport,
    .make_target = ho::transport::open_ucx_target,
};
}
