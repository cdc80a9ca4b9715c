#include "proto/config/config.hpp"

#include <catch2/catch.hpp>

namespace ho {

namespace {

constexpr const char* kGood =
    "node_id: 7\nnode_name: \"seven\" rack: \"a7\"\nddr_bytes: 67108864\nsegment_bytes: 2097152\n"
    "unix_socket: \"/tmp/x.sock\"\ntcp_listen: \"[::1]:7700\"\nlease_ms: 1000\n"
    "tls { certificate: \"/c\" key: \"/k\" authority: \"/a\" } "
    "tcp { address: \"127.0.0.2\" }\n"
    "nodes { node_id: 8 control_addresses: \"tcp:127.0.0.1:7701\" }\nlog_level: \"warning\"\n";

/// The error of `kGood` with one more line, which is line 11.
std::string error_with(const std::string& line) {
  const auto parsed = parse_daemon_config(kGood + line, "f");
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.error().code() == Errc::kInvalidArgument);
  return parsed.error().context();
}

}  // namespace

TEST_CASE("config: every field of a good configuration is read") {
  const auto parsed = parse_daemon_config(kGood, "f");
  REQUIRE(parsed.ok());
  CHECK(parsed->node.value() == 7);
  CHECK(parsed->node_name == "seven");
  CHECK(parsed->rack == "a7");
  CHECK(parsed->ddr_bytes == 64 * kMiB);
  CHECK(parsed->segment_bytes == 2 * kMiB);
  CHECK(parsed->unix_socket == "/tmp/x.sock");
  REQUIRE(parsed->tcp_listen);
  CHECK(parsed->tcp_listen->host == "::1");
  CHECK(parsed->tcp_listen->port == "7700");
  REQUIRE(parsed->tls);
  CHECK(parsed->tls->certificate == "/c");
  CHECK(parsed->tls->key == "/k");
  CHECK(parsed->tls->authority == "/a");
  CHECK(parsed->lease == std::chrono::seconds(1));
  REQUIRE(parsed->tcp.size() == 1);
  CHECK(parsed->tcp[0].address.text == "127.0.0.2");
  REQUIRE(parsed->nodes.size() == 1);
  CHECK(parsed->nodes[0].name == "node-8");
  CHECK(parsed->log_level == LogLevel::kWarning);
}

TEST_CASE("config: sizes may have units, wherever bytes are counted") {
  const auto parsed = parse_daemon_config(
      "# ddr_bytes: \"1GiB\"\nddr_bytes: \"1.5GiB\" segment_bytes :\n\t'2MiB' blocks { ddr_bytes: "
      "\"64M\" }\nflash { path: \"/a: 5GiB\" write_bytes_per_day_max: \"1TiB\" }\n",
      "f");
  REQUIRE(parsed.ok());
  CHECK(parsed->ddr_bytes == 1536 * kMiB);
  CHECK(parsed->segment_bytes == 2 * kMiB);
  CHECK(parsed->blocks_ddr_bytes == 64 * kMiB);
  REQUIRE(parsed->flash.size() == 1);
  CHECK(parsed->flash[0].path == "/a: 5GiB");
  CHECK(parsed->flash[0].write_bytes_per_day_max == 1024 * kGiB);
  const auto wrong = [](const std::string& text) {
    const auto read = parse_daemon_config(text, "f");
    return read ? std::string("accepted") : read.error().context();
  };
  CHECK(wrong("ddr_bytes: \"256MiB\"\nsegment_bytes: \"2 MiBs\"") ==
        "f:2: segment_bytes: \"2 MiBs\" is not a size; write a number of bytes, or one with a unit "
        "such as \"256MiB\" or \"1.5GiB\"");
  CHECK(wrong("ddr_bytes: \"99999999TiB\"").find("f:1: ddr_bytes: \"99999999TiB\" is not") == 0);
  CHECK(wrong("ddr_bytes: \"256MiB\" wrong_name: 5").find("wrong_name") != std::string::npos);
  CHECK(wrong("ddr_bytes: \"256MiB\" \"5MiB\"").find("f:1: ") == 0);
  CHECK(wrong("ddr_bytes: \"256MiB\"\nlease_ms: \"10s\"").find("f:2: lease_ms: ") == 0);
}

