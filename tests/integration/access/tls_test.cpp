// TLS, certificates and roles on the control connection, with a real daemon.
#include <fcntl.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "proto/control/control_address.hpp"
#include "tests/integration/daemon/daemon_process.hpp"
#include "tests/support/certificates.hpp"

namespace ho::test {

namespace {

using tls::Role;

std::string tls_config(const TempFolder& folder, const std::string& certificates) {
  return small_config(folder, "tcp_listen: \"127.0.0.1:0\"\n" + Certificates::config(certificates));
}

/// A daemon that is up, and its TCP address.
struct Daemon {
  Daemon(const TempFolder& folder, const std::string& config)
      : process(folder, "d", {config, {}, false}), near(connect(unix_address(folder))) {
    const auto nodes = near->nodes(soon());
    REQUIRE(nodes.ok());
    REQUIRE(nodes->front().control_addresses.size() == 2);
    address = nodes->front().control_addresses[1];
  }
  DaemonProcess process;
  std::unique_ptr<ControlClient> near;
  std::string address;
};

Result<std::unique_ptr<ControlClient>> dial(const std::string& address, const std::string& tls) {
  ControlClient::Options options;
  options.address = address;
  options.tls_folder = tls;
  return ControlClient::connect(std::move(options), soon());
}

std::unique_ptr<ControlClient> dial_well(const std::string& address, const std::string& tls) {
  auto client = dial(address, tls);
  INFO((client ? "" : client.error().message()));
  REQUIRE(client.ok());
  return std::move(*client);
}

/// Why a connection is refused.
std::string refusal(const std::string& address, const std::string& tls) {
  const auto client = dial(address, tls);
  REQUIRE_FALSE(client.ok());
  return client.error().message();
}

bool says(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

UniqueFd dial_socket(const std::string& address) {
  auto fd = ho::dial(*ControlAddress::parse(address), soon());
  REQUIRE(fd.ok());
  return std::move(*fd);
}

/// Waits for the peer to close. @return false after `time_max`.
bool closes(const UniqueFd& fd, std::chrono::milliseconds time_max) {
  return eventually(time_max, [&] {
    char bytes[4096];
    const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  });
}

std::uint64_t refusals(ControlClient& client, const std::string& cause) {
  const auto status = client.status(soon());
  REQUIRE(status.ok());
  for (const Refusal& one : status->refusals) {
    if (one.cause == cause) return one.count;
  }
  return 0;
}

/// A handshake by OpenSSL alone, which checks nothing at its own end.
void shake_hands(const std::string& address, const std::string& certificates) {
  const UniqueFd fd = dial_socket(address);
  const int flags = ::fcntl(fd.get(), F_GETFL);
  REQUIRE(::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) == 0);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const tls::Files files = tls::files_in(certificates);
  REQUIRE(SSL_CTX_use_certificate_file(context.get(), files.certificate.c_str(),
                                       SSL_FILETYPE_PEM) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) == 1);
  const std::unique_ptr<SSL, decltype(&SSL_free)> session(SSL_new(context.get()), SSL_free);
  REQUIRE(SSL_set_fd(session.get(), fd.get()) == 1);
  if (SSL_connect(session.get()) != 1) return;
  char byte = 0;
  CHECK(SSL_read(session.get(), &byte, 1) <= 0);  // the daemon refuses it
}

}  // namespace

TEST_CASE("tls: each role may do what it is for, and no more") {
  Certificates certificates;
  const TempFolder folder;
  const Daemon daemon(folder, tls_config(folder, certificates.daemon()));
  const auto job = dial_well(daemon.address, certificates.issue("trainer", Role::kJob));
  const auto session = job->open_session("job", soon());
  REQUIRE(session.ok());
  CHECK(job->evict(session->id, soon()).error().code() == Errc::kPermissionDenied);
  CHECK(job->drain(soon()).error().code() == Errc::kPermissionDenied);
  CHECK(job->undrain(soon()).error().code() == Errc::kPermissionDenied);
  const auto sessions = job->sessions(soon());
  REQUIRE(sessions.ok());
  REQUIRE(sessions->size() == 1);
  says(sessions->front().peer, "(job trainer)");

  for (const Role role : {Role::kReader, Role::kDaemon}) {
    const auto client = dial_well(daemon.address, certificates.issue("other", role, {"127.0.0.1"}));
    CHECK(client->status(soon()).ok());
    CHECK(client->sessions(soon()).ok());
    const auto refused = client->open_session("job", soon());
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kPermissionDenied);
    says(refused.error().message(), "a certificate of role job");
    CHECK(client->renew_lease(*session, soon()).error().code() == Errc::kPermissionDenied);
    CHECK(client->evict(session->id, soon()).error().code() == Errc::kPermissionDenied);
  }
  const auto admin = dial_well(daemon.address, certificates.issue("anna", Role::kAdmin));
  CHECK(admin->open_session("bench", soon()).ok());
  CHECK(admin->evict(session->id, soon()).ok());
  CHECK_FALSE(job->renew_lease(*session, soon()).ok());
}

