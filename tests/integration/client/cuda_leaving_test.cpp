// What becomes of memory that an accelerator has pinned when its node is lost, drained, or ends the
// job's session.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <thread>

#include "tests/integration/client/accelerator_jobs.hpp"
#include "tests/integration/client/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/cuda/cuda_device.hpp"
#include "tests/support/cuda/fake_cuda.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using test::connect_pool;
using test::CudaDevice;
using test::passing;
using test::PlannedJob;
using test::PoolHandle;
using test::TwoNodes;

}  // namespace

TEST_CASE("cuda: a lost node's memory is unpinned while the job still holds its runtime") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  const std::size_t before = fake_cuda_registered();
  PlannedJob job(pool.get(), passing(), 1, *device);
  REQUIRE(job.run(2) == HO_OK);
  CHECK(fake_cuda_registered() > before);
  nodes.daemon(0).send(SIGKILL);
  nodes.daemon(1).send(SIGKILL);
  const auto limit = std::chrono::steady_clock::now() + 20s;
  ho_status status = HO_OK;
  while (status == HO_OK && std::chrono::steady_clock::now() < limit) status = job.queue(1);
  CHECK(status == HO_UNAVAILABLE);
  while (fake_cuda_registered() > before && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(fake_cuda_registered() == before);
  CHECK(device->check() == "");
}
