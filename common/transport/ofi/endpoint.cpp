#include "common/transport/ofi/endpoint.hpp"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/provider_names.hpp"

namespace ho::transport {
Errc errc_of_fabric(int code) {
  switch (code) {
    case FI_EACCES:
    case FI_EPERM:
    case FI_EKEYREJECTED: return Errc::kPermissionDenied;
    case FI_EINVAL: return Errc::kInvalidArgument;
    case FI_ENOMEM: return Errc::kExhausted;
    case FI_ENODATA:
    case FI_ENOSYS: return Errc::kUnsupported;
    case FI_EADDRINUSE: return Errc::kAlreadyExists;
    case FI_EIO: return Errc::kIo;
    default: return Errc::kUnavailable;
  }
}

Error fabric_error(std::int64_t returned, const std::string& what) {
  const int code = static_cast<int>(-returned);
  return Error(errc_of_fabric(code), what + ": " + fi_strerror(code));
}

Result<std::unique_ptr<Endpoint>> Endpoint::reach(const OfiAddress& address, const Reach& how) {
  const auto hints = common_hints(address.provider);
  if (!hints) return hints.error();
  fi_info& asked = **hints;
  asked.caps = FI_RMA | FI_READ | FI_WRITE;
  asked.addr_format = address.format;
  asked.dest_addr = ::malloc(address.name.size());  // freed by fi_freeinfo
  if (asked.dest_addr == nullptr) return Error(Errc::kExhausted, "an address");
  std::memcpy(asked.dest_addr, address.name.data(), address.name.size());
  asked.dest_addrlen = address.name.size();
  if (!how.source.empty()) {
    asked.src_addr = ::malloc(how.source.size());
    if (asked.src_addr == nullptr) return Error(Errc::kExhausted, "an address");
    std::memcpy(asked.src_addr, how.source.data(), how.source.size());
    asked.src_addrlen = how.source.size();
  }
  Wanted wanted;
  wanted.domain = how.domain;
  auto info = choose_info(asked, wanted);
  if (!info) return info.error();

  std::unique_ptr<Endpoint> endpoint(new Endpoint);
  endpoint->info_ = std::move(*info);
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_CONTEXT;
  cq_attr.size = how.depth;
  cq_attr.wait_obj = FI_WAIT_NONE;
  const auto opened = endpoint->open(cq_attr);
  if (!opened) return opened.error();
  const int inserted =
      fi_av_insert(endpoint->av_.get(), address.name.data(), 1, &endpoint->peer_, 0, nullptr);
  if (inserted != 1) return Error(Errc::kInvalidArgument, "libfabric refuses the peer's address");
  return endpoint;
}

Result<std::unique_ptr<Endpoint>> Endpoint::listen(const Listen& listen) {
  const auto hints = common_hints(listen.provider);
  if (!hints) return hints.error();
  (*hints)->caps = FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE;
  Wanted wanted;
  wanted.domain = listen.domain;
  if (!listen.address.empty()) {
    wanted.node = listen.address.c_str();
    wanted.service = "0";  // the system chooses
    wanted.flags = FI_SOURCE;
  }
  auto info = choose_info(**hints, wanted);
  if (!info) return info.error();

  std::unique_ptr<Endpoint> endpoint(new Endpoint);
  endpoint->info_ = std::move(*info);
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_CONTEXT;
  cq_attr.size = 256;  // one-sided accesses leave no entry at the target
  cq_attr.wait_obj = FI_WAIT_FD;
  const auto opened = endpoint->open(cq_attr);
  if (!opened) return opened.error();
  return endpoint;
}

Result<void> Endpoint::open(fi_cq_attr cq_attr) {
  fid_fabric* fabric = nullptr;
  int returned = fi_fabric(info_->fabric_attr, &fabric, nullptr);
  if (returned != 0) return fabric_error(returned, "fi_fabric");
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  returned = fi_domain(fabric, info_.get(), &domain, nullptr);
  if (returned != 0) return fabric_error(returned, "fi_domain");
  domain_.reset(domain);
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_TABLE;
  fid_av* av = nullptr;
  returned = fi_av_open(domain, &av_attr, &av, nullptr);
  if (returned != 0) return fabric_error(returned, "fi_av_open");
  av_.reset(av);
  fid_cq* cq = nullptr;
  returned = fi_cq_open(domain, &cq_attr, &cq, nullptr);
  if (returned == -FI_ENOSYS && cq_attr.wait_obj == FI_WAIT_FD) {
    return Error(Errc::kUnsupported, std::string("the provider \"") +
                                         info_->fabric_attr->prov_name +
                                         "\" has nothing to sleep on until a peer comes");
  }
  if (returned != 0) return fabric_error(returned, "fi_cq_open");
  cq_.reset(cq);
  fid_ep* ep = nullptr;
  returned = fi_endpoint(domain, info_.get(), &ep, nullptr);
  if (returned != 0) return fabric_error(returned, "fi_endpoint");
  ep_.reset(ep);
  returned = fi_ep_bind(ep, &av->fid, 0);
  if (returned != 0) return fabric_error(returned, "binding the address vector");
  returned = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
  if (returned != 0) return fabric_error(returned, "binding the completion queue");
  returned = fi_enable(ep);
  if (returned == 0) return {};
  const Error error = fabric_error(returned, "fi_enable");
  if (!serves_by_device(info_->fabric_attr->prov_name)) return error;
  // By far the likeliest cause: 131072 entries, whatever is asked for, and soft-RoCE has 32767.
  return Error(error.code(), error.context() +
                                 "; libfabric's queue for 1024 peers may be larger than the device "
                                 "has: FI_UNIVERSE_SIZE=16 in the environment makes it smaller");
}

Result<std::string> Endpoint::own_name() const {
  char name[256];
  std::size_t length = sizeof name;
  const int returned = fi_getname(&ep_->fid, name, &length);
  if (returned != 0) return fabric_error(returned, "fi_getname");
  return std::string(name, length);
}

Result<MemoryHandle> Endpoint::register_memory(const Registration& registration) const {
  fid_mr* mr = nullptr;
  int returned = fi_mr_reg(domain_.get(), registration.memory.data(), registration.memory.size(),
                           registration.access, 0, registration.requested_key, 0, &mr, nullptr);
  if (returned != 0) return fabric_error(returned, "fi_mr_reg");
  MemoryHandle handle(mr);
  if ((mr_mode() & FI_MR_ENDPOINT) != 0) {
    returned = fi_mr_bind(mr, &ep_->fid, 0);
    if (returned == 0) returned = fi_mr_enable(mr);
    if (returned != 0) return fabric_error(returned, "fi_mr_enable");
  }
  return handle;
}

}  // namespace ho::transport
