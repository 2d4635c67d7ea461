// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Pipeline parallelism: one stage of the model per rank of the pipeline axis.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/backends/pipeline/partition.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/backends/sharding_strategy.h"

namespace tessera {

class StageLinks;
class WaitTimer;
struct StageSchedule;

/// Times of one forward_backward(), from its start until every stage has ended it.
struct PipelineTimes {
  double total_s = 0;   ///< seconds of the step on this rank
  double waited_s = 0;  ///< seconds in which this rank was idle: compare with bubble_share()
  /// waited_s / total_s; 0 before anything was measured.
  double idle_share() const { return total_s > 0 ? waited_s / total_s : 0; }
};

/// Runs a schedule (gpipe, 1f1b, zbh1 or interleaved) over a sharding strategy that holds this
/// rank's blocks on the data axis (Huang et al. 2019; Narayanan et al. 2021). All ranks of the
/// pipeline axis get the same micro-batches. Blocks of other stages are never built. A tied
/// parameter is replicated on every stage that uses it: initialised from its owner (which builds
/// that block twice), with gradients summed between these stages. With a shared vocabulary (Yeung
/// et al. 2024) every stage also builds its rows of the embedding and the head.
class Pipeline : public Strategy {
 public:
  /// inner knows the mesh (ShardingSetup::mesh). transform is applied to the whole model; null:
  /// none.
  Pipeline(const ParallelConfig& config, std::unique_ptr<ShardingStrategy> inner,
           Communicator& pipeline, ModelTransform transform = {});
  /// A pipeline with GPipe's schedule; config's is ignored.
  static std::unique_ptr<Pipeline> gpipe(ParallelConfig config,
                                         std::unique_ptr<ShardingStrategy> inner,
                                         Communicator& pipeline) {
    config.pipeline.schedule = "gpipe";
    return std::make_unique<Pipeline>(config, std::move(inner), pipeline);
  }
  ~Pipeline() override;
  /// Names of the inner strategy and the schedule, as "zero1+1f1b".
  std::string name() const override { return inner_->name() + "+" + config_.pipeline.schedule; }

  void attach(const ModelSpec& model, const BuildContext& context,
              const OptimizerFactory& optimizer) override;
  void set_loss_scale(const at::Tensor& scale) override { inner_->set_loss_scale(scale); }
  /// Results are the same on all stages.
  StepResult forward_backward(std::span<const MicroBatch> micro_batches,
                              const BackwardOptions& options = {}) override;
  StepResult evaluate(std::span<const MicroBatch> micro_batches) override;
  void end_of_data(Pass pass, int64_t done) override { inner_->end_of_data(pass, done); }
  std::vector<at::Tensor> predict(std::span<const MicroBatch> micro_batches,
                                  const ScoreSelection& select = {}) override;
  /// throws: not differentiable.
  at::Tensor forward(const MicroBatch&, const ForwardOptions& = {}) override;
  bool supports_kv_cache() const override { return inner_->supports_kv_cache(); }
  void require_connected() const override { inner_->require_connected(); }
  at::Tensor grad_norm_squared() override { return inner_->grad_norm_squared(); }
  void scale_gradients(const at::Tensor& factor) override { inner_->scale_gradients(factor); }
  void for_each_gradient(const GradientVisitor& visitor) override {
    inner_->for_each_gradient(visitor);
  }
  NamedTensors gradient_norms() override;
  void give_up(const std::string& why) override { inner_->give_up(why); }
  void optimizer_step(double learning_rate, const at::Tensor& skip = {}) override {
    inner_->optimizer_step(learning_rate, skip);
  }
  void visit_parameters(const ParameterVisitor& visitor) override;
  void visit_gradients(const ParameterVisitor& visitor) override;
  void visit_buffers(const ParameterVisitor& visitor) override;
  std::vector<StateTensor> state() override { return inner_->state(); }
  void state_restored() override { inner_->state_restored(); }
  StrategyMemory memory() const override { return inner_->memory(); }
  OffloadReport offload_report() override { return inner_->offload_report(); }
  int64_t extra_bytes_sent() const override;
  int64_t parameter_count() const override { return inner_->parameter_count(); }

  /// After attach(): the model's parts in order; part p is on stage p % stages. With a shared
  /// vocabulary they exclude the first and the last block.
  const std::vector<ModelPart>& parts() const { return parts_; }
  /// Times the following steps while on; costs a small collective each. Collective: the same value
  /// on all ranks.
  void measure_times(bool on);
  /// Times of the latest measured step; waits for its end.
  PipelineTimes times() const;

 private:
  struct Step;

  ModelSpec own_blocks(const ModelSpec& model);
  void share_ends(const ModelSpec& model, ModelSpec& mine);
  bool is_shared(size_t block) const;
  void share_tied_parameters(const ModelSpec& model, const BuildContext& context, ModelSpec& mine);
  int stage_of_block(size_t block) const;
  size_t part_of_block(size_t block) const;
  const StageSchedule& schedule_of_stage(size_t micro_batches, bool with_gradients);
  StepResult run(std::span<const MicroBatch> micro_batches, bool with_gradients,
                 const BackwardOptions& options = {});
  template <typename Fn>
  auto or_give_up(const Fn& fn);
  void play(std::span<const MicroBatch> micro_batches, Step& step);
  void expect_shapes(std::span<const MicroBatch> micro_batches, const Step& step);
  void run_own(int slot, const StageSchedule& schedule, Step& step);
  void run_shared(const PipelineAction& action, Step& step);
  void share_result(StepResult& result);
  void warn_unsplit_backward(const Step& step);
  void visit(const std::function<void(const ParameterVisitor&)>& visit_own,
             const ParameterVisitor& visitor);

  const ParallelConfig config_;
  Communicator& pipeline_;
  const ModelTransform transform_;
  std::vector<ModelPart> parts_;
  std::vector<std::pair<size_t, size_t>> chunks_;  ///< this rank's blocks: first, count
  std::map<std::string, size_t> block_index_;      ///< in the whole model
  /// Ranks of tied parameters; outlive inner_.
  std::vector<std::unique_ptr<Communicator>> tie_replicas_;
  /// All stages, for a shared vocabulary; outlives inner_.
  std::unique_ptr<Communicator> everyone_;
  std::unique_ptr<ShardingStrategy> inner_;
  std::unique_ptr<WaitTimer> timer_;
  std::unique_ptr<StageLinks> links_;
  std::map<std::pair<size_t, bool>, std::unique_ptr<StageSchedule>> stage_schedules_;
  std::function<at::Tensor(size_t, const MicroBatch&)> output_of_;  // BuildContext::output_of
  bool told_counters_ = false;  // the last stage has broadcast counters_ and gives_divisor_
  int64_t counters_ = 0;
  bool gives_divisor_ = false;
  bool told_whole_ = false;  ///< see warn_unsplit_backward()
};

}  // namespace tessera
