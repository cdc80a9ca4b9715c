#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.hpp"
#include "common/transport/ofi/wire.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// A libfabric code (positive) as ours.
[[nodiscard]] Errc errc_of_fabric(int code);
/// An Error from a libfabric return value (negative) with fi_strerror behind `what`.
[[nodiscard]] Error fabric_error(std::int64_t returned, const std::string& what);

/// Closes any libfabric object.
struct FabricClose {
  template <typename Object>
  void operator()(Object* object) const {
    fi_close(&object->fid);
  }
};
template <typename Object>
using FabricHandle = std::unique_ptr<Object, FabricClose>;

struct InfoFree {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using InfoHandle = std::unique_ptr<fi_info, InfoFree>;

/// A registered piece of memory.
using MemoryHandle = FabricHandle<fid_mr>;

/// Everything one libfabric endpoint needs, from fabric to completion queue, for itself alone: so
/// that closing one touches no other. One owner thread (FI_THREAD_DOMAIN); progress is made only in
/// calls to it. A resource: destroying it ends whatever is in flight without further completions.
class Endpoint {
 public:
  struct Reach {
    std::uint32_t depth = 0;  ///< entries of the completion queue
    std::string domain = {};  ///< empty: any
    std::string source = {};  ///< raw address to come from, in the target's format; empty: any
  };
  /// For an initiator: reaches the target at `address` only.
  [[nodiscard]] static Result<std::unique_ptr<Endpoint>> reach(const OfiAddress& address,
                                                               const Reach& how);
  struct Listen {
    std::string provider;
    std::string domain;   ///< empty: any
    std::string address;  ///< numeric; empty: as the provider likes
  };
  /// For a target: listens, and has a descriptor to wait on.
  [[nodiscard]] static Result<std::unique_ptr<Endpoint>> listen(const Listen& listen);

  /// Bits of FI_MR_* that the provider insists on.
  [[nodiscard]] std::uint64_t mr_mode() const {
    return static_cast<std::uint64_t>(info_->domain_attr->mr_mode);
  }
  [[nodiscard]] const fi_info& info() const { return *info_; }
  [[nodiscard]] fid_ep* ep() const { return ep_.get(); }
  [[nodiscard]] fid_cq* cq() const { return cq_.get(); }
  [[nodiscard]] fid_fabric* fabric() const { return fabric_.get(); }
  [[nodiscard]] fi_addr_t peer() const { return peer_; }
  /// The raw address others reach it by.
  [[nodiscard]] Result<std::string> own_name() const;

  struct Registration {
    std::span<std::byte> memory;
    std::uint64_t access = 0;         ///< FI_READ, FI_REMOTE_WRITE, ...
    std::uint64_t requested_key = 0;  ///< where the provider lets us choose
  };
  [[nodiscard]] Result<MemoryHandle> register_memory(const Registration& registration) const;

 private:
  Endpoint() = default;
  [[nodiscard]] Result<void> open(fi_cq_attr cq_attr);

  // Destroyed from the last to the first, which is the order libfabric asks for.
  InfoHandle info_;
  FabricHandle<fid_fabric> fabric_;
  FabricHandle<fid_domain> domain_;
  FabricHandle<fid_av> av_;
  FabricHandle<fid_cq> cq_;
  FabricHandle<fid_ep> ep_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
};

}  // namespace ho::transport