TEST_CASE("config: absent fields have their defaults") {
  const auto parsed = parse_daemon_config("ddr_bytes: 268435456", "f");
  REQUIRE(parsed.ok());
  CHECK(parsed->segment_bytes == 256 * kMiB);
  CHECK(parsed->unix_socket == "/run/hyperoffload/control.sock");
  CHECK(parsed->lease == std::chrono::seconds(10));
  CHECK(parsed->drain == std::chrono::seconds(5));
  CHECK_FALSE(parsed->tcp_listen);
  CHECK_FALSE(parsed->tls);
  CHECK(parsed->ofi.empty());
  CHECK(parsed->tcp.empty());
  CHECK_FALSE(parsed->node_name.empty());
}

TEST_CASE("config: a field that occurs twice is refused, also with the value 0") {
  for (const std::string field : {"node_id: 0", "node_id: 4", "insecure: false"}) {
    const auto parsed = parse_daemon_config("ddr_bytes: 268435456\n" + field + "\n" + field, "f");
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().context().find("f:3: ") == 0);
    CHECK(parsed.error().context().find("specified multiple times") != std::string::npos);
  }
}

TEST_CASE("config: a rack is a short name without spaces") {
  const std::string start = "ddr_bytes: 268435456\nrack: \"";
  CHECK(parse_daemon_config(start + std::string(63, 'r') + "\"", "f").ok());
  for (const std::string& rack :
       {std::string(64, 'r'), std::string("a 7"), std::string("a\\n"), std::string("\\303\\244")}) {
    INFO(rack);
    const auto parsed = parse_daemon_config(start + rack + "\"", "f");
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().context().find("f:2: rack") == 0);
  }
}

TEST_CASE("config: names that are not UTF-8 are refused") {
  for (const std::string field :
       {"node_name: \"\\xff\"",
        "nodes { node_id: 1 name: \"a\\xe9\" control_addresses: \"tcp:h:1\" }",
        "flash { path: \"/\\xc0\\xaf\" }"}) {
    const auto parsed = parse_daemon_config("ddr_bytes: 268435456\n" + field, "f");
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().context().find("is not UTF-8") != std::string::npos);
    CHECK(parsed.error().context().find("f:2: ") == 0);
  }
  CHECK(parse_daemon_config("ddr_bytes: 268435456\nnode_name: \"\\303\\251\"", "f").ok());
}

TEST_CASE("config: fields that differ between two files are named") {
  const auto before = parse_daemon_config("ddr_bytes: 268435456\nlog_level: \"info\"", "f");
  const auto after = parse_daemon_config(
      "# moved\nddr_bytes: 268435456\nnodes { node_id: 1 control_addresses: \"tcp:h:1\" }\n"
      "log_level: \"debug\"",
      "f");
  REQUIRE(before.ok());
  REQUIRE(after.ok());
  CHECK(changed_fields(*before, *after) == std::vector<std::string>{"log_level", "nodes"});
  CHECK(changed_fields(*before, *before).empty());
}

TEST_CASE("config: a drain time of 0 is a value, not an absent field") {
  const auto parsed = parse_daemon_config("ddr_bytes: 268435456 drain_ms: 0", "f");
  REQUIRE(parsed.ok());
  CHECK(parsed->drain == std::chrono::milliseconds(0));
}

