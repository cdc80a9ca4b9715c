#include "common/tls/authority.hpp"

#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <utility>

#include "common/base/check.hpp"
#include "common/system/unique_fd.hpp"
#include "common/tls/openssl.hpp"

namespace ho::tls {
namespace {

constexpr std::size_t kNameBytesMax = 64;   // X.520's limit for a common name
constexpr std::size_t kHostBytesMax = 253;  // DNS's limit for a name, as text
constexpr auto kClockSlack = std::chrono::minutes(5);
constexpr int kSerialBits = 127;

struct NewFile {
  std::string path;
  std::string text;
  mode_t mode;
};

Result<void> check_name(const std::string& name, std::size_t bytes_max) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  };
  const bool good = !name.empty() && name.size() <= bytes_max && name.front() != '.' &&
                    name.front() != '-' && std::all_of(name.begin(), name.end(), fits);
  if (good) return {};
  return Error(Errc::kInvalidArgument,
               "\"" + name + "\": a name has 1 to " + std::to_string(bytes_max) +
                   " letters, digits, '.', '-' or '_', and begins with a letter, digit or '_'");
}

/// Makes a folder of mode 0700, if it is not there.
Result<void> make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return errno_error(errno, folder);
}

/// Writes all of them, or none: what is there is never replaced.
Result<void> write_new(const std::vector<NewFile>& files) {
  for (const NewFile& file : files) {
    struct stat info {};
    if (::lstat(file.path.c_str(), &info) != 0) continue;
    return Error(Errc::kAlreadyExists, file.path + " exists; it is not replaced");
  }
  std::vector<std::string> made;
  const auto give_up = [&](const Error& why) {
    for (const std::string& path : made) ::unlink(path.c_str());
    return why;
  };
  for (const NewFile& file : files) {
    const UniqueFd fd(
        ::open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file.mode));
    if (!fd.valid()) return give_up(errno_error(errno, file.path));
    made.push_back(file.path);
    // The mode counts, not the caller's umask: a certificate is for all to read.
    const bool written = ::fchmod(fd.get(), file.mode) == 0 &&
                         ::write(fd.get(), file.text.data(), file.text.size()) ==
                             static_cast<ssize_t>(file.text.size()) &&
                         ::fsync(fd.get()) == 0;
    if (!written) return give_up(errno_error(errno == 0 ? ENOSPC : errno, file.path));
  }
  return {};
}

std::string pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  HO_CHECK(bio != nullptr && PEM_write_bio_X509(bio.get(), certificate) == 1);
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(length)};
}

std::string pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_secmem()));
  HO_CHECK(bio != nullptr && PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0,
                                                           nullptr, nullptr) == 1);
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(length)};
}

PrivateKey make_key() {
  PrivateKey key(EVP_EC_gen("P-256"));
  HO_CHECK(key != nullptr);
  return key;
}

void add_to_subject(X509* certificate, const char* field, const std::string& text) {
  HO_CHECK(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), field, MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(text.data()),
                                      static_cast<int>(text.size()), -1, 0) == 1);
}

/// @param authority  that signs it: the certificate itself, or another.
void extend(X509* certificate, X509* authority, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, authority, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  HO_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

Certificate begin(const std::string& name, const Validity& validity, EVP_PKEY* key) {
  Certificate made(X509_new());
  HO_CHECK(made != nullptr && X509_set_version(made.get(), X509_VERSION_3) == 1);
  const std::unique_ptr<BIGNUM, FreedBy<BN_free>> serial(BN_new());
  HO_CHECK(serial != nullptr &&
           BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
           BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(made.get())) != nullptr);
  const auto seconds = std::chrono::system_clock::to_time_t(validity.begins);
  const auto end = std::chrono::system_clock::to_time_t(validity.begins + validity.lasts);
  HO_CHECK(ASN1_TIME_set(X509_getm_notBefore(made.get()), seconds) != nullptr &&
           ASN1_TIME_set(X509_getm_notAfter(made.get()), end) != nullptr);
  HO_CHECK(X509_set_pubkey(made.get(), key) == 1);
  add_to_subject(made.get(), "CN", name);
  return made;
}

void sign(X509* certificate, EVP_PKEY* key) {
  HO_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
}

