#include "daemon/membership/phone_book.hpp"

#include <etcd.pb.h>
#include <google/protobuf/util/json_util.h>
#include <openssl/evp.h>

#include <array>
#include <charconv>
#include <set>

#include "common/base/check.hpp"
#include "proto/control/control_address.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;
using google::protobuf::util::JsonParseOptions;

/// How often another machine may take the number that this one was about to take.
constexpr int kRacesMax = 16;
constexpr std::size_t kNameBytesMax = 255;
constexpr int kAddressesMax = 16;
constexpr std::size_t kAddressBytesMax = 300;

std::optional<NodeId> parse_node(std::string_view text) {
  std::uint16_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number > kNodeIdMax) return std::nullopt;
  return NodeId(number);
}

/// The part of a key behind its last '/'.
std::string_view last_part(std::string_view key) { return key.substr(key.rfind('/') + 1); }

std::string to_text(const Member& member) {
  pb::MemberRecord record;
  record.set_node_id(member.info.node.value());
  record.set_name(member.info.name);
  for (const std::string& one : member.info.control_addresses) record.add_control_addresses(one);
  record.set_instance(member.instance);
  std::string out;
  HO_CHECK(google::protobuf::util::MessageToJsonString(record, &out).ok());
  return out;
}

/// Others write there too: what makes no sense is nobody.
std::optional<Member> to_member(const EtcdPair& pair) {
  JsonParseOptions options;
  options.ignore_unknown_fields = true;
  pb::MemberRecord record;
  if (!google::protobuf::util::JsonStringToMessage(pair.value, &record, options).ok()) return {};
  const auto node = parse_node(last_part(pair.key));
  if (!node || record.node_id() != node->value()) return {};
  if (record.name().size() > kNameBytesMax) return {};
  if (record.control_addresses_size() == 0 || record.control_addresses_size() > kAddressesMax) {
    return {};
  }
  Member out;
  out.info.node = *node;
  out.info.name = record.name();
  out.instance = record.instance();
  for (const std::string& address : record.control_addresses()) {
    if (address.size() > kAddressBytesMax || !ControlAddress::parse(address)) return {};
    out.info.control_addresses.push_back(address);
  }
  return out;
}

const std::string* value_of(const std::vector<EtcdPair>& pairs, const std::string& key) {
  for (const EtcdPair& pair : pairs) {
    if (pair.key == key) return &pair.value;
  }
  return nullptr;
}

}  // namespace

std::string PhoneBook::id_key(NodeId node) const {
  return prefix_ + "/ids/" + std::to_string(node.value());
}

std::string PhoneBook::alive_key(NodeId node) const {
  return prefix_ + "/alive/" + std::to_string(node.value());
}

/// Gives a number to this machine, if neither has another one.
EtcdTransaction PhoneBook::entry_of(NodeId node) const {
  EtcdTransaction entry;
  entry.absent = {machine_key(), id_key(node)};
  entry.put = {{machine_key(), std::to_string(node.value())}, {id_key(node), machine_}};
  entry.look = entry.absent;
  return entry;
}

Result<NodeId> PhoneBook::take_number() {
  for (int race = 0; race < kRacesMax; ++race) {
    const auto mine = etcd_.read(machine_key());
    if (!mine) return mine.error();
    if (!mine->pairs.empty()) {
      const auto node = parse_node(mine->pairs.front().value);
      if (!node) return Error(Errc::kCorrupt, machine_key() + " is not a number of a node");
      return *node;
    }
    const auto given = etcd_.read_all(prefix_ + "/ids/");
    if (!given) return given.error();
    std::set<NodeId> taken;
    for (const EtcdPair& pair : given->pairs) {
      if (const auto node = parse_node(last_part(pair.key))) taken.insert(*node);
    }
    std::uint32_t free = 0;
    while (free <= kNodeIdMax && taken.count(NodeId(static_cast<std::uint16_t>(free))) > 0) ++free;
    if (free > kNodeIdMax) return Error(Errc::kExhausted, "all numbers of nodes are given");
    const NodeId node(static_cast<std::uint16_t>(free));
    const auto outcome = etcd_.commit(entry_of(node));
    if (!outcome) return outcome.error();
    if (outcome->done) return node;
  }
  return Error(Errc::kBusy, "other machines took each number first");
}