TEST_CASE("config: each error names its line and field") {
  CHECK(error_with("lease_ms: 5").find("specified multiple times") != std::string::npos);
  CHECK(error_with("wrong_name: 5").find("f:11: ") == 0);
  CHECK(error_with("nodes { node_id: 8 control_addresses: \"unix:/a\" }") ==
        "f:11: nodes: node_id 8 is used twice in the pool");
  const std::string end = "control_addresses: \"unix:/a\" }";
  CHECK(error_with("nodes { name: \"b\" " + end) == "f:11: nodes: node_id is missing");
  CHECK(error_with("nodes { node_id: 9 name: \"seven\" " + end) ==
        "f:11: nodes: name \"seven\" is used twice in the pool");
  CHECK(error_with("nodes { node_id: 9 name: \"node-8\" " + end) ==
        "f:11: nodes: name \"node-8\" is used twice in the pool");
  CHECK(error_with("nodes { node_id: 9 name: \"5\" " + end) ==
        "f:11: nodes: name: \"5\" is a number, which would name the node of that node_id");
  CHECK(error_with("nodes { node_id: 9 control_addresses: \"tcp:127.0.0.1:7701\" }") ==
        "f:11: nodes: control_addresses: tcp:127.0.0.1:7701 is another node's, too");
  CHECK(error_with("nodes { node_id: 9 control_addresses: \"unix:/tmp/x.sock\" }") ==
        "f:11: nodes: control_addresses: unix:/tmp/x.sock is another node's, too");
  CHECK(error_with("nodes { node_id: 9 }") ==
        "f:11: nodes: control_addresses: at least one is needed");
  CHECK(error_with("nodes { node_id: 9 control_addresses: \"/a\" }")
            .find("f:11: nodes: control_addresses: \"/a\": expected unix:PATH or tcp:HOST:PORT") ==
        0);
  const auto wrong = [](const std::string& text) {
    const auto parsed = parse_daemon_config(text, "f");
    return parsed ? std::string("accepted") : parsed.error().context();
  };
  CHECK(wrong("") ==
        "f: ddr_bytes: missing or 0: set the number of bytes that this node gives to the pool");
  CHECK(wrong("ddr_bytes: 268435456\nnode_name: \"05\"") ==
        "f:2: node_name: \"05\" is a number, which would name the node of that node_id");
  CHECK(wrong("ddr_bytes: 268435456 node_id: 5 node_name: \"5\" nodes { node_id: 6 name: \"6\" "
              "control_addresses: \"unix:/a\" control_addresses: \"unix:/a\" }") == "accepted");
  CHECK(wrong("ddr_bytes: 1048576\nsegment_bytes: 1048576").find("f:2: segment_bytes: 1048576") ==
        0);
  CHECK(wrong("ddr_bytes: 2147483648\nsegment_bytes: 2147483648").find("f:2: segment_bytes: ") ==
        0);
  CHECK(wrong("ddr_bytes: -1").find("f:1: ddr_bytes: ") == 0);
  CHECK(wrong("ddr_bytes: 268435456\nlease_ms: 99") ==
        "f:2: lease_ms: 99 is not in 100 .. 3600000");
  CHECK(wrong("ddr_bytes: 268435456\nlog_level: \"loud\"").find("f:2: log_level: \"loud\"") == 0);
  CHECK(wrong("ddr_bytes: 268435456\nucx { }").find("f:2: ucx: transfers over RDMA") == 0);
  CHECK(wrong("ddr_bytes: 268435456\ninsecure: true\nucx { transports: \"tcp\" }")
            .find("f:3: ucx: transports: \"tcp\" is not one of rc, dc and rc,dc") == 0);
  CHECK(wrong("ddr_bytes: 268435456\ninsecure: true\nucx { transports: \"dc\" }") == "accepted");
  CHECK(wrong("ddr_bytes: 268435456\ninsecure: true\n"
              "ucx { transports: \"tcp\" allow_emulation: true }") == "accepted");
  CHECK(wrong("ddr_bytes: 268435456\ninsecure: true\nucx { module: \"driver.so\" }")
            .find("f:3: ucx: module: \"driver.so\" is not an absolute path") == 0);
  CHECK(wrong("ddr_bytes: 268435456\ntcp_listen: \"127.0.0.1:99999\"").find("f:2: tcp_listen: ") ==
        0);
}

TEST_CASE("config: listening over TCP needs TLS or insecure, on loopback too") {
  const auto with = [](const std::string& more) {
    const auto parsed = parse_daemon_config("ddr_bytes: 268435456\n" + more, "f");
    return parsed ? std::string("accepted") : parsed.error().context();
  };
  for (const std::string host : {"127.0.0.1", "localhost", "[::1]", "10.0.0.1"}) {
    const std::string why = with("tcp_listen: \"" + host + ":7700\"");
    CHECK(why.find("f:2: tcp_listen: without TLS everybody") == 0);
    CHECK(why.find("add tls { }") != std::string::npos);
    CHECK(with("insecure: true\ntcp_listen: \"" + host + ":7700\"") == "accepted");
    CHECK(with("tls { certificate: \"/c\" key: \"/k\" authority: \"/a\" }\ntcp_listen: \"" + host +
               ":7700\"") == "accepted");
  }
  CHECK(with("tls { certificate: \"/c\"\n key: \"k\" }") ==
        "f:3: tls: key: \"k\" is not an absolute path\nf:2: tls: authority: missing: name a PEM "
        "file");
}

