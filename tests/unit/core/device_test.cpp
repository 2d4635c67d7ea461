#include "tessera/core/device.h"

#include <ATen/ATen.h>

#include <thread>

#include "tests/support/test.hpp"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

TEST_CASE("host tensors of a thread are counted, with their peak") {
  HostMemoryCounter counter;
  at::Tensor a = at::empty({1000});
  REQUIRE(counter.use().allocated_bytes == 4000);
  {
    at::Tensor b = at::empty({500}, at::kDouble);
    std::thread([] { at::empty({1 << 20}); }).join();  // another thread's are not ours
  }
  REQUIRE(counter.use().allocated_bytes == 4000);
  REQUIRE(counter.use().peak_allocated_bytes == 8000);
  REQUIRE(counter.use().allocations == 2);
  counter.reset_peak();
  a.reset();
  REQUIRE(counter.use().allocated_bytes == 0);
  REQUIRE(counter.use().peak_allocated_bytes == 4000);
}

TEST_CASE("streams and markers of the CPU do nothing and may be used as on a GPU") {
  const at::Device cpu = at::kCPU;
  const c10::Stream side = side_stream(cpu);
  {
    const StreamScope scope(side);
    Marker marker;
    marker.block(cpu);
    marker.record(cpu);
    marker.block(side);
    marker.synchronize();
    REQUIRE(marker.done());
  }
  set_current_device(cpu);
  synchronize_device(cpu);
  REQUIRE(device_name(cpu) == "CPU");
  REQUIRE_THROWS_AS(memory_use(cpu), Error);
}

TEST_CASE("the rank of a log belongs to its thread") {
  set_log_rank(3);
  int other = 7;
  std::thread([&] { other = log_rank(); }).join();
  REQUIRE(other == -1);
  REQUIRE(log_rank() == 3);
  set_log_rank(-1);
}

}  // namespace
}  // namespace tessera
