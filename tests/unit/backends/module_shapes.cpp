// SPDX-License-Identifier: MIT
#include "tests/unit/backends/module_shapes.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "lib/core/hash.h"
#include "tessera/core/error.h"
#include "tests/support/watchdog.hpp"

namespace tessera::testing {
namespace {

std::vector<MicroBatch> rows(const std::function<at::Tensor(const at::Generator&)>& labels) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  std::vector<MicroBatch> all;
  for (int step = 0; step < 2; ++step) {
    all.push_back(make_micro_batch(at::randn({12, 6}, generator), labels(generator)));
  }
  return all;
}

std::string describe(const at::Tensor& tensor, bool of_same_tensors) {
  const at::Tensor values = tensor.detach().contiguous();
  return concat(of_same_tensors ? tensor.unsafeGetTensorImpl() : nullptr, " ", tensor.sizes(), " ",
                tensor.scalar_type(), " ", tensor.requires_grad(), " ",
                xxh3_64(values.const_data_ptr(), values.nbytes()), "\n");
}

}  // namespace

std::vector<NamedLayout> layouts_of_shapes(bool several_blocks) {
  std::vector<NamedLayout> all{{"single", {.strategy = "single"}, {}}};
  for (const int ranks : {2, 3}) {
    for (const char* strategy : {"ddp", "zero2", "zero3", "fsdp"}) {
      const ParallelConfig config{.strategy = strategy, .persistence_threshold = 8};
      all.push_back({concat(strategy, " on ", ranks, " ranks"), config, {.data = ranks}});
    }
  }
  if (several_blocks) all.push_back({"two stages", {.strategy = "ddp"}, {.pipeline = 2}});
  return all;
}

std::vector<MicroBatch> rows_with_classes() {
  return rows([](const at::Generator& g) { return at::randint(3, {12}, g, at::kLong); });
}

std::vector<MicroBatch> rows_with_numbers() {
  return rows([](const at::Generator& g) { return at::randn({12, 3}, g); });
}

std::string within_limit(const std::string& what, const std::function<std::string()>& call) {
  const test::Watchdog watchdog(what, std::chrono::seconds(20));
  try {
    return call();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return error.what();
  }
}

std::string state_of(const torch::nn::Module& module, bool of_same_tensors) {
  std::string all;
  for (const auto& item : module.named_parameters()) {
    all += item.key() + " " + describe(item.value(), of_same_tensors);
  }
  for (const auto& item : module.named_buffers()) {
    all += item.key() + " " + describe(item.value(), of_same_tensors);
  }
  for (const auto& part : module.modules()) {
    all += concat(of_same_tensors ? part.get() : nullptr, " ", part->is_training(), "\n");
  }
  return all;
}

}  // namespace tessera::testing