TEST_CASE("config: each listener of a daemon has a port of its own") {
  const auto with = [](const std::string& more) {
    const auto parsed = parse_daemon_config("ddr_bytes: 268435456 insecure: true\n" + more, "f");
    return parsed ? std::string("accepted") : parsed.error().context();
  };
  const std::string control = "tcp_listen: \"127.0.0.1:7700\"\n";
  CHECK(with(control + "tcp { port: 7700 }") == "f:3: tcp: port: port 7700 is that of tcp_listen");
  CHECK(with(control + "tcp { port: 7701 }") == "accepted");
  CHECK(with(control + "tcp { address: \"127.0.0.2\" port: 7700 }") == "accepted");
  CHECK(with("tcp_listen: \"0.0.0.0:7700\"\ntcp { address: \"127.0.0.2\" port: 7700 }") ==
        "f:3: tcp: port: port 7700 is that of tcp_listen");
  CHECK(with(control + "http_listen: \"127.0.0.1:7700\"") ==
        "f:3: http_listen: port 7700 is that of tcp_listen");
  CHECK(with("tcp_listen: \"127.0.0.1:0\" http_listen: \"127.0.0.1:0\" tcp { }") == "accepted");
}

TEST_CASE("config: metrics are served on loopback, or with insecure anywhere") {
  const std::string with = "ddr_bytes: 268435456\nhttp_listen: ";
  for (const std::string host : {"127.0.0.1", "localhost", "[::1]"}) {
    const auto parsed = parse_daemon_config(with + "\"" + host + ":9464\"", "f");
    REQUIRE(parsed.ok());
    CHECK(parsed->http_listen->port == "9464");
  }
  const auto open = parse_daemon_config(with + "\"10.0.0.1:9464\"", "f");
  REQUIRE_FALSE(open.ok());
  CHECK(open.error().context().find("f:2: http_listen: 10.0.0.1 is not a loopback") == 0);
  CHECK(parse_daemon_config(with + "\"10.0.0.1:9464\" insecure: true", "f").ok());
  CHECK_FALSE(parse_daemon_config(with + "\"9464\"", "f").ok());
}

TEST_CASE("config: text truncated anywhere is accepted or refused, and nothing worse") {
  const std::string whole = kGood;
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const auto parsed = parse_daemon_config(whole.substr(0, length), "f");
    if (!parsed) CHECK(parsed.error().context().rfind("f:", 0) == 0);
  }
}

TEST_CASE("config: NUMA nodes are all, none or a list, and an error names field and line") {
  const std::string base = "ddr_bytes: 268435456\n";
  const auto plain = parse_daemon_config(base, "f");
  REQUIRE(plain.ok());
  CHECK_FALSE(plain->numa.off);
  CHECK(plain->numa.nodes.empty());
  CHECK(parse_daemon_config(base + "numa: \"auto\"", "f")->numa.nodes.empty());
  CHECK(parse_daemon_config(base + "numa: \"off\"", "f")->numa.off);
  const auto listed = parse_daemon_config(base + "numa: \"0-1,4\"", "f");
  REQUIRE(listed.ok());
  CHECK_FALSE(listed->numa.off);
  CHECK(listed->fields.at("numa").line == 2);
  CHECK(listed->numa.nodes == std::vector<NumaNode>{NumaNode(0), NumaNode(1), NumaNode(4)});
  const auto wrong = parse_daemon_config(base + "numa: \"on\"", "f");
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.error().context() ==
        "f:2: numa: \"on\" is not a list of NUMA nodes such as 0-2,5, auto or off");
}

TEST_CASE("config: a block store takes whole segments of the node's memory") {
  const auto parse = [](const std::string& blocks) {
    return parse_daemon_config("ddr_bytes: 67108864\nsegment_bytes: 2097152\n" + blocks, "f");
  };
  CHECK(parse("")->blocks_ddr_bytes == 0);
  CHECK(parse("blocks { ddr_bytes: 4194304 }")->blocks_ddr_bytes == 4 * kMiB);
  for (const char* wrong :
       {"blocks { }", "blocks { ddr_bytes: 3145728 }", "blocks { ddr_bytes: 134217728 }"}) {
    const auto parsed = parse(wrong);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().context().find("f:3: blocks: ddr_bytes: ") == 0);
  }
}

