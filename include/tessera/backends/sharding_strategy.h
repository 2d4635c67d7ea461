#pragma once
// What all strategies share that keep every block on every rank of the data axis and differ only in
// who owns which range of its flat buffers and when it is materialised.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/sharding/gradient_store.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

// The activations of one micro-batch between its forward and its backward.
struct MicroBatchRun {
  struct BlockRun {
    at::Tensor input;  // leaf that collects the gradient of the block's input
    at::Tensor output;
  };
  MicroBatch micro_batch;
  std::vector<BlockRun> blocks;
};

// Derived classes say how flat buffers are cut and which stores hold them; the loop over blocks and
// micro-batches, loss scaling, norms and the optimizer step are written once, here. Block
// boundaries are explicit: every block runs on a detached leaf and has its own backward call, so
// that "before" and "after" a block are places in this loop, not hooks.
class ShardingStrategy : public Strategy {
 public:
  ShardingStrategy(const ParallelConfig& config, Communicator& data);
  ~ShardingStrategy() override;

  void attach(const ModelSpec& model, const BuildContext& context,
              const OptimizerFactory& optimizer) override;
  void set_loss_scale(const at::Tensor& scale) override { loss_scale_ = scale; }
  StepResult forward_backward(std::span<const MicroBatch> micro_batches) override;
  StepResult evaluate(std::span<const MicroBatch> micro_batches) override;
  at::Tensor grad_norm_squared() override;
  void scale_gradients(const at::Tensor& factor) override;
  void optimizer_step(double learning_rate, const at::Tensor& skip = {}) override;
  void visit_parameters(const ParameterVisitor& visitor) override;
  void visit_gradients(const ParameterVisitor& visitor) override;
  StrategyMemory memory() const override;
  int64_t parameter_count() const override;

 protected:
  struct Cut {
    int shards = 1;
    ShardGranularity granularity = ShardGranularity::kFlat;
    int64_t persistence_threshold = 0;
  };
  virtual Cut cut() const = 0;
  virtual std::unique_ptr<ParameterStore> make_parameters() = 0;
  virtual std::unique_ptr<GradientStore> make_gradients() = 0;

  const ParallelConfig& config() const { return config_; }
  Communicator& data() const { return data_; }
  const std::vector<ParameterUnit>& units() const { return units_; }
  StoreOptions store_options(at::ScalarType dtype) const;
  at::ScalarType gradient_dtype() const;

 private:
  using Aliases = std::vector<std::pair<const TiedParameter*, at::Tensor>>;
  void add_block(const ModelSpec& model, size_t index, const BuildContext& context,
                 Aliases& aliases);
  void tie(const Aliases& aliases, const std::map<std::string, size_t>& block_index);
  void make_optimizer(const OptimizerFactory& factory);

  void forward(MicroBatchRun& run, bool with_gradients);
  void backward(MicroBatchRun& run, bool last_micro_batch);
  void acquire_block(size_t block);
  void prefetch_block(size_t block);
  void release_block(size_t block);
  void visit(const std::function<at::Tensor(size_t, size_t)>& owned,
             const ParameterVisitor& visitor);
  at::Tensor master(size_t unit, size_t segment) const;

  ParallelConfig config_;
  Communicator& data_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::vector<size_t>> units_of_block_;
  std::vector<ParameterUnit> units_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<GradientStore> gradients_;
  std::vector<at::Tensor>
      masters_;  // by unit: fp32 compact shard; undefined when parameters are fp32
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::pair<size_t, size_t>> optimizer_ranges_;  // by unit: first, count
  at::Tensor loss_scale_, gradient_scale_, learning_rate_;
};

}  // namespace tessera
