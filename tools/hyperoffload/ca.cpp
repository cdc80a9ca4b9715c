// ca: makes a small certificate authority, for sites without one.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "common/tls/authority.hpp"
#include "common/tls/context.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

constexpr int kDaysMax = 36'500;

std::chrono::seconds in_seconds(int days) { return std::chrono::hours(24) * days; }

struct Seen {
  std::string file;
  tls::CertificateFacts facts;
  std::string problem;  ///< empty: usable
};

std::string role_word(const tls::CertificateFacts& facts) {
  if (facts.authority) return "authority";
  return facts.role ? std::string(tls::role_name(*facts.role)) : "none";
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ",") + word;
  return out.empty() ? "-" : out;
}

std::int64_t days_left(const tls::CertificateFacts& facts) {
  using Days = std::chrono::duration<std::int64_t, std::ratio<86'400>>;
  return std::chrono::round<Days>(facts.ends - std::chrono::system_clock::now()).count();
}

void add_json(JsonWriter& json, const Seen& seen) {
  json.begin_object()
      .field("file", seen.file)
      .field("name", seen.facts.name)
      .field("role", role_word(seen.facts));
  json.key("addresses").begin_array();
  for (const std::string& address : seen.facts.addresses) json.value(address);
  json.end()
      .field("begins", tls::time_text(seen.facts.begins))
      .field("ends", tls::time_text(seen.facts.ends))
      .field("days_left", days_left(seen.facts))
      .field("fingerprint", seen.facts.fingerprint)
      .field("problem", seen.problem)
      .end();
}

std::string to_json(const std::vector<Seen>& all) {
  JsonWriter json;
  json.begin_object().key("certificates").begin_array();
  for (const Seen& seen : all) add_json(json, seen);
  json.end().end();
  return std::move(json).text();
}

std::string to_table(const std::vector<Seen>& all, Format format) {
  Table table({{"NAME"},
               {"ROLE"},
               {"ENDS"},
               {"DAYS", Table::kRight},
               {"ADDRESSES"},
               {"FILE", Table::kLeft, Table::kWide},
               {"SHA-256", Table::kLeft, Table::kWide}});
  for (const Seen& seen : all) {
    table.add({seen.facts.name, role_word(seen.facts), tls::time_text(seen.facts.ends),
               std::to_string(days_left(seen.facts)), joined(seen.facts.addresses), seen.file,
               seen.facts.fingerprint});
  }
  return table.text(format);
}

int print_made(Console& console, const std::string& folder, const Seen& made) {
  if (console.json()) {
    console.print(to_json({made}));
    return kExitDone;
  }
  Facts facts("made in " + folder);
  facts.add("name", made.facts.name)
      .add("role", role_word(made.facts))
      .add("addresses", joined(made.facts.addresses))
      .add("ends", tls::time_text(made.facts.ends));
  console.print(facts.text(console.format()));
  return kExitDone;
}

struct InitOptions {
  std::string folder;
  std::string name = "hyperoffload-ca";
  int days = 3650;
};

int run_init(Console& console, const InitOptions& options) {
  auto made = tls::make_authority(options.folder, options.name,
                                  tls::valid_from_now(in_seconds(options.days)));
  if (!made) return console.refuse(made.error());
  return print_made(
      console, options.folder,
      {options.folder + "/" + std::string(tls::kAuthorityName), std::move(*made), ""});
}

struct IssueOptions {
  std::string folder;
  std::string role;
  std::string name;
  std::vector<std::string> addresses;
  std::string out;
  int days = 365;
};

int run_issue(Console& console, const IssueOptions& options) {
  const auto role = tls::parse_role(options.role);
  if (!role) {
    return console.refuse(Error(Errc::kInvalidArgument, "--role: \"" + options.role +
                                                            "\" is none of daemon, job, admin "
                                                            "and reader"));
  }
  const std::string out = options.out.empty() ? options.folder + "/" + options.name : options.out;
  auto made = tls::issue(
      options.folder,
      {options.name, *role, options.addresses, tls::valid_from_now(in_seconds(options.days))}, out);
  if (!made) return console.refuse(made.error());
  return print_made(console, out, {tls::files_in(out).certificate, std::move(*made), ""});
}

/// The certificates of a path. A folder also has those of the folders in it.
std::vector<std::string> certificates_in(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return {path};
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    if (entry.is_directory(ignored)) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  folders.insert(folders.begin(), path);
  std::vector<std::string> out;
  const std::string authority = path + "/" + std::string(tls::kAuthorityName);
  if (std::filesystem::exists(authority, ignored)) out.push_back(authority);
  for (const std::string& folder : folders) {
    const std::string file = tls::files_in(folder).certificate;
    if (std::filesystem::exists(file, ignored)) out.push_back(file);
  }
  return out;
}

