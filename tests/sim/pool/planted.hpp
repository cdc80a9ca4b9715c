#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ho::test {

/// Rules of the protocol that a simulated part breaks on purpose, one in a run, to show that the
/// simulation would find it. They act in the ports and models of this folder, around production
/// code, which has no such switch.
enum class Planted : std::uint8_t {
  kNothing,
  // Daemons.
  kTornManifest,
  kRenewalNotKept,
  kSessionEndNotKept,
  kGrantNotKept,
  kTimeWithoutCounts,
  kLeaseAnewAtTakeover,
  kIdsGivenAgain,
  kKeyStays,
  kMemoryGivenAgain,
  kBytesLeak,
  kBytesFreeEarly,
  kDrainedGives,
  kStopCounts,
  kStopNotKept,
  kLeasesNeverEnd,
  kAnyIncarnation,
  kListLostWithBook,
  kSessionsEndWithBook,
  kHoldForgotten,
  kShareStays,
  // Jobs.
  kNotRenewedAfterResume,
  kSilentIsLost,
  kSameDaemonTaken,
  kOldKeysKept,
  kStaleForgotten,
  kStaleHomeCopied,
  kRepairWithoutCopy,
  kDomainsIgnored,
  kRepairIgnoresDomains,
  kNeverRepaired,
  kDrainIgnored,
  kLeaseIgnored,
  kOneHomeWritten,
  kSessionsNotClosed,
  kEndedKeysAttached,
  kPublishedEarly,
  // Drivers.
  kPutDoneEarly,
  kGetDoneEarly,
  kGivenBackGetWrites,
  kGivenBackEndsEarly,
};

struct PlantedName {
  Planted bug;
  std::string_view broken;
};

inline constexpr auto kPlanted = std::to_array<PlantedName>({
    {Planted::kTornManifest, "a record of the manifest counts before it is complete"},
    {Planted::kRenewalNotKept, "a renewal does not reach the manifest"},
    {Planted::kSessionEndNotKept, "the end of a session does not reach the manifest"},
    {Planted::kGrantNotKept, "a grant is answered before it is in the manifest"},
    {Planted::kTimeWithoutCounts, "time without a daemon counts against leases"},
    {Planted::kLeaseAnewAtTakeover, "each restart begins all leases anew"},
    {Planted::kIdsGivenAgain, "a restarted daemon gives numbers again"},
    {Planted::kKeyStays, "a key stays valid after its segment has ended"},
    {Planted::kMemoryGivenAgain, "memory that was freed is granted again with its bytes"},
    {Planted::kBytesLeak, "bytes of returned segments never become free"},
    {Planted::kBytesFreeEarly, "bytes count as free while their memory is there"},
    {Planted::kDrainedGives, "a drained node goes on giving memory"},
    {Planted::kStopCounts, "time in which the daemon was stopped counts against leases"},
    {Planted::kStopNotKept, "the time of a stop does not reach the manifest"},
    {Planted::kLeasesNeverEnd, "no lease ends"},
    {Planted::kAnyIncarnation, "a daemon started anew resumes a session of the last incarnation"},
    {Planted::kListLostWithBook, "without the phone book the list of nodes is empty"},
    {Planted::kSessionsEndWithBook, "without the phone book sessions end"},
    {Planted::kHoldForgotten, "a part of an object is dropped while a reader has it open"},
    {Planted::kShareStays, "a reader's key stays valid after the publisher's segment has ended"},
    {Planted::kNotRenewedAfterResume, "a resumed session is not renewed"},
    {Planted::kSilentIsLost, "one renewal without an answer loses the node"},
    {Planted::kSameDaemonTaken, "puts are repeated at the process that has the old ones"},
    {Planted::kOldKeysKept, "a resumed session goes on with the old keys"},
    {Planted::kStaleForgotten, "which home missed a value is forgotten between runs"},
    {Planted::kStaleHomeCopied, "repair copies from the home that missed the value"},
    {Planted::kRepairWithoutCopy, "repair does not copy the value"},
    {Planted::kDomainsIgnored, "two homes lie in one failure domain"},
    {Planted::kRepairIgnoresDomains, "repair puts the new home beside the other one"},
    {Planted::kNeverRepaired, "lost homes are not replaced"},
    {Planted::kDrainIgnored, "homes stay on drained nodes"},
    {Planted::kLeaseIgnored, "operations outlive the lease on the memory"},
    {Planted::kOneHomeWritten, "a write between steps reaches one home and counts for both"},
    {Planted::kSessionsNotClosed, "a job that ends renews its sessions forever"},
    {Planted::kEndedKeysAttached, "memory is attached by a key of the daemon before the last"},
    {Planted::kPublishedEarly, "a part is published before its bytes have arrived"},
    {Planted::kPutDoneEarly, "a put is complete before it is visible"},
    {Planted::kGetDoneEarly, "a get is complete before all bytes are there"},
    {Planted::kGivenBackGetWrites, "a get that was given back writes the memory later"},
    {Planted::kGivenBackEndsEarly, "a put that was given back counts as ended at once"},
});

}  // namespace ho::test
