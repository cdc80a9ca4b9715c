// libfabric's functions as this program links them: they call those of the module.
#include <dlfcn.h>
#include <rdma/fi_errno.h>

#include <atomic>

#include "common/base/check.hpp"
#include "common/transport/loader/open_module.hpp"
#include "common/transport/loader/own_files.hpp"
#include "common/transport/ofi/libfabric_module.hpp"
#include "common/transport/ofi/ofi_transport.hpp"

namespace ho::transport {
namespace {

std::atomic<const OfiModule*> opened_module{nullptr};

const OfiModule& module() {
  const OfiModule* const it = opened_module.load();
  HO_CHECK(it != nullptr);
  return *it;
}

}  // namespace

Result<void> open_libfabric() {
  if (opened_module.load() != nullptr) return {};
  const auto file = find_own_file(kOfiModuleFile);
  if (!file) return Error(Errc::kUnsupported, file.error().context());
  const auto handle = open_module(file->string());
  if (!handle) return handle.error();
  const auto* const found = static_cast<const OfiModule*>(::dlsym(*handle, kOfiModuleSymbol));
  if (found == nullptr) return unusable_module(file->string(), "not a module of hyperoffload's");
  if (found->abi != kOfiModuleAbi) return unusable_module(file->string(), "is of another build");
  opened_module.store(found);
  return {};
}

}  // namespace ho::transport

extern "C" {

int fi_getinfo(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
               const fi_info* hints, fi_info** info) {
  return ho::transport::module().getinfo(version, node, service, flags, hints, info);
}
void fi_freeinfo(fi_info* info) { ho::transport::module().freeinfo(info); }
fi_info* fi_dupinfo(const fi_info* info) { return ho::transport::module().dupinfo(info); }
int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  return ho::transport::module().fabric(attributes, fabric, context);
}
int fi_open(std::uint32_t version, const char* name, void* attributes, std::size_t attributes_bytes,
            std::uint64_t flags, fid** object, void* context) {
  return ho::transport::module().open(version, name, attributes, attributes_bytes, flags, object,
                                      context);
}
int fi_getparams(fi_param** parameters, int* count) {
  return ho::transport::module().getparams(parameters, count);
}
void fi_freeparams(fi_param* parameters) { ho::transport::module().freeparams(parameters); }
const char* fi_strerror(int number) { return ho::transport::module().strerror(number); }

}  // extern "C"
