// The one symbol of the driver's module.
#include <rdma/fi_errno.h>

#include "common/transport/ofi/libfabric_module.hpp"

extern "C" {
// Declared first: a constant would otherwise be known to this file alone.
extern const ho::transport::OfiModule ho_ofi_module __attribute__((visibility("default")));
const ho::transport::OfiModule ho_ofi_module = {
    .getinfo = &fi_getinfo,
    .freeinfo = &fi_freeinfo,
    .dupinfo = &fi_dupinfo,
    .fabric = &fi_fabric,
    .open = &fi_open,
    .getparams = &fi_getparams,
    .freeparams = &fi_freeparams,
    .strerror = &fi_strerror,
};
}
