// SPDX-License-Identifier: MIT
// States on a GPU: staged while written, copied to the device or the host for an asynchronous save,
// and loaded.
#include "tessera/checkpoint/checkpoint.h"

#include <ATen/ATen.h>

#include "lib/checkpoint/snapshot.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/core/device.h"
#include "tests/gpu/gpu.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

// Larger than the staging buffer, in uneven parts, with host values among them.
std::vector<StateTensor> state_on_gpu(double first) {
  const int64_t rows = 3001, columns = 4099;
  std::vector<StateTensor> state;
  for (const char* kind : {"parameter", "exp_avg"}) {
    const at::Device device = kind[0] == 'p' ? at::kCUDA : at::kCPU;
    const at::Tensor values = at::arange(rows * columns, at::kFloat).add_(first).to(device);
    const int64_t middle = 5'000'011;
    for (const auto& [begin, end] :
         {std::pair(int64_t{0}, middle), std::pair(middle, rows * columns)}) {
      const TensorSlice slice{.shape = {rows, columns}, .begin = begin, .end = end};
      state.push_back({"w", kind, slice, values.slice(0, begin, end), {}});
    }
  }
  return state;
}

void require_loads(const std::string& path, double first) {
  const auto expected = state_on_gpu(first);
  auto loaded = state_on_gpu(-5);
  const Checkpoint checkpoint(path);
  checkpoint.load(loaded);
  for (size_t i = 0; i < loaded.size(); ++i) {
    CHECK(loaded[i].value.device() == expected[i].value.device());
    CHECK(at::equal(loaded[i].value, expected[i].value));
  }
  // In another dtype, all on the device.
  for (StateTensor& tensor : loaded)
    tensor.value = tensor.value.to(at::kCUDA, at::kBFloat16).zero_();
  checkpoint.load(loaded);
  for (size_t i = 0; i < loaded.size(); ++i) {
    CHECK(at::equal(loaded[i].value, expected[i].value.to(at::kCUDA, at::kBFloat16)));
  }
}

}  // namespace

TEST_CASE("a state on a GPU is saved and loaded, beside the next steps as well") {
  TESSERA_NEEDS_GPUS(1);
  const TempDir folder;
  for (const bool asynchronous : {false, true}) {
    const int64_t step = asynchronous ? 2 : 1;
    run_ranks(1, [&](Communicator& world) {
      CheckpointWriter writer(world, folder.path("run"), {.asynchronous = asynchronous});
      const auto state = state_on_gpu(static_cast<double>(step));
      writer.save(step, state, "{}");
      for (const StateTensor& tensor : state) tensor.value.fill_(-9);  // the next step
      require(writer.wait().size() == 1, "one checkpoint");
    });
    require_loads(folder.path("run/checkpoint-" + std::to_string(step)), static_cast<double>(step));
  }
}

TEST_CASE("a snapshot lies on the device while there is room, else in page-locked host memory") {
  TESSERA_NEEDS_GPUS(1);
  const auto originals = pieces_to_write(state_on_gpu(3));
  Snapshot snapshot(/*host_ranks=*/1);
  auto copies = originals;
  REQUIRE(snapshot.take(copies, true));
  snapshot.copy_the_rest();
  snapshot.give(copies);
  CHECK(copies.front().value.is_cuda());
  // Takes all but about 100 MiB of the device.
  const at::Device device(at::kCUDA, 0);
  const int64_t rest = device_memory(device).first - (int64_t{100} << 20);
  const at::Tensor hog = at::empty({rest}, at::dtype(at::kByte).device(device));
  copies = originals;
  REQUIRE(snapshot.take(copies, true));
  CHECK(snapshot.has_rest());
  snapshot.copy_the_rest();
  snapshot.give(copies);
  synchronize_device(device);
  for (size_t i = 0; i < copies.size(); ++i) {
    CHECK(copies[i].value.is_cpu());
    CHECK(at::equal(copies[i].value, originals[i].value.cpu()));
  }
  CHECK(copies.front().value.is_pinned());
}
