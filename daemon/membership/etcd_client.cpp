#include "daemon/membership/etcd_client.hpp"

#include <curl/curl.h>
#include <etcd.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/text/utf8.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

/// An answer lists at most 4096 nodes with some hundred bytes each.
constexpr std::size_t kAnswerBytesMax = 8 * kMiB;
constexpr long kAttemptMs = 500;
constexpr std::size_t kWordsMax = 512;  // bytes, of what a server says of a failure
constexpr std::size_t kLineMax = 200;   // the same, where it is not what etcd's gateway says

std::string to_json(const google::protobuf::Message& message) {
  std::string out;
  HO_CHECK(google::protobuf::util::MessageToJsonString(message, &out).ok());
  return out;
}

template <typename Message>
Result<Message> from_json(const std::string& text) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  Message out;
  if (!google::protobuf::util::JsonStringToMessage(text, &out, options).ok()) {
    return Error(Errc::kCorrupt, "the answer is not what etcd's gateway says");
  }
  return out;
}

BookVersion version_of(const pb::EtcdHeader& header) {
  return {header.cluster_id(), header.revision()};
}

std::vector<EtcdPair> to_pairs(const pb::EtcdRangeResponse& from) {
  std::vector<EtcdPair> out;
  for (const pb::EtcdKeyValue& pair : from.kvs()) out.push_back({pair.key(), pair.value()});
  return out;
}

/// The end of the range of all keys that begin with `prefix`, as etcd has it.
std::string end_of(std::string prefix) {
  HO_CHECK(!prefix.empty() && prefix.back() != '\xff');
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

std::size_t take(const char* bytes, std::size_t size, std::size_t count, void* into) {
  auto& answer = *static_cast<std::string*>(into);
  if (answer.size() + size * count > kAnswerBytesMax) return 0;  // ends the request
  answer.append(bytes, size * count);
  return size * count;
}

Error to_error(CURLcode code, const char* words) {
  const std::string text = *words == '\0' ? ::curl_easy_strerror(code) : words;
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT: return {Errc::kDeadline, "no answer within 500 ms"};
    case CURLE_WRITE_ERROR: return {Errc::kCorrupt, "the answer is too long"};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE: return {Errc::kPermissionDenied, text};
    default: return {Errc::kUnavailable, text};
  }
}

/// The first line of an answer, fit for a log.
std::string first_line(const std::string& answer) {
  std::string line = answer.substr(0, std::min(answer.find_first_of("\r\n"), kLineMax));
  const auto shown = [](char c) { return c >= ' ' && c <= '~'; };
  std::replace_if(line.begin(), line.end(), std::not_fn(shown), '?');
  return line;
}

/// What etcd means by an answer without success. Not all that it refuses reaches its gateway.
Error refusal(long status, const std::string& answer) {
  const auto failure = from_json<pb::EtcdFailure>(answer);
  std::string words = "HTTP " + std::to_string(status);
  if (failure && !failure->error().empty()) {
    words = std::string(utf8_prefix(failure->error(), kWordsMax));
  } else if (const std::string line = first_line(answer); !line.empty()) {
    words += ": " + line;
  }
  return {status == 401 || status == 403 ? Errc::kPermissionDenied : Errc::kUnavailable, words};
}

}  // namespace