Result<void> PhoneBook::keep_number(NodeId node) {
  const auto outcome = etcd_.commit(entry_of(node));
  if (!outcome) return outcome.error();
  if (outcome->done) return {};
  const std::string number = std::to_string(node.value());
  const std::string* const owner = value_of(outcome->found, id_key(node));
  const std::string* const own = value_of(outcome->found, machine_key());
  if (owner != nullptr && *owner != machine_) {
    return Error(Errc::kConflict,
                 "node " + number + " is the number of machine " + *owner + ", not of this one");
  }
  if (own != nullptr && *own != number) {
    return Error(Errc::kConflict,
                 "this machine has the number " + *own + " and runs as node " + number);
  }
  if (owner != nullptr && own != nullptr) return {};
  return Error(Errc::kConflict, id_key(node) + " and " + machine_key() + " do not agree");
}

Result<void> PhoneBook::sign_in(const Member& self, EtcdLease lease) {
  EtcdTransaction entry;
  entry.equal = {{id_key(self.info.node), machine_}};
  entry.put = {{alive_key(self.info.node), to_text(self)}};
  entry.lease = lease;
  const auto outcome = etcd_.commit(entry);
  if (!outcome) return outcome.error();
  if (!outcome->done) return Error(Errc::kNotFound, "the number is not entered");
  return {};
}

Result<void> PhoneBook::sign_out(NodeId node) {
  EtcdTransaction entry;
  entry.erase = {alive_key(node)};
  const auto outcome = etcd_.commit(entry);
  if (!outcome) return outcome.error();
  return {};
}

std::string PhoneBook::claim_key(const std::string& name) const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  HO_CHECK(EVP_Digest(name.data(), name.size(), digest.data(), &length, EVP_sha256(), nullptr) ==
           1);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string key = prefix_ + "/claims/";
  for (unsigned int i = 0; i < length; ++i) {
    key += kDigits[digest[i] >> 4U];
    key += kDigits[digest[i] & 15U];
  }
  return key;
}

Result<void> PhoneBook::claim(const Claim& claim, EtcdLease lease) {
  const std::string key = claim_key(claim.name);
  EtcdTransaction take;
  take.absent = {key};
  take.put = {{key, claim.value}};
  take.lease = lease;
  take.look = {key};
  auto outcome = etcd_.commit(take);
  if (!outcome) return outcome.error();
  if (outcome->done) return {};
  // With our value it may be under a lease that ends, as after etcd was away.
  EtcdTransaction renew;
  renew.equal = {{key, claim.value}};
  renew.put = take.put;
  renew.lease = lease;
  outcome = etcd_.commit(renew);
  if (!outcome) return outcome.error();
  if (outcome->done) return {};
  return Error(Errc::kAlreadyExists, "another one has it in this pool");
}

Result<void> PhoneBook::unclaim(const Claim& claim) {
  EtcdTransaction give;
  give.equal = {{claim_key(claim.name), claim.value}};
  give.erase = {claim_key(claim.name)};
  const auto outcome = etcd_.commit(give);
  if (!outcome) return outcome.error();
  return {};
}

Result<PhoneBook::Glance> PhoneBook::glance(NodeId self) {
  const auto page = etcd_.read(alive_key(self));
  if (!page) return page.error();
  Glance out;
  out.version = page->version;
  if (!page->pairs.empty()) out.self = to_member(page->pairs.front());
  return out;
}

Result<PhoneBook::Page> PhoneBook::read() {
  const auto page = etcd_.read_all(prefix_ + "/alive/");
  if (!page) return page.error();
  Page out;
  out.version = page->version;
  for (const EtcdPair& pair : page->pairs) {
    if (auto member = to_member(pair)) out.members.push_back(std::move(*member));
  }
  return out;
}

}  // namespace ho::daemon