TEST_CASE("tls: what is wrong with a certificate is said at the end that sees it") {
  Certificates certificates;
  Certificates others;
  const TempFolder folder;
  const Daemon daemon(folder, tls_config(folder, certificates.daemon()));
  const std::string job = certificates.issue("trainer", Role::kJob);

  SECTION("a client of another authority: both do not trust each other") {
    says(refusal(daemon.address, others.issue("trainer", Role::kJob)),
         "permission-denied: " + daemon.address + ": the certificate \"node3\" is not issued by");
  }
  SECTION("a daemon that does not trust the client") {
    const std::string mixed = others.issue("trainer", Role::kJob);
    // Trusts the daemon's authority beside its own.
    std::ofstream(tls::files_in(mixed).authority, std::ios::app)
        << std::ifstream(tls::files_in(job).authority).rdbuf();
    says(refusal(daemon.address, mixed),
         "permission-denied: " + daemon.address + ": it does not trust the authority");
    CHECK(refusals(*daemon.near, "connection: permission-denied") == 1);
  }
  SECTION("an expired certificate, at the client and at the daemon") {
    const std::string old = certificates.issue("trainer", Role::kJob, {}, Certificates::expired());
    says(refusal(daemon.address, old), "the certificate \"trainer\" has expired");
    shake_hands(daemon.address, old);
    CHECK(eventually(std::chrono::seconds(20),
                     [&] { return refusals(*daemon.near, "connection: permission-denied") == 1; }));
    says(daemon.process.err(), "has expired: it was valid until");
  }
  SECTION("a daemon at another address than its certificate's") {
    const std::string port = daemon.address.substr(daemon.address.rfind(':'));
    says(refusal("tcp:localhost.localdomain" + port, job), "");
    const TempFolder beside;
    const Daemon moved(
        beside, tls_config(beside, certificates.issue("node4", Role::kDaemon, {"10.0.0.4"})));
    says(refusal(moved.address, job),
         "\"node4\" is for node4, 10.0.0.4, and not for the address dialed");
    says(moved.process.err(), "and not for 127.0.0.1, by which others reach this node");
  }
  SECTION("something else than a daemon at the daemon's address") {
    const TempFolder beside;
    const auto config =
        tls_config(beside, certificates.issue("trainer", Role::kJob, {"127.0.0.1"}));
    DaemonProcess wrong(beside, "d", {config, {}, false});
    const Exit end = wrong.wait();
    CHECK(end.code == 1);
    says(end.err, "is for a job trainer; a daemon needs a certificate of role daemon");
  }
  SECTION("a client without TLS") {
    says(refusal(daemon.address, ""), "unsupported: this daemon wants TLS; name the folder");
  }
  CHECK(dial(daemon.address, job).ok());
}

TEST_CASE("tls: a client with TLS learns that a daemon has none") {
  Certificates certificates;
  const TempFolder folder;
  const Daemon daemon(folder,
                      small_config(folder, "insecure: true\ntcp_listen: \"127.0.0.1:0\"\n"));
  says(refusal(daemon.address, certificates.issue("trainer", Role::kJob)),
       "the peer closed the connection in the TLS handshake; does it speak TLS?");
  const auto status = dial_well(daemon.address, "")->status(soon());
  REQUIRE(status.ok());
  CHECK(status->insecure);
  CHECK(status->unprotected == std::vector<std::string>{"control"});
  says(daemon.process.err(), "INSECURE");
}

TEST_CASE("tls: certificates are read again at SIGHUP, under a session that goes on") {
  Certificates before;
  Certificates after;
  const TempFolder folder;
  const std::string place = folder.file("tls");
  const auto install = [&](const std::string& from) {
    std::filesystem::remove_all(place);
    std::filesystem::copy(from, place);
  };
  install(before.daemon());
  const Daemon daemon(folder, tls_config(folder, place));
  const std::string old_job = before.issue("trainer", Role::kJob);
  const std::string new_job = after.issue("trainer", Role::kJob);
  const auto client = dial_well(daemon.address, old_job);
  const auto session = client->open_session("job", soon());
  REQUIRE(session.ok());
  const auto reload = [&](const std::string& answer) {
    daemon.process.send(SIGHUP);
    CHECK(eventually(std::chrono::seconds(20),
                     [&] { return daemon.process.err().find(answer) != std::string::npos; }));
  };

  std::filesystem::remove(tls::files_in(place).key);
  reload("the certificates are wrong; those read before stay in use");
  CHECK(dial(daemon.address, old_job).ok());

  install(after.daemon());
  reload("certificates reloaded");
  CHECK(dial(daemon.address, new_job).ok());
  CHECK(dial(daemon.address, old_job).error().code() == Errc::kPermissionDenied);
  CHECK(client->renew_lease(*session, soon()).ok());
}

