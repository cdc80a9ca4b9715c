#include "common/transport/ofi/registration_cache.hpp"

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

#include <mutex>

#include "common/transport/ofi/endpoint.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/provider.hpp"

namespace ho::transport {
namespace {

// libfabric keeps pointers to these for as long as the process lives.
fi_ops_mem_monitor operations{};
fid_mem_monitor monitor{};

int refuse_start(fid_mem_monitor* /*monitor*/) { return -FI_ENOSYS; }
// Not called for a monitor that never starts.
void stop(fid_mem_monitor* /*monitor*/) {}
int subscribe(fid_mem_monitor* /*monitor*/, const void* /*address*/, std::size_t /*length*/) {
  return -FI_ENOSYS;
}
void unsubscribe(fid_mem_monitor* /*monitor*/, const void* /*address*/, std::size_t /*length*/) {}
bool valid(fid_mem_monitor* /*monitor*/, const void* /*address*/, std::size_t /*length*/) {
  return false;
}

}  // namespace

Result<void> turn_off_registration_cache() {
  static std::mutex mutex;
  static bool off = false;
  const std::lock_guard lock(mutex);
  if (off) return {};
  if (auto there = open_libfabric(); !there) return there;
  // libfabric's own initialization comes first, or what it reads from the environment would win.
  fi_param* parameters = nullptr;
  int count = 0;
  if (fi_getparams(&parameters, &count) == 0) fi_freeparams(parameters);
  operations.size = sizeof operations;
  operations.start = refuse_start;
  operations.stop = stop;
  operations.subscribe = subscribe;
  operations.unsubscribe = unsubscribe;
  operations.valid = valid;
  monitor.fid.fclass = FI_CLASS_MEM_MONITOR;
  monitor.export_ops = &operations;
  const int returned = fi_import(kFabricVersion, "mr_cache", nullptr, 0, 0, &monitor.fid, nullptr);
  if (returned != 0) return fabric_error(returned, "turning libfabric's registration cache off");
  off = true;
  return {};
}

}  // namespace ho::transport
