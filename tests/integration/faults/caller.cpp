#include "tests/integration/faults/caller.hpp"

#include <algorithm>

namespace ho::test {
namespace {

constexpr char kTakenBack = 0x2A;

char pattern_at(std::size_t index) { return static_cast<char>(index * 31 + (index >> 12U)); }

}  // namespace

const char* name_of(Way way) { return way == Way::kGet ? "get" : "put"; }
const char* name_of(Load load) { return load == Load::kIdle ? "idle" : "64 in flight"; }

ho_pool* try_connect(const std::string& addresses, const char* transport,
                     std::uint32_t op_deadline_ms, std::string& why, const char* ucx_devices) {
  ho_connect_options options{};
  options.struct_bytes = sizeof(options);
  options.pool = addresses.c_str();
  options.transport = transport;
  options.name = "faults";
  options.op_deadline_ms = op_deadline_ms;
  options.ucx_devices = ucx_devices;
  ho_pool* pool = nullptr;
  if (ho_connect(&options, &pool) == HO_OK) return pool;
  why = ho_last_error();
  return nullptr;
}

Caller::Caller(ho_pool* pool, ho_allocation* memory, std::uint64_t offset)
    : pool_(pool), memory_(memory), offset_(offset), host_(kOps * kOpBytes) {
  for (std::size_t i = 0; i < host_.size(); ++i) host_[i] = pattern_at(i % kAreaBytes);
  if (ho_register(pool_, host_.data(), host_.size()) != HO_OK) host_.clear();
}

Caller::~Caller() {
  if (!host_.empty()) (void)ho_unregister(pool_, host_.data());
}

ho_status Caller::start(Way way, std::size_t op, std::uint64_t* ticket) {
  char* const host = host_.data() + op * kOpBytes;
  const std::uint64_t at = offset_ + op * kOpBytes % kAreaBytes;
  return way == Way::kGet ? ho_get(pool_, memory_, at, host, kOpBytes, ticket)
                          : ho_put(pool_, memory_, at, host, kOpBytes, ticket);
}

Told Caller::batch(Way way) {
  std::vector<std::uint64_t> tickets;
  Told told;
  const auto note = [&](ho_status status) {
    if (status == HO_OK || told.status != HO_OK) return;
    told = {status, ho_last_error(), {}};
  };
  for (std::size_t op = 0; op < kOps; ++op) {
    std::uint64_t ticket = 0;
    const ho_status status = start(way, op, &ticket);
    note(status);
    if (status == HO_OK) tickets.push_back(ticket);
  }
  for (const std::uint64_t ticket : tickets) note(ho_wait(pool_, ticket));
  told.at = std::chrono::steady_clock::now();
  return told;
}

Told Caller::single(Way way) {
  std::uint64_t ticket = 0;
  ho_status status = start(way, 0, &ticket);
  if (status == HO_OK) status = ho_wait(pool_, ticket);
  return {status, status == HO_OK ? "" : ho_last_error(), std::chrono::steady_clock::now()};
}

Told Caller::go_on(Way way, Load load, Instant until) {
  Told told;
  do {
    told = load == Load::kBusy ? batch(way) : single(way);
    if (load == Load::kIdle) std::this_thread::sleep_for(milliseconds(2));
  } while (told.status == HO_OK && std::chrono::steady_clock::now() < until);
  return told;
}

bool Caller::right() {
  std::fill(host_.begin(), host_.end(), '\0');
  if (batch(Way::kGet).status != HO_OK) return false;
  for (std::size_t i = 0; i < host_.size(); ++i) {
    if (host_[i] != pattern_at(i % kAreaBytes)) return false;
  }
  return true;
}

void Caller::take_back() { std::fill(host_.begin(), host_.end(), kTakenBack); }

bool Caller::untouched() const {
  return std::all_of(host_.begin(), host_.end(), [](char byte) { return byte == kTakenBack; });
}

Bystander::Bystander(const std::string& address, const char* transport)
    : thread_([this, address, transport] { run(address, transport); }) {
  while (!ready_.load()) std::this_thread::sleep_for(milliseconds(1));
}

Bystander::~Bystander() { (void)end(); }

std::string Bystander::end() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
  return complaint_;
}

void Bystander::run(const std::string& address, const char* transport) {
  ho_allocation* memory = nullptr;
  ho_pool* const pool = try_connect(address, transport, 0, complaint_);
  if (pool != nullptr && ho_allocate(pool, Caller::kAreaBytes, &memory) == HO_OK) {
    Caller caller(pool, memory, 0);
    const Told put = caller.batch(Way::kPut);
    if (put.status != HO_OK) complaint_ = put.error;
    ready_.store(true);
    while (!stop_.load() && complaint_.empty()) {
      if (!caller.right()) complaint_ = std::string("wrong or no bytes: ") + ho_last_error();
      std::this_thread::sleep_for(milliseconds(5));
    }
  } else if (complaint_.empty()) {
    complaint_ = ho_last_error();
  }
  ready_.store(true);
  if (memory != nullptr) ho_free(pool, memory);
  ho_disconnect(pool);
}

}  // namespace ho::test
