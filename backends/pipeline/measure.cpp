// SPDX-License-Identifier: MIT
#include "backends/pipeline/measure.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "backends/common/timed_pass.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kRuns = 4;  // the first ones warm up; the fastest counts

struct Measured {
  BlockCost cost;
  std::vector<int64_t> input;  // shape; empty for the first block
  at::Tensor output;
  double seconds = 0;

  bool same_work(const BlockCost& other, at::IntArrayRef other_input) const {
    return cost.parameters > 0 && cost.parameters == other.parameters &&
           cost.flops_per_token == other.flops_per_token && other_input == at::IntArrayRef(input);
  }
};

Measured measure(Block& block, const at::Tensor& hidden, const MicroBatch& micro_batch,
                 const BlockContext& context, at::Device device) {
  Measured measured;
  for (int i = 0; i < kRuns; ++i) {
    TimedPass pass = timed_pass(block, hidden, micro_batch, context, device);
    measured.seconds = i == 0 ? pass.seconds : std::min(measured.seconds, pass.seconds);
    measured.output = std::move(pass.output);
  }
  return measured;
}

}  // namespace

std::vector<double> measure_block_costs(const ModelSpec& model, const BuildContext& context,
                                        at::ScalarType dtype, const MicroBatch& micro_batch,
                                        Communicator& comm) {
  check(model.block_count() > 0, ErrorCode::kInvalidArgument, "model ", model.name,
        " has no blocks");
  const MicroBatch batch = micro_batch.to(context.device);
  const BlockContext training{
      .loss_gradient = at::ones({}, at::TensorOptions(at::kFloat).device(context.device)),
      .training = true};
  std::vector<Measured> known;
  std::vector<double> seconds;
  at::Tensor hidden;
  for (const auto& builder : model.blocks) {
    const auto input = hidden.defined() ? hidden.sizes().vec() : std::vector<int64_t>{};
    auto found = std::find_if(known.begin(), known.end(), [&](const Measured& measured) {
      return measured.same_work(builder.cost, input);
    });
    if (found == known.end()) {
      const auto block = build_for_timing(builder, context, dtype);
      known.push_back(measure(*block, hidden, batch, training, context.device));
      found = std::prev(known.end());
      found->cost = builder.cost;
      found->input = input;
    }
    seconds.push_back(found->seconds);
    hidden = found->output;
  }
  at::Tensor mean = at::tensor(seconds, at::kDouble).to(comm.device()) / comm.size();
  comm.all_reduce(mean).wait();
  mean = mean.cpu();
  return {mean.const_data_ptr<double>(), mean.const_data_ptr<double>() + mean.numel()};
}

}  // namespace tessera
