#include "common/model/address.hpp"

#include <array>
#include <cstdio>

namespace ho {

namespace {

const char* tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDevice: return "device";
    case Tier::kDdr: return "ddr";
    case Tier::kFlash: return "flash";
  }
  return "";
}

}  // namespace

std::string GlobalAddress::text() const {
  const Parts all = parts();
  std::array<char, 40> out{};
  const int length =
      std::snprintf(out.data(), out.size(), "%u:%s:0x%llx", unsigned{all.node.value()},
                    tier_name(all.tier), static_cast<unsigned long long>(all.offset_bytes));
  HO_CHECK(length > 0 && static_cast<std::size_t>(length) < out.size());
  return {out.data(), static_cast<std::size_t>(length)};
}

}  // namespace ho
