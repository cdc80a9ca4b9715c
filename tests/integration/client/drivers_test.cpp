// What a job and a daemon report about the drivers between nodes, with real daemons.
#include <sys/socket.h>
#include <sys/un.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/system/unique_fd.hpp"
#include "tests/integration/client/two_nodes.hpp"

namespace ho::test {
namespace {

struct Asked {
  const char* provider = nullptr;
  const char* domain = nullptr;
  const char* interface = nullptr;
  std::uint32_t connections = 0;
};

PoolHandle connect_over_ofi(const TempFolder& folder, const Asked& asked) {
  const std::string address = unix_address(folder);
  ho_connect_options options{};
  options.struct_bytes = sizeof options;
  options.pool = address.c_str();
  options.name = "drivers";
  options.transport = "ofi";
  options.ofi_allow_emulation = 1;
  options.ofi_provider = asked.provider;
  options.ofi_domain = asked.domain;
  options.ofi_interface = asked.interface;
  options.connections = asked.connections;
  ho_pool* pool = nullptr;
  (void)ho_connect(&options, &pool);
  return PoolHandle(pool);
}

void check_moves(ho_pool* pool, const std::string& driver = "ofi") {
  INFO(ho_last_error());
  REQUIRE(pool != nullptr);
  REQUIRE(std::string(ho_pool_transport(pool)) == driver);
  ho_allocation* allocation = nullptr;
  REQUIRE(ho_allocate(pool, 1U << 20U, &allocation) == HO_OK);
  std::vector<char> memory(8192, 'y');
  REQUIRE(ho_register(pool, memory.data(), memory.size()) == HO_OK);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool, allocation, 0, memory.data(), 4096, &ticket) == HO_OK);
  REQUIRE(ho_wait(pool, ticket) == HO_OK);
  std::memset(memory.data() + 4096, 0, 4096);
  REQUIRE(ho_get(pool, allocation, 0, memory.data() + 4096, 4096, &ticket) == HO_OK);
  REQUIRE(ho_wait(pool, ticket) == HO_OK);
  CHECK(std::memcmp(memory.data(), memory.data() + 4096, 4096) == 0);
  ho_free(pool, allocation);
}

TEST_CASE("drivers: a job keeps to the domain and interface it names, an error lists others") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d",
                             {small_config(folder, "ofi { allow_emulation: true }\n"), {}, false});
  (void)connect(unix_address(folder));
  check_moves(connect_over_ofi(folder, {"net", "lo", "lo", 3}).get());
  CHECK(connect_over_ofi(folder, {nullptr, nullptr, nullptr, 17}) == nullptr);
  CHECK(connect_over_ofi(folder, {nullptr, nullptr, "nonesuch0", 0}) == nullptr);
  CHECK(std::string(ho_last_error()).find("no network interface \"nonesuch0\"") !=
        std::string::npos);
  CHECK(connect_over_ofi(folder, {nullptr, "nonesuch0", nullptr, 0}) == nullptr);
  CHECK(std::string(ho_last_error()).find("no domain 'nonesuch0'") != std::string::npos);
  CHECK(connect_over_ofi(folder, {"shm", nullptr, nullptr, 0}) == nullptr);
  // libfabric's TCP has two names: common/transport/ofi/provider_names.hpp.
  const std::string why = ho_last_error();
  CHECK((why.find("speaks 'net', not 'shm'") != std::string::npos ||
         why.find("speaks 'tcp', not 'shm'") != std::string::npos));
}

TEST_CASE("drivers: another provider of libfabric's serves at a named interface") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d",
                             {small_config(folder,
                                           "ofi { provider: \"tcp;ofi_rxm\" domain: \"lo\" "
                                           "interface: \"lo\" allow_emulation: true }\n"),
                              {},
                              false});
  (void)connect(unix_address(folder));
  check_moves(connect_over_ofi(folder, {}).get());
}

/// Counts the threads of this process with that name.
std::size_t threads_named(const std::string& name) {
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string found;
    std::getline(file, found);
    count += found == name ? 1 : 0;
  }
  return count;
}

TEST_CASE("drivers: a job says how many threads share its copies, and they end with its pool") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, ""), {}, false});
  (void)connect(unix_address(folder));
  const std::string address = unix_address(folder);
  ho_connect_options options{};
  options.struct_bytes = sizeof options;
  options.pool = address.c_str();
  options.local_threads = 3;
  ho_pool* pool = nullptr;
  REQUIRE(ho_connect(&options, &pool) == HO_OK);
  {
    const PoolHandle shared(pool);
    check_moves(pool, "local");
    CHECK(threads_named("ho-copy") == 2);
  }
  // The kernel lists a thread a moment longer than join() waits.
  for (int looks = 0; looks < 1000 && threads_named("ho-copy") > 0; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(threads_named("ho-copy") == 0);
  options.local_threads = 5;
  CHECK(ho_connect(&options, &pool) == HO_INVALID_ARGUMENT);
  CHECK_THAT(ho_last_error(), Catch::Contains("local_threads: 5 is not in 0 .. 4"));
}