TEST_CASE("tls: files that cannot be used keep a daemon from starting") {
  Certificates certificates;
  const TempFolder folder;
  const std::string place = certificates.daemon();
  const tls::Files files = tls::files_in(place);
  const auto check = [&] {
    DaemonProcess daemon(folder, "c", {tls_config(folder, place), {}, true});
    return daemon.wait();
  };
  CHECK(check().code == 0);
  SECTION("a key that others can read") {
    REQUIRE(::chmod(files.key.c_str(), 0644) == 0);
    const Exit end = check();
    CHECK(end.code == 2);
    says(end.err, "c.textproto:9: tls: " + files.key + ": others can read or change this key");
    says(end.err, "chmod 0600");
  }
  SECTION("the key of another certificate") {
    std::filesystem::copy(tls::files_in(certificates.daemon()).key, files.key,
                          std::filesystem::copy_options::overwrite_existing);
    says(check().err, files.key + ": not the key of the certificate " + files.certificate);
  }
  SECTION("no such file") {
    std::filesystem::remove(files.authority);
    says(check().err, files.authority + ": No such file");
  }
  SECTION("no certificate") {
    std::ofstream(files.certificate) << "nonsense";
    says(check().err, files.certificate + ": not a certificate in PEM form");
  }
}

TEST_CASE("tls: files for etcd that cannot be used keep a daemon from starting, too") {
  Certificates certificates;
  const TempFolder folder;
  const tls::Files files = tls::files_in(certificates.issue("client", Role::kReader));
  const auto config = small_config(
      folder, "etcd { endpoints: \"https://127.0.0.1:1\" machine_id: \"m\" certificate: \"" +
                  files.certificate + "\" key: \"" + files.key + "\" authority: \"" +
                  files.authority + "\" }\n");
  const auto check = [&](const std::string& words) {
    for (const bool only_check : {true, false}) {
      DaemonProcess daemon(folder, "c", {config, {}, only_check});
      const Exit end = daemon.wait();
      CHECK(end.code == (only_check ? 2 : 1));
      says(end.err, "c.textproto:8: etcd: " + words);
    }
  };
  SECTION("files that can be used") {
    DaemonProcess daemon(folder, "c", {config, {}, true});
    CHECK(daemon.wait().code == 0);
  }
  SECTION("a key that others can read") {
    REQUIRE(::chmod(files.key.c_str(), 0644) == 0);
    check(files.key + ": others can read or change this key");
  }
  SECTION("the key of another certificate") {
    std::filesystem::copy(tls::files_in(certificates.daemon()).key, files.key,
                          std::filesystem::copy_options::overwrite_existing);
    check(files.key + ": not the key of the certificate " + files.certificate);
  }
  SECTION("an expired certificate") {
    const tls::Files old =
        tls::files_in(certificates.issue("client", Role::kReader, {}, Certificates::expired()));
    const auto overwrite = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy(old.certificate, files.certificate, overwrite);
    std::filesystem::copy(old.key, files.key, overwrite);
    check(files.certificate + ": the certificate \"client\" has expired");
  }
  SECTION("an authority of the members that did not issue the client's certificate") {
    std::filesystem::copy(tls::files_in(Certificates().daemon()).authority, files.authority,
                          std::filesystem::copy_options::overwrite_existing);
    DaemonProcess daemon(folder, "c", {config, {}, true});
    CHECK(daemon.wait().code == 0);
  }
  SECTION("no such file") {
    std::filesystem::remove(files.authority);
    check(files.authority + ": No such file");
  }
}

TEST_CASE("tls: garbage closes its own connection and nothing else") {
  Certificates certificates;
  const TempFolder folder;
  const Daemon daemon(folder, tls_config(folder, certificates.daemon()));
  const auto client = dial_well(daemon.address, certificates.issue("trainer", Role::kJob));
  std::string record("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);  // how TLS begins
  record.resize(517, 'x');
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), record, std::string(100, '\x16'),
        std::string("\x16\xff\xff\xff\xff\xff\xff", 7), std::string(70'000, '\0')}) {
    const UniqueFd fd = dial_socket(daemon.address);
    (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    CHECK(closes(fd, std::chrono::seconds(20)));
  }
  CHECK(client->status(soon()).ok());
}

TEST_CASE("tls: strangers who do not finish the handshake are few, and not for long") {
  Certificates certificates;
  const TempFolder folder;
  const Daemon daemon(folder, tls_config(folder, certificates.daemon()));
  const std::string job = certificates.issue("trainer", Role::kJob);
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(dial_socket(daemon.address));
    if (i % 2 == 0) (void)::send(idle.back().get(), "\x16\x03\x01", 3, MSG_NOSIGNAL);
  }
  const auto open = [&] {
    return std::count_if(idle.begin(), idle.end(), [](const UniqueFd& fd) {
      return !closes(fd, std::chrono::milliseconds(0));
    });
  };
  CHECK(eventually(std::chrono::seconds(20), [&] { return open() <= 128; }));
  CHECK(dial(daemon.address, job).ok());
  CHECK(eventually(std::chrono::seconds(20), [&] { return open() == 0; }));
  CHECK(refusals(*daemon.near, "connection: exhausted") >= 272);
}

}  // namespace ho::test