/// "DNS:node3,IP:10.0.0.3". A daemon's own name counts as a host's.
Result<std::string> alternative_names(const Request& request) {
  std::vector<std::string> all = request.addresses;
  if (request.role == Role::kDaemon && request.name.find('_') == std::string::npos) {
    all.insert(all.begin(), request.name);
  }
  std::string out;
  for (const std::string& address : all) {
    const bool numeric = is_numeric(address);
    if (!numeric) {
      if (auto good = check_name(address, kHostBytesMax); !good) return good.error();
    }
    out += (out.empty() ? "" : ",") + std::string(numeric ? "IP:" : "DNS:") + address;
  }
  return out;
}

struct Authority {
  Certificate certificate;
  std::string text;
  PrivateKey key;
};

Result<Authority> open_authority(const std::string& folder) {
  const std::string file = folder + "/" + std::string(kAuthorityName);
  const std::string key_file = folder + "/" + std::string(kAuthorityKeyName);
  auto text = read_text(file);
  if (!text) {
    if (text.error().code() != Errc::kNotFound) return text.error();
    return Error(Errc::kNotFound,
                 folder + " has no authority; make one: hyperoffload ca init " + folder);
  }
  auto certificates = parse_certificates(file, *text);
  if (!certificates) return certificates.error();
  auto secret = read_secret(key_file);
  if (!secret) return secret.error();
  auto key = parse_key(key_file, *secret);
  if (!key) return key.error();
  Authority out{std::move(certificates->front()), std::move(*text), std::move(*key)};
  if (X509_check_private_key(out.certificate.get(), out.key.get()) != 1) {
    ERR_clear_error();
    return Error(Errc::kInvalidArgument, key_file + ": not the key of " + file);
  }
  return out;
}

}  // namespace

Validity valid_from_now(std::chrono::seconds lasts) {
  return {std::chrono::system_clock::now() - kClockSlack, lasts + kClockSlack};
}

Result<CertificateFacts> make_authority(const std::string& folder, const std::string& name,
                                        const Validity& validity) {
  if (auto good = check_name(name, kNameBytesMax); !good) return good.error();
  const PrivateKey key = make_key();
  const Certificate made = begin(name, validity, key.get());
  X509* const certificate = made.get();
  HO_CHECK(X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1);
  extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  extend(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  extend(certificate, certificate, NID_subject_key_identifier, "hash");
  sign(certificate, key.get());
  if (auto folder_made = make_folder(folder); !folder_made) return folder_made.error();
  const std::vector<NewFile> files = {
      {folder + "/" + std::string(kAuthorityKeyName), pem_of(key.get()), 0600},
      {folder + "/" + std::string(kAuthorityName), pem_of(certificate), 0644}};
  if (auto written = write_new(files); !written) return written.error();
  return facts_of(certificate);
}

Result<CertificateFacts> issue(const std::string& folder, const Request& request,
                               const std::string& out) {
  if (auto good = check_name(request.name, kNameBytesMax); !good) return good.error();
  if (request.role == Role::kDaemon && request.addresses.empty()) {
    return Error(Errc::kInvalidArgument,
                 "a daemon's certificate needs the addresses that others dial");
  }
  const auto names = alternative_names(request);
  if (!names) return names.error();
  const auto authority = open_authority(folder);
  if (!authority) return authority.error();
  X509* const issuer = authority->certificate.get();
  if (X509_cmp_time(X509_get0_notAfter(issuer), nullptr) < 0) {
    return Error(Errc::kInvalidArgument, folder + ": the authority has expired; make another");
  }
  const PrivateKey key = make_key();
  const Certificate made = begin(request.name, request.validity, key.get());
  X509* const certificate = made.get();
  add_to_subject(certificate, "OU", "hyperoffload-" + std::string(role_name(request.role)));
  HO_CHECK(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1);
  extend(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE");
  extend(certificate, issuer, NID_key_usage, "critical,digitalSignature");
  extend(certificate, issuer, NID_ext_key_usage,
         request.role == Role::kDaemon ? "serverAuth,clientAuth" : "clientAuth");
  extend(certificate, issuer, NID_subject_key_identifier, "hash");
  extend(certificate, issuer, NID_authority_key_identifier, "keyid:always");
  if (!names->empty()) extend(certificate, issuer, NID_subject_alt_name, *names);
  sign(certificate, authority->key.get());
  if (auto folder_made = make_folder(out); !folder_made) return folder_made.error();
  const Files named = files_in(out);
  const std::vector<NewFile> files = {{named.key, pem_of(key.get()), 0600},
                                      {named.certificate, pem_of(certificate), 0644},
                                      {named.authority, authority->text, 0644}};
  if (auto written = write_new(files); !written) return written.error();
  return facts_of(certificate);
}

}  // namespace ho::tls
