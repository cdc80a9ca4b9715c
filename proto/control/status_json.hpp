#pragma once

#include <vector>

#include "common/text/json.hpp"
#include "proto/control/control_values.hpp"

namespace ho {

// JSON that commands print and daemons serve: the same words in both. Each adds members to the
// object that is open.

void add_status_json(const NodeStatus& status, JsonWriter& json);
void add_membership_json(const MembershipStatus& membership, JsonWriter& json);
void add_drivers_json(const std::vector<DriverOffer>& offers, const std::vector<DriverOff>& off,
                      JsonWriter& json);
void add_session_json(const SessionInfo& session, JsonWriter& json);

}  // namespace ho