TEST_CASE("drivers: options that one driver cannot have are refused, also where others would do") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, "tcp { }\n"), {}, false});
  (void)connect(unix_address(folder));
  const std::string address = unix_address(folder);
  ho_connect_options good{};
  good.struct_bytes = sizeof good;
  good.pool = address.c_str();
  const auto refused = [&](const ho_connect_options& options, const char* why) {
    ho_pool* pool = nullptr;
    CHECK(ho_connect(&options, &pool) == HO_INVALID_ARGUMENT);
    CHECK_THAT(ho_last_error(), Catch::Contains(why));
    CHECK(pool == nullptr);
    (void)ho_disconnect(pool);
  };
  ho_connect_options options = good;
  options.local_threads = 5;
  refused(options, "local_threads: 5 is not in 0 .. 4");
  options = good;
  options.connections = 17;
  refused(options, "connections: 17 is not in 0 .. 16");
  options = good;
  options.tcp_interface = "nonesuch0";
  refused(options, "tcp_interface: no network interface \"nonesuch0\" here");
  options = good;
  options.ofi_interface = "nonesuch0";
  refused(options, "ofi_interface: no network interface \"nonesuch0\" here");
}

TEST_CASE("drivers: over tcp a job keeps to the interface and the connections it names") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, "tcp { }\n"), {}, false});
  (void)connect(unix_address(folder));
  const std::string address = unix_address(folder);
  ho_connect_options options{};
  options.struct_bytes = sizeof options;
  options.pool = address.c_str();
  options.transport = "tcp";
  options.tcp_interface = "lo";
  options.connections = 3;
  ho_pool* pool = nullptr;
  (void)ho_connect(&options, &pool);
  check_moves(PoolHandle(pool).get(), "tcp");
}

TEST_CASE("drivers: a job on a daemon that forbids local uses tcp, also on its machine") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d",
                             {small_config(folder, "tcp { }\ntransport: \"tcp\"\n"), {}, false});
  (void)connect(unix_address(folder));
  const PoolHandle pool = connect_pool(unix_address(folder), "auto");
  check_moves(pool.get(), "tcp");
}

TEST_CASE("drivers: ucx emulates over TCP where both ends ask for it, and nowhere else") {
  const TempFolder folder;
  const std::string ucx =
      "insecure: true\nucx { transports: \"tcp\" devices: \"lo\" allow_emulation: true }\n";
  const DaemonProcess daemon(folder, "d", {small_config(folder, ucx), {}, false});
  (void)connect(unix_address(folder));
  const std::string address = unix_address(folder);
  ho_connect_options options{};
  options.struct_bytes = sizeof options;
  options.pool = address.c_str();
  options.transport = "ucx";
  options.ucx_devices = "lo";
  options.ucx_transports = "tcp";
  ho_pool* pool = nullptr;
  CHECK(ho_connect(&options, &pool) != HO_OK);
  options.ucx_allow_emulation = 1;
  (void)ho_connect(&options, &pool);
  const PoolHandle emulated(pool);
  check_moves(emulated.get(), "ucx");
}

