// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Base of the strategies that keep every block on every rank of the data axis: ddp, ZeRO, fsdp.
/// They differ in which ranges of the flat buffers a rank owns and when it gathers the rest.
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/micro_batch_run.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/sharding_setup.h"
#include "tessera/sharding/sharding_rules.h"

namespace tessera {

struct AttachedModel;
class ActivationOffload;
class AllocatorReserve;
class BlockRunner;
class ForwardPasses;
class GradientScale;
class ParameterVisits;
class ReplicatedGradientReducer;
class StepAgreement;
class StepGraphRunner;
class StrategyState;
struct StepState;
struct ProcessGroups;

/// Loop over blocks and micro-batches, loss scaling, norms and optimizer step of all sharding
/// strategies. Derived classes give the rules, and perhaps stores of their own. Every block runs on
/// a detached leaf and has its own backward call, so code before and after a block stands in one
/// loop, not in hooks.
class ShardingStrategy : public Strategy {
 public:
  /// Collective where the rules make groups of ranks.
  ShardingStrategy(const ParallelConfig& config, const ShardingSetup& setup,
                   const ShardingRules& rules);
  ~ShardingStrategy() override;

  void attach(const ModelSpec& model, const BuildContext& context,
              const OptimizerFactory& optimizer) override;
  void set_loss_scale(const at::Tensor& scale) override { loss_scale_ = scale; }
  StepResult forward_backward(std::span<const MicroBatch> micro_batches,
                              const BackwardOptions& options = {}) override;
  StepResult evaluate(std::span<const MicroBatch> micro_batches) override;
  void end_of_data(Pass pass, int64_t done) override;
  std::vector<at::Tensor> predict(std::span<const MicroBatch> micro_batches,
                                  const ScoreSelection& select = {}) override;
  at::Tensor forward(const MicroBatch& micro_batch, const ForwardOptions& options = {}) override;
  bool supports_kv_cache() const override;
  void require_connected() const override;
  at::Tensor grad_norm_squared() override;
  void scale_gradients(const at::Tensor& factor) override;
  void for_each_gradient(const GradientVisitor& visitor) override;
  NamedTensors gradient_norms() override;
  void optimizer_step(double learning_rate, const at::Tensor& skip = {}) override;
  void visit_parameters(const ParameterVisitor& visitor) override;
  void visit_gradients(const ParameterVisitor& visitor) override;
  void visit_buffers(const ParameterVisitor& visitor) override;
  std::vector<StateTensor> state() override;
  void state_restored() override;
  StrategyMemory memory() const override;
  OffloadReport offload_report() override;
  int64_t extra_bytes_sent() const override;
  int64_t parameter_count() const override;
  ///@{
  /// visit_parameters() and visit_gradients() without gathering: a sharded parameter is this rank's
  /// slice, which gather_whole() completes.
  void visit_parameter_slices(const ParameterVisitor& visitor);
  void visit_gradient_slices(const ParameterVisitor& visitor);
  ///@}
  /// gradient_norms() squared, for the parameters on this rank's stage.
  NamedTensors squared_norms();

  /// Parts of forward_backward() and evaluate() for schedules that interleave micro-batches. Order:
  /// begin(); make_run(), forward() and backward() of every micro-batch; finish(). Micro-batches
  /// pass the same blocks in increasing order.
  void begin(std::span<const MicroBatch> micro_batches, bool with_gradients,
             const BackwardOptions& options = {});
  /// begin() for predict(): forward() of every micro-batch follows, then finish_predictions().
  void begin_predictions(std::span<const MicroBatch> micro_batches);
  void finish_predictions();  ///< ends what begin_predictions() began
  /// A pass of micro-batch `index` through blocks [first_block, first_block + block_count) of this
  /// rank.
  MicroBatchRun make_run(size_t index, size_t first_block, size_t block_count) const;
  ///@{
  /// The loss block's backward follows its forward at once, inside forward().
  void forward(MicroBatchRun& run);
  void backward(MicroBatchRun& run);
  ///@}
  /// The weight gradients that blocks have deferred. For runs with splits_backward: after
  /// backward(), in increasing order, before finish().
  void backward_weights(MicroBatchRun& run);
  /// Ends begin(). loss and counters are undefined when this rank's stage has no loss.
  StepResult finish();
  ///@{
  /// gives_divisor(): whether this rank's loss returns its own divisor. divide_by(): applies it on
  /// stages without the loss, after finish(); divisor: summed over the batch.
  bool gives_divisor() const;
  void divide_by(const at::Tensor& divisor);
  ///@}
  size_t block_count() const;  ///< number of blocks on this rank
  int sharers() const;         ///< ranks of the mesh that share one data coordinate
  /// Also for a step that can be neither finished nor dropped on all ranks.
  void give_up(const std::string& why) override;

 protected:
  ///@{
  /// Stores that the rules select.
  virtual std::unique_ptr<ParameterStore> make_parameters();
  virtual std::unique_ptr<GradientStore> make_gradients();
  ///@}

  /// the configuration given to the constructor
  const ParallelConfig& config() const { return config_; }
  Communicator& data() const;    ///< the communicator of the data axis
  Communicator& shards() const;  ///< ranks that own one shard each
  /// This rank's units, ordered by their first blocks.
  const std::vector<ParameterUnit>& units() const;
  /// Options of stores for tensors of this dtype.
  StoreOptions store_options(at::ScalarType dtype) const;

 private:
  void enter();  ///< first statement of every collective call
  void drop_call();
  void require_gradient(const char* what);
  void make_runners();

  const ParallelConfig config_;
  const ShardingRules rules_;
  const UnitOptimizerFactory placement_;
  const ModelTransform transform_;
  const std::unique_ptr<const ProcessGroups> ranks_;
  const std::unique_ptr<StepState> step_;
  /// Null before attach(), like what follows.
  std::unique_ptr<const AttachedModel> model_;
  std::unique_ptr<StepAgreement> agreement_;
  std::unique_ptr<AllocatorReserve> room_;
  std::unique_ptr<GradientReducer> wire_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<GradientStore> gradients_;
  std::unique_ptr<UnitOptimizer> optimizer_;
  std::unique_ptr<StrategyState> state_;
  std::unique_ptr<ReplicatedGradientReducer> replicated_reducer_;
  std::unique_ptr<GradientScale> scale_;
  std::unique_ptr<ParameterVisits> visits_;
  std::unique_ptr<ActivationOffload> activations_;  ///< null: they stay on the device
  std::unique_ptr<BlockRunner> blocks_;
  std::unique_ptr<ForwardPasses> passes_;
  std::unique_ptr<StepGraphRunner> graphs_;  ///< null: no CUDA graphs
  at::Tensor loss_scale_, learning_rate_;    ///< device scalars; no loss scale: undefined
  int64_t weights_version_ = 0;              ///< incremented by every change of the weights
  at::Tensor steps_begun_;  ///< training passes so far: int64 host scalar from which seeds follow
};

}  // namespace tessera