/// The reason why it cannot be used, alone or with the files beside it.
std::string problem_of(const std::string& file, const tls::CertificateFacts& facts) {
  const auto now = std::chrono::system_clock::now();
  if (now >= facts.ends) return "it has expired";
  const std::filesystem::path path(file);
  if (path.filename() != tls::kCertificateName) return "";
  const auto folder = path.has_parent_path() ? path.parent_path().string() : std::string(".");
  const auto loaded = tls::Context::load(tls::files_in(folder));
  return loaded ? "" : loaded.error().context();
}

int run_show(Console& console, const std::string& path) {
  std::vector<Seen> all;
  for (const std::string& file : certificates_in(path)) {
    auto facts = tls::read_certificate(file);
    if (!facts) return console.refuse(facts.error());
    std::string problem = problem_of(file, *facts);
    all.push_back({file, std::move(*facts), std::move(problem)});
  }
  if (all.empty()) {
    return console.refuse(Error(Errc::kNotFound, path + ": no certificate; hyperoffload ca init "
                                                        "makes an authority"));
  }
  console.print(console.json() ? to_json(all) : to_table(all, console.format()));
  int exit_code = kExitDone;
  for (const Seen& seen : all) {
    if (!seen.problem.empty()) exit_code = console.answer_no(seen.file + ": " + seen.problem);
  }
  return exit_code;
}

void add_days(CLI::App& command, int& into) {
  command.add_option("--days", into, "how long it is valid")
      ->capture_default_str()
      ->check(CLI::Range(1, kDaysMax))
      ->type_name("DAYS");
}

void add_init(Program& program, CLI::App& ca) {
  auto [command, options] =
      add_command<InitOptions>(program, ca, "init", "Make an authority", run_init);
  command.add_option("DIR", options.folder, "a folder; made if it is not there")->required();
  command.add_option("--name", options.name, "of the authority")->capture_default_str();
  add_days(command, options.days);
  set_manual(command, {"Writes ca.crt and ca.key. With ca.key anyone can act as any node or user "
                       "of the pool: keep the folder off the nodes. Never replaces a file.",
                       {"hyperoffload ca init pool-ca"},
                       {{kExitDone, "made"}}});
}

void add_issue(Program& program, CLI::App& ca) {
  auto [command, options] =
      add_command<IssueOptions>(program, ca, "issue", "Issue a certificate", run_issue);
  command.add_option("DIR", options.folder, "the folder of the authority")->required();
  command
      .add_option("--role", options.role,
                  "daemon: a node. job: opens sessions. admin: also ends sessions of others and "
                  "frees their flash. reader: only looks")
      ->required()
      ->type_name("ROLE:{daemon,job,admin,reader}");
  command.add_option("--name", options.name, "the node, job or user")->required();
  command
      .add_option("--address", options.addresses,
                  "a host name or IP address by which others dial the node; repeatable, and a "
                  "daemon needs one")
      ->type_name("ADDRESS")
      ->take_all();
  command.add_option("--out", options.out, "the folder to write to (default: DIR/NAME)")
      ->type_name("FOLDER");
  add_days(command, options.days);
  set_manual(command,
             {"Writes node.crt, node.key and ca.crt with a new key. Copy that folder to the "
              "machine: a daemon names the files in tls { }, a client names the folder by --tls "
              "or HYPEROFFLOAD_TLS. Never replaces a file.",
              {"hyperoffload ca issue pool-ca --role daemon --name node3 --address 10.0.0.3",
               "hyperoffload ca issue pool-ca --role job --name trainer"},
              {{kExitDone, "issued"}}});
}

void add_show(Program& program, CLI::App& ca) {
  auto [command, path] =
      add_command<std::string>(program, ca, "show", "Show certificates, and check them", run_show);
  command.add_option("PATH", path, "a certificate, or a folder of init or issue")->required();
  set_manual(command,
             {"For an authority's folder also shows the certificates that issue wrote below it. "
              "Checks a node.crt with the node.key and ca.crt beside it.",
              {"hyperoffload ca show pool-ca", "hyperoffload ca show /etc/hyperoffload/tls"},
              {{kExitDone, "all can be used"}, {kExitNo, "some cannot; the message says why"}}});
}

}  // namespace

void add_ca(Program& program) {
  CLI::App& ca = program.add_group("ca", "Make and check certificates for TLS");
  add_init(program, ca);
  add_issue(program, ca);
  add_show(program, ca);
}

}  // namespace ho::cli