TEST_CASE("drivers: a job that began with local alone reaches a node that comes later by tcp") {
  const TempFolder near_folder;
  const TempFolder far_folder;
  const std::string peer = "nodes { node_id: 4 name: \"far\" control_addresses: \"" +
                           unix_address(far_folder) + "\" }\n";
  const DaemonProcess near(near_folder, "near", {small_config(near_folder, peer), {}, false});
  (void)connect(unix_address(near_folder));
  const PoolHandle pool = connect_pool(unix_address(near_folder), "auto");
  REQUIRE(std::string(ho_pool_transport(pool.get())) == "local");
  constexpr std::uint64_t kMoreThanOneHas = 40U << 20U;
  ho_allocation* allocation = nullptr;
  CHECK(ho_allocate(pool.get(), kMoreThanOneHas, &allocation) == HO_EXHAUSTED);

  std::string far_config = small_config(far_folder, "tcp { }\ntransport: \"tcp\"\n");
  far_config.replace(far_config.find("node_id: 3"), 10, "node_id: 4");
  const DaemonProcess far(far_folder, "far", {far_config, {}, false});
  (void)connect(unix_address(far_folder));
  std::vector<unsigned char> arena(4096);
  ho_device_memory memory{};
  memory.struct_bytes = sizeof memory;
  memory.arena = arena.data();
  memory.arena_bytes = arena.size();
  ho_runtime* runtime = nullptr;
  REQUIRE(ho_open(pool.get(), &memory, &runtime) == HO_OK);
  REQUIRE(ho_allocate(pool.get(), kMoreThanOneHas, &allocation) == HO_OK);
  std::vector<char> bytes(kMoreThanOneHas, 'y');
  REQUIRE(ho_register(pool.get(), bytes.data(), bytes.size()) == HO_OK);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool.get(), allocation, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  REQUIRE(ho_wait(pool.get(), ticket) == HO_OK);
  std::fill(bytes.begin(), bytes.end(), 'n');
  REQUIRE(ho_get(pool.get(), allocation, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  REQUIRE(ho_wait(pool.get(), ticket) == HO_OK);
  CHECK(std::count(bytes.begin(), bytes.end(), 'y') == static_cast<std::ptrdiff_t>(bytes.size()));
  ho_free(pool.get(), allocation);
  ho_close(runtime);
}

TEST_CASE("drivers: an address that hangs leaves time for the node's next one") {
  const TempFolder near_folder;
  const TempFolder far_folder;
  // Accepts connections and never answers.
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  const std::string silent = near_folder.file("silent.sock");
  REQUIRE(silent.copy(where.sun_path, sizeof where.sun_path - 1) == silent.size());
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
  REQUIRE(::listen(listener.get(), 4) == 0);
  const std::string peer = "nodes { node_id: 4 name: \"far\" control_addresses: \"unix:" + silent +
                           "\" control_addresses: \"" + unix_address(far_folder) + "\" }\n";
  const DaemonProcess near(near_folder, "near", {small_config(near_folder, peer), {}, false});
  std::string far_config = small_config(far_folder, "");
  far_config.replace(far_config.find("node_id: 3"), 10, "node_id: 4");
  const DaemonProcess far(far_folder, "far", {far_config, {}, false});
  (void)connect(unix_address(near_folder));
  (void)connect(unix_address(far_folder));
  const PoolHandle pool = connect_pool(unix_address(near_folder), "auto");
  CHECK(connect(unix_address(far_folder))->sessions(soon())->size() == 1);
}

TEST_CASE("drivers: a node that no driver reaches is left out, and fails the job where it is all") {
  const TempFolder near_folder;
  const TempFolder far_folder;
  const std::string only_ofi = "ofi { allow_emulation: true }\ntransport: \"ofi\"\n";
  const std::string peer = "nodes { node_id: 4 name: \"far\" control_addresses: \"" +
                           unix_address(far_folder) + "\" }\n";
  const DaemonProcess near(near_folder, "near", {small_config(near_folder, peer), {}, false});
  std::string far_config = small_config(far_folder, only_ofi);
  far_config.replace(far_config.find("node_id: 3"), 10, "node_id: 4");
  const DaemonProcess far(far_folder, "far", {far_config, {}, false});
  (void)connect(unix_address(near_folder));
  (void)connect(unix_address(far_folder));
  const auto pool_of = [](const std::string& address, const char* transport) {
    ho_connect_options options{};
    options.struct_bytes = sizeof options;
    options.pool = address.c_str();
    options.transport = transport;
    options.ofi_allow_emulation = 1;
    options.ofi_provider = "tcp;ofi_rxm";  // the interface of the daemon is another one
    ho_pool* pool = nullptr;
    (void)ho_connect(&options, &pool);
    return PoolHandle(pool);
  };
  for (const char* transport : {"auto", "local"}) {
    const PoolHandle pool = pool_of(unix_address(near_folder), transport);
    INFO(ho_last_error());
    REQUIRE(pool != nullptr);
    CHECK(std::string(ho_pool_transport(pool.get())) == "local");
    CHECK(connect(unix_address(far_folder))->sessions(soon())->empty());
  }
  // The daemon does not know its peers, so alone it is a pool that no driver reaches.
  CHECK(pool_of(unix_address(far_folder), "local") == nullptr);
  CHECK(std::string(ho_last_error()).find("local: not offered by it") != std::string::npos);
  CHECK(pool_of(unix_address(far_folder), "auto") == nullptr);
  CHECK(std::string(ho_last_error()).find("ofi: ") != std::string::npos);
}

}  // namespace
}  // namespace ho::test
