#pragma once

#include <string>

#include "common/base/result.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// What names this machine in the phone book: as configured, else derived from /etc/machine-id,
/// which itself is not for others to know.
/// @return kNotFound: the machine has no such file.
[[nodiscard]] Result<std::string> machine_name(const EtcdSettings& settings);

/// The number of this node, where the configuration leaves it to etcd: the one in `id_file`, else
/// etcd's answer, which is written there. Blocks for up to some seconds.
/// @return what etcd answers, or the file's error.
[[nodiscard]] Result<NodeId> find_node_number(const EtcdSettings& settings);

}  // namespace ho::daemon