TEST_CASE("config: with etcd the list of nodes and this node's number are etcd's") {
  constexpr const char* kStart = "ddr_bytes: 268435456\n";
  const auto parsed =
      parse_daemon_config(std::string(kStart) +
                              "etcd { endpoints: \"http://127.0.0.1:2379\" endpoints: "
                              "\"https://e2:2379\" prefix: \"/p\" machine_id: \"m-1\" "
                              "control_addresses: \"tcp:h:7700\" "
                              "certificate: \"/c\" key: \"/k\" authority: \"/a\" }",
                          "f");
  REQUIRE(parsed.ok());
  CHECK_FALSE(parsed->node_given);
  REQUIRE(parsed->etcd);
  CHECK(parsed->etcd->endpoints ==
        std::vector<std::string>{"http://127.0.0.1:2379", "https://e2:2379"});
  CHECK(parsed->etcd->prefix == "/p");
  CHECK(parsed->etcd->id_file == "/var/lib/hyperoffload/node_id");
  CHECK(parsed->etcd->control_addresses == std::vector<std::string>{"tcp:h:7700"});
  REQUIRE(parsed->etcd->tls);
  CHECK(parsed->etcd->tls->authority == "/a");
  const auto own = parse_daemon_config(
      std::string(kStart) + "node_id: 0 etcd { endpoints: \"http://localhost:2379\" }", "f");
  REQUIRE(own.ok());
  CHECK(own->node_given);

  const auto error_of = [&](const std::string& etcd, const std::string& more = "") {
    const auto bad = parse_daemon_config(kStart + more + "etcd {" + etcd + "}", "f");
    REQUIRE_FALSE(bad.ok());
    return bad.error().context();
  };
  const std::string good = "endpoints: \"http://127.0.0.1:2379\" ";
  CHECK(error_of("") ==
        "f:2: etcd: endpoints: missing: name one or more, such as "
        "http://127.0.0.1:2379");
  CHECK(error_of("endpoints: \"127.0.0.1:2379\"").find("is not http://HOST:PORT") !=
        std::string::npos);
  CHECK(error_of("endpoints: \"http://10.0.0.1:2379\"").find("is not encrypted") !=
        std::string::npos);
  CHECK(error_of(good + "prefix: \"p/\"").find("etcd: prefix") != std::string::npos);
  CHECK(error_of(good + "machine_id: \"a/b\"").find("etcd: machine_id") != std::string::npos);
  CHECK(error_of(good + "certificate: \"/c\"").find("key: missing") != std::string::npos);
  CHECK(error_of(good + "control_addresses: \"unix:/x\"").find("is not tcp:HOST:PORT") !=
        std::string::npos);
  CHECK(error_of(good, "insecure: true tcp_listen: \"0.0.0.0:7700\"\n")
            .find("name the addresses by which others reach it") != std::string::npos);
  CHECK(error_of(good, "nodes { node_id: 1 control_addresses: \"unix:/x\" }\n")
            .find("the nodes are those that etcd lists") != std::string::npos);
}

TEST_CASE("config: a list of drivers forces and forbids drivers, and needs their blocks") {
  const std::string base = "ddr_bytes: 268435456\ntcp {\n}\n";
  const auto only = parse_daemon_config(base + "transport: \"tcp,local\"", "f");
  REQUIRE(only.ok());
  CHECK(only->transport == std::vector<std::string>{"tcp", "local"});
  CHECK(parse_daemon_config(base + "transport: \"auto\"", "f")->transport.empty());
  const auto unknown = parse_daemon_config(base + "transport: \"pigeon\"", "f");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().context().find("f:4: transport: transport is auto") == 0);
  const auto absent = parse_daemon_config(base + "transport: \"ucx\"", "f");
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().context() ==
        "f:4: transport: ucx is listed, but the block is missing: ucx { }");
}

TEST_CASE("config: errors in ofi name their lines, and open listening needs insecure") {
  const auto refused = [](const std::string& inside) {
    const auto parsed = parse_daemon_config("ddr_bytes: 268435456\nofi {\n" + inside + "\n}", "f");
    return parsed ? "accepted" : parsed.error().context();
  };
  const auto good = parse_daemon_config(
      "ddr_bytes: 268435456\nofi {\n provider: \"verbs\"\n domain: \"lo\"\n interface: \"lo\" }",
      "f");
  REQUIRE(good.ok());
  CHECK(good->ofi[0].provider.line == 3);
  CHECK(good->ofi[0].domain.line == 4);
  CHECK(good->ofi[0].interface.line == 5);
  CHECK(good->ofi[0].address.line == 2);  // that of the block
  CHECK(good->ofi[0].address.text.empty());
  CHECK(
      refused("provider: \"efa\"\ninterface: \"eth7\"").find("f:4: ofi: interface: eth7 is not") ==
      0);
  CHECK(refused("interface: \"lo\"\naddress: \"127.0.0.1\"")
            .find("f:4: ofi: address: set address or interface, not both") == 0);
  CHECK(refused("address: \"10.0.0.1\"").find("f:3: ofi: address: 10.0.0.1 is not a loopback") ==
        0);
  CHECK(refused("provider: \"cxi\"").find("f:3: ofi: provider: transfers over cxi are not") == 0);
  CHECK(refused("").find("f:2: ofi: provider: transfers over devices are not encrypted") == 0);
  // What a configuration of earlier versions may have says what to write now.
  CHECK(refused("provider: \"net\"")
            .find("f:3: ofi: provider: net does not check what peers send; ") == 0);
  CHECK(refused("provider: \"net\"").find("write tcp { } in place of ofi { }") !=
        std::string::npos);
  CHECK(refused("provider: \"net\" allow_emulation: true") == "accepted");
  CHECK(refused("allow_emulation: true") == "accepted");
}

