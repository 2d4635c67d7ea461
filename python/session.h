// SPDX-License-Identifier: MIT
#pragma once
// A model under a strategy and what a loop does with it; nothing of Python.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/settings/train_flags.h"
#include "python/model.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/control_channel.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/generation/generate.h"
#include "tessera/optim/loss_scaler.h"

namespace tessera::python {

using SettingTexts = std::vector<std::pair<std::string, std::string>>;  // name, value

// Device scalars, read when asked for.
struct ClipResult {
  at::Tensor norm, coefficient, overflow;
};

// Every call is collective and made by one thread.
class Session {
 public:
  // settings: of docs/reference/flags.md, those of the strategy and of the optimizer. weights: null
  // draws them; weights_text says which they are, the same on all ranks. Throws
  // Error(kInvalidArgument) on all ranks where these differ or are refused.
  Session(Communicator& world, ControlChannel& control, const Model& model,
          const TensorSource* weights, const std::string& weights_text,
          const SettingTexts& settings);

  StepResult forward_backward(std::span<const MicroBatch> batches);
  // Clips to this global norm; 0 only measures it. At most once a step.
  ClipResult clip(double max_norm);
  void optimizer_step(double learning_rate);
  StepResult evaluate(std::span<const MicroBatch> batches);
  std::vector<GeneratedRow> generate(std::span<const std::vector<int64_t>> prompts,
                                     GenerationOptions options);

  // The path of the checkpoint.
  std::string save(const std::string& directory, int64_t total_limit);
  // From a checkpoint or the newest of a directory: the steps it has made.
  int64_t load(const std::string& path);
  // A directory that from_pretrained() opens; by rank 0.
  void export_model(const std::string& directory);
  // fp32, on the host, by names of checkpoints.
  std::vector<std::pair<std::string, at::Tensor>> parameters();

  void end_of_data() { strategy_->end_of_data(Strategy::Pass::kTraining, steps_); }

  int64_t steps() const { return steps_; }
  int64_t updates() const;  // without skipped ones; waits for the device
  double loss_scale() const { return scaler_.state().scale; }
  StrategyMemory memory() const { return strategy_->memory(); }
  const Model& model() const { return model_; }

 private:
  // Runs it on rank 0; what it throws is thrown on all ranks.
  void on_first_rank(const std::function<void()>& fn);
  void check_gradient(const char* call) const;

  Communicator& world_;
  ControlChannel& control_;
  Model model_;
  programs::TrainOptions options_;
  programs::FlagSet flags_;
  ModelSpec spec_;
  std::unique_ptr<DeviceMesh> mesh_;
  std::unique_ptr<Strategy> strategy_;
  LossScaler scaler_;
  std::optional<ClipResult> clipped_;  // of the gradient that no step has used
  bool has_gradient_ = false;          // that no step has used
  at::Tensor skipped_;                 // int64 device scalar: steps
  int64_t steps_ = 0;
};

}  // namespace tessera::python