struct EtcdClient::Connection {
  Connection() {
    // Once, before the first use; later calls only count.
    HO_CHECK(::curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
    curl = ::curl_easy_init();
    HO_CHECK(curl != nullptr);
    headers = ::curl_slist_append(nullptr, "Content-Type: application/json");
    HO_CHECK(headers != nullptr);
  }
  ~Connection() {
    ::curl_slist_free_all(headers);
    ::curl_easy_cleanup(curl);
    ::curl_global_cleanup();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  template <typename Value>
  void set(CURLoption option, Value value) const {
    HO_CHECK(::curl_easy_setopt(curl, option, value) == CURLE_OK);
  }

  CURL* curl = nullptr;
  curl_slist* headers = nullptr;
};

EtcdClient::EtcdClient(const EtcdSettings& settings)
    : settings_(settings), connection_(std::make_unique<Connection>()) {
  HO_CHECK(!settings_.endpoints.empty());
  const Connection& to = *connection_;
  to.set(CURLOPT_NOSIGNAL, 1L);
  to.set(CURLOPT_PROTOCOLS_STR, "http,https");
  to.set(CURLOPT_PROXY, "");  // not what the environment says
  to.set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  to.set(CURLOPT_HTTPHEADER, to.headers);
  to.set(CURLOPT_TIMEOUT_MS, kAttemptMs);
  to.set(CURLOPT_WRITEFUNCTION, &take);
  if (!settings_.tls) return;
  to.set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  to.set(CURLOPT_CAINFO, settings_.tls->authority.c_str());
  to.set(CURLOPT_SSLCERT, settings_.tls->certificate.c_str());
  to.set(CURLOPT_SSLKEY, settings_.tls->key.c_str());
}

EtcdClient::~EtcdClient() = default;

Result<std::string> EtcdClient::attempt(const std::string& url, const std::string& body) {
  const Connection& to = *connection_;
  std::string answer;
  std::array<char, CURL_ERROR_SIZE> words{};
  to.set(CURLOPT_URL, url.c_str());
  to.set(CURLOPT_POSTFIELDS, body.c_str());
  to.set(CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
  to.set(CURLOPT_WRITEDATA, &answer);
  to.set(CURLOPT_ERRORBUFFER, words.data());
  const CURLcode code = ::curl_easy_perform(to.curl);
  to.set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
  if (code != CURLE_OK) return to_error(code, words.data());
  long status = 0;
  HO_CHECK(::curl_easy_getinfo(to.curl, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK);
  if (status != 200) return refusal(status, answer);
  return answer;
}

Result<std::string> EtcdClient::post(const std::string& path, const std::string& body) {
  std::optional<Error> last;
  for (std::size_t i = 0; i < settings_.endpoints.size(); ++i) {
    if (last && canceled_.load()) return Error(Errc::kCanceled, "the daemon ends");
    const std::string& endpoint = settings_.endpoints[turn_];
    auto answer = attempt(endpoint + path, body);
    if (answer) return answer;
    last = answer.error().at(endpoint);
    turn_ = (turn_ + 1) % settings_.endpoints.size();
  }
  return *last;
}

Result<EtcdPage> EtcdClient::read_all(const std::string& prefix) {
  return read(prefix, end_of(prefix));
}

Result<EtcdPage> EtcdClient::read(const std::string& key, const std::string& end) {
  pb::EtcdRangeRequest request;
  request.set_key(key);
  request.set_range_end(end);
  const auto answer = post("/v3/kv/range", to_json(request));
  if (!answer) return answer.error();
  const auto page = from_json<pb::EtcdRangeResponse>(*answer);
  if (!page) return page.error();
  return EtcdPage{version_of(page->header()), to_pairs(*page)};
}

Result<EtcdOutcome> EtcdClient::commit(const EtcdTransaction& transaction) {
  pb::EtcdTxnRequest request;
  const auto compare = [&](const std::string& key, pb::EtcdCompare::Target target) {
    auto* const to = request.add_compare();
    to->set_key(key);
    to->set_target(target);
    to->set_result("EQUAL");
    return to;
  };
  for (const std::string& key : transaction.absent) {
    compare(key, pb::EtcdCompare::CREATE)->set_create_revision(0);
  }
  for (const EtcdPair& pair : transaction.equal) {
    compare(pair.key, pb::EtcdCompare::VALUE)->set_value(pair.value);
  }
  for (const EtcdPair& pair : transaction.put) {
    auto* const to = request.add_success()->mutable_request_put();
    to->set_key(pair.key);
    to->set_value(pair.value);
    to->set_lease(transaction.lease.id);
  }
  for (const std::string& key : transaction.erase) {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  }
  for (const std::string& key : transaction.look) {
    request.add_failure()->mutable_request_range()->set_key(key);
  }
  const auto answer = post("/v3/kv/txn", to_json(request));
  if (!answer) return answer.error();
  const auto response = from_json<pb::EtcdTxnResponse>(*answer);
  if (!response) return response.error();
  EtcdOutcome out;
  out.done = response->succeeded();
  if (out.done) return out;
  for (const pb::EtcdResponseOp& one : response->responses()) {
    for (EtcdPair& pair : to_pairs(one.response_range())) out.found.push_back(std::move(pair));
  }
  return out;
}

Result<EtcdLease> EtcdClient::grant(std::chrono::seconds time) {
  pb::EtcdLeaseRequest request;
  request.set_ttl_s(time.count());
  const auto answer = post("/v3/lease/grant", to_json(request));
  if (!answer) return answer.error();
  const auto lease = from_json<pb::EtcdLeaseResponse>(*answer);
  if (!lease) return lease.error();
  if (lease->id() == 0) return Error(Errc::kCorrupt, "etcd granted a lease without a number");
  return EtcdLease{lease->id()};
}

Result<void> EtcdClient::renew(EtcdLease lease) {
  pb::EtcdLeaseRequest request;
  request.set_id(lease.id);
  const auto answer = post("/v3/lease/keepalive", to_json(request));
  if (!answer) return answer.error();
  const auto renewed = from_json<pb::EtcdKeepAliveResponse>(*answer);
  if (!renewed) return renewed.error();
  if (renewed->result().ttl_s() <= 0) return Error(Errc::kNotFound, "the lease has ended");
  return {};
}

}  // namespace ho::daemon