TEST_CASE("config: several ofi blocks are rails, each with its own lines and address") {
  const auto parse = [](const std::string& second) {
    return parse_daemon_config(
        "ddr_bytes: 268435456\nofi { provider: \"verbs\" address: \"127.0.0.1\" }\nofi {\n" +
            second + "\n}",
        "f");
  };
  const auto refused = [&](const std::string& second) {
    const auto parsed = parse(second);
    return parsed ? "accepted" : parsed.error().context();
  };
  const auto good = parse("address: \"127.0.0.2\"");
  REQUIRE(good.ok());
  REQUIRE(good->ofi.size() == 2);
  CHECK(good->ofi[0].address.line == 2);
  CHECK(good->ofi[1].address.text == "127.0.0.2");
  CHECK(good->ofi[1].address.line == 4);
  CHECK(good->ofi[1].provider.text == "verbs");
  CHECK(good->ofi[1].provider.line == 3);  // that of the block
  CHECK(refused("interface: \"lo\"") == "accepted");
  CHECK(refused("provider: \"efa\"\naddress: \"127.0.0.2\"") ==
        "f:4: ofi: provider: efa and verbs in line 2; all rails need the same provider");
  CHECK(refused("address: \"127.0.0.1\"") ==
        "f:4: ofi: address: the same rail as in line 2; each rail needs its own address");
  CHECK(refused("address: \"10.0.0.1\"").find("f:4: ofi: address: 10.0.0.1 is not a loopback") ==
        0);
  std::string nine = "ddr_bytes: 268435456\n";
  for (int i = 1; i <= 9; ++i) nine += "ofi { address: \"127.0.0." + std::to_string(i) + "\" }\n";
  const auto many = parse_daemon_config(nine, "f");
  REQUIRE_FALSE(many.ok());
  CHECK(many.error().context() == "f:2: ofi: more than 8 rails");
}

TEST_CASE("config: the rails of tcp know their lines, and leave no door open by mistake") {
  const auto refused = [](const std::string& blocks) {
    const auto parsed = parse_daemon_config("ddr_bytes: 268435456\n" + blocks, "f");
    return parsed ? std::string("accepted") : parsed.error().context();
  };
  const auto good = parse_daemon_config(
      "ddr_bytes: 268435456\ntcp { }\ntcp {\n interface: \"lo\"\n port: 7711\n}", "f");
  REQUIRE(good.ok());
  REQUIRE(good->tcp.size() == 2);
  CHECK(good->tcp[0].address.text == "127.0.0.1");
  CHECK(good->tcp[0].port == 0);
  CHECK(good->tcp[1].interface.line == 4);
  CHECK(good->tcp[1].address.text.empty());
  CHECK(good->tcp[1].port == 7711);
  CHECK(refused("tcp {\n interface: \"eth7\"\n}").find("f:3: tcp: interface: eth7 is not the") ==
        0);
  CHECK(refused("tcp { address: \"10.0.0.1\" }").find("f:2: tcp: address: 10.0.0.1 is not a") == 0);
  CHECK(refused("tcp { address: \"10.0.0.1\" }\ninsecure: true") == "accepted");
  CHECK(
      refused("tcp { address: \"::\" }\ninsecure: true").find("f:2: tcp: address: :: is not an") ==
      0);
  CHECK(refused("tcp { address: \"n0\" }").find("f:2: tcp: address: \"n0\" is not a numeric") == 0);
  CHECK(refused("tcp { port: 65536 }").find("f:2: tcp: port: 65536 is not in 0 .. 65535") == 0);
  CHECK(refused("tcp { }\ntcp { }").find("f:3: tcp: address: the same rail as in line 2") == 0);
  CHECK(refused("transport: \"tcp\"").find("f:2: transport: tcp is listed") == 0);
}

}  // namespace ho
