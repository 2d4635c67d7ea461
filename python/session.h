// SPDX-License-Identifier: MIT
#pragma once
// A model under a strategy with the operations of a loop; independent of Python.
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/settings/train_flags.h"
#include "python/model.h"
#include "tessera/backends/strategy.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/comm/control_channel.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/generation/generate.h"
#include "tessera/optim/loss_scaler.h"

namespace tessera::python {

using SettingTexts = std::vector<std::pair<std::string, std::string>>;  // name, value

// Device scalars, to be read on demand.
struct ClipResult {
  at::Tensor norm, coefficient, overflow;
};

// Session of a loop; every call is collective, from one thread.
class Session {
 public:
  // settings: strategy and optimizer flags of docs/reference/flags.md. weights: null: random ones;
  // weights_text identifies them. Throws Error(kInvalidArgument) on all ranks if arguments differ
  // between ranks or are invalid.
  Session(Communicator& world, ControlChannel& control, const Model& model,
          const TensorSource* weights, const std::string& weights_text,
          const SettingTexts& settings);

  StepResult forward_backward(std::span<const MicroBatch> batches);
  // Log-probability of every label of causal micro-batches, in evaluation mode: fp32 [rows, tokens]
  // on the CPU, in the labels' places as they were given; 0 where there is no target.
  std::vector<at::Tensor> log_probabilities(std::span<const MicroBatch> batches);
  // The gradient of a loss with this value, on this rank, and these derivatives by
  // log_probabilities(); data ranks' losses are averaged. The result's loss is that average.
  StepResult forward_backward(std::vector<MicroBatch> batches, double loss,
                              std::span<const at::Tensor> derivatives);
  // Clips to this global norm; 0 only measures it. At most once per step.
  ClipResult clip(double max_norm);
  void optimizer_step(double learning_rate);
  StepResult evaluate(std::span<const MicroBatch> batches);
  std::vector<GeneratedRow> generate(std::span<const std::vector<int64_t>> prompts,
                                     GenerationOptions options);

  // Saves a checkpoint and returns its path.
  std::string save(const std::string& directory, int64_t total_limit);
  // Loads a checkpoint, or the newest in a directory; returns its number of steps.
  int64_t load(const std::string& path);
  // Writes a directory for from_pretrained(), on rank 0.
  void export_model(const std::string& directory);
  // fp32 on the host, by checkpoint names.
  std::vector<std::pair<std::string, at::Tensor>> parameters();
  // Parameters as above and buffers in their own dtypes, under every name that a tied one has.
  std::vector<std::pair<std::string, at::Tensor>> state_dict();
  // Takes the values of state_dict(); buffers may be left out. The optimizer's state stays, a
  // gradient is dropped. given: checked against the model's parameters.
  void load_state_dict(const TensorSource& given, const std::string& given_text,
                       const std::map<std::string, at::Tensor>& buffers);
  // Names and values of the buffers.
  std::vector<std::pair<std::string, at::Tensor>> buffers();

  void end_of_data() { strategy_->end_of_data(Strategy::Pass::kTraining, steps_); }

  int64_t steps() const { return steps_; }
  int64_t updates() const;  // without skipped ones; synchronises
  double loss_scale() const { return scaler_.state().scale; }
  StrategyMemory memory() const { return strategy_->memory(); }
  const Model& model() const { return model_; }
  const ModelSpec& spec() const { return spec_; }  // with adapters

 private:
  // Runs fn on rank 0; its exceptions are thrown on all ranks.
  void on_first_rank(const std::function<void()>& fn);
  void check_gradient(const char* call) const;

  Communicator& world_;
  ControlChannel& control_;
  Model model_;
  programs::TrainOptions options_;
  programs::FlagSet flags_;
  std::optional<AdapterConfig> adapter_;
  ModelSpec spec_;
  std::unique_ptr<DeviceMesh> mesh_;
  std::unique_ptr<Strategy> strategy_;
  LossScaler scaler_;
  std::optional<ClipResult> clipped_;  // for the gradient that no step has used
  bool has_gradient_ = false;          // one that no step has used
  at::Tensor skipped_;                 // int64 device scalar: skipped steps
  int64_t steps_ = 0;
};

}  // namespace tessera::python
