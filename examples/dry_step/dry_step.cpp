// SPDX-License-Identifier: MIT
// What each rank would hold and call with a module and an optimizer of your own, without GPUs,
// other ranks or data:
//   dry_step [STRATEGY [RANKS]]
#include <tessera/model/adapters.h>
#include <tessera/optim/elementwise.h>
#include <tessera/plan/dry_step.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace {

using namespace tessera;
namespace nn = torch::nn;

constexpr int64_t kWidth = 1024, kClasses = 10, kRows = 64;

nn::Sequential network() {
  nn::Sequential net(nn::Linear(kWidth, 4 * kWidth), nn::GELU());
  for (int i = 0; i < 3; ++i) net->push_back(nn::Linear(4 * kWidth, 4 * kWidth));
  net->push_back(nn::Linear(4 * kWidth, kClasses));
  return net;
}

at::Tensor mean_loss(const at::Tensor& scores, const MicroBatch& batch) {
  return nn::functional::cross_entropy(scores, batch.labels);
}

// Momentum with the sign of the gradient: one state for every element.
OptimizerFactory sign_momentum() {
  const auto update = [](const ElementwiseStep& step, std::vector<at::Tensor>& state) {
    state[0] = state[0] * 0.9 + step.gradient.sign() * 0.1;
    return step.parameter - step.learning_rate * state[0];
  };
  return make_elementwise("SignMomentum", {"momentum"}, update);
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void print(const StepLedger& ledger) {
  const auto line = [](const char* what, int64_t bytes) {
    std::printf("  %-38s %10.2f MiB\n", what, mib(bytes));
  };
  line("parameters", ledger.state.parameter_bytes);
  line("gradients", ledger.state.gradient_bytes);
  line("optimizer", ledger.state.optimizer_bytes);
  line("buffers of the strategy", ledger.state.buffer_bytes);
  line("the most at one time", ledger.device.bytes);
  std::printf("  reached in %s of block \"%s\", with\n", ledger.device.phase.c_str(),
              ledger.device.name.c_str());
  for (const LedgerMemory& part : ledger.device.parts) {
    if (part.bytes > 1 << 20) line(("  " + part.phase + " " + part.name).c_str(), part.bytes);
  }
  std::map<std::string, std::pair<int, int64_t>> operations;  // how many, bytes sent
  const CommunicationLedger& calls = ledger.communication;
  for (const LedgerOperation& each : calls.operations) {
    auto& [count, bytes] = operations[std::string(name_of(each.kind)) + " on " +
                                      text_of(calls.communicators[each.communicator])];
    ++count;
    bytes += each.bytes_sent;
  }
  for (const auto& [what, sum] : operations) {
    std::printf("  %3d %-50s %10.2f MiB sent\n", sum.first, what.c_str(), mib(sum.second));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string strategy = argc > 1 ? argv[1] : "zero3";
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 4;
  const MicroBatch rows =
      make_micro_batch(torch::zeros({kRows, kWidth}), torch::zeros({kRows}, torch::kLong));
  DryStep step{.model = from_sequential(network(), mean_loss, {.reduction = LossReduction::kMean}),
               .parallel = {.strategy = strategy},
               .optimizer = sign_momentum(),
               .mesh = {.data = ranks},
               .micro_batches = {rows, rows},
               .device = at::kCUDA};
  try {
    for (const int rank : {0, ranks - 1}) {
      step.coordinate = {.data = rank};
      std::printf("rank %d of %d, %s\n", rank, ranks, strategy.c_str());
      print(dry_step(step));
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.code());
  }
}
