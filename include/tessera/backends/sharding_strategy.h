#pragma once
// What all strategies share that keep every block on every rank of the data axis and differ only in
// who owns which range of its flat buffers and when it is materialised.
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/backends/step_order.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/core/device.h"
#include "tessera/core/late_values.h"

namespace tessera {

struct UnitMembers;

// One micro-batch on its way through contiguous blocks of this rank, forth and back.
struct MicroBatchRun {
  struct BlockRun {
    at::Tensor input;           // leaf that collects the gradient of the block's input
    at::Tensor output;          // undefined where backward runs the block again
    bool has_backward = false;  // it or something before it is trained
  };
  MicroBatch micro_batch;
  size_t first_block = 0, block_count = 0;
  bool with_gradients = true;
  bool with_scores = false;       // of the last block, in place of its loss
  bool last_micro_batch = false;  // of the step: its backward completes the gradients
  // Before forward(): the output of the block before the first (undefined when there is none).
  // After it: the output of the last block, or its scores; undefined when that was the loss.
  at::Tensor hidden;
  // Before backward(): of forward's output; the loss sets it in forward(). After it: of forward's
  // input.
  at::Tensor gradient;
  std::vector<BlockRun> blocks;  // between forward and backward
};

// Derived classes say how flat buffers are cut and which stores hold them; the loop over blocks and
// micro-batches, loss scaling, norms and the optimizer step are written once, here. Block
// boundaries are explicit: every block runs on a detached leaf and has its own backward call, so
// that "before" and "after" a block are places in this loop, not hooks.
class ShardingStrategy : public Strategy {
 public:
  ShardingStrategy(const ParallelConfig& config, Communicator& data);
  ~ShardingStrategy() override;

  // Before attach(): the ranks that share the model with those of the data axis. Without it they
  // are all there are. The mesh outlives the strategy.
  void set_mesh(const DeviceMesh& mesh);
  void set_mesh(const DeviceMesh&&) = delete;
  int sharers() const { return sharers_; }  // ranks of the mesh that share one data coordinate
  // Before attach(): where masters and moments live; a DeviceOptimizer unless given.
  void place_optimizer(UnitOptimizerFactory placement) { placement_ = std::move(placement); }

  void attach(const ModelSpec& model, const BuildContext& context,
              const OptimizerFactory& optimizer) override;
  void set_loss_scale(const at::Tensor& scale) override { loss_scale_ = scale; }
  StepResult forward_backward(std::span<const MicroBatch> micro_batches) override;
  StepResult evaluate(std::span<const MicroBatch> micro_batches) override;
  void end_of_data(Pass pass, int64_t done) override;
  std::vector<at::Tensor> predict(std::span<const MicroBatch> micro_batches,
                                  const ScoreSelection& select = {}) override;
  bool continues_rows() const override;
  at::Tensor grad_norm_squared() override;
  void scale_gradients(const at::Tensor& factor) override;
  void optimizer_step(double learning_rate, const at::Tensor& skip = {}) override;
  void visit_parameters(const ParameterVisitor& visitor) override;
  void visit_gradients(const ParameterVisitor& visitor) override;
  void visit_buffers(const ParameterVisitor& visitor) override;
  std::vector<StateTensor> state() override;
  void state_restored() override;
  StrategyMemory memory() const override;
  OffloadReport offload_report() override { return optimizer_->report(); }
  int64_t parameter_count() const override { return parameter_count_; }
  // As visit_parameters() and visit_gradients(), but of a parameter that is cut only this rank's
  // slice: gather_whole() makes it whole.
  void visit_parameter_slices(const ParameterVisitor& visitor);
  void visit_gradient_slices(const ParameterVisitor& visitor);

  // The pieces of forward_backward() and evaluate(), for schedules that interleave micro-batches:
  // begin(), then make_run(), forward() and backward() of every micro-batch, each in increasing
  // order for the same blocks, then finish().
  void begin(std::span<const MicroBatch> micro_batches, bool with_gradients);
  // The same for predict(): forward() of every micro-batch, then finish_predictions().
  void begin_predictions(std::span<const MicroBatch> micro_batches);
  void finish_predictions();
  // Of micro-batch `index` through blocks [first_block, first_block + block_count) of this rank.
  MicroBatchRun make_run(size_t index, size_t first_block, size_t block_count) const;
  // The loss block's backward follows its forward at once, inside forward().
  void forward(MicroBatchRun& run);
  void backward(MicroBatchRun& run);
  // loss and counters are undefined when this rank's part of the model has no loss.
  StepResult finish();
  size_t block_count() const { return blocks_.size(); }
  // What was begun can neither be finished nor dropped on all ranks: peers that wait for this one
  // get `why`, and every later call says it.
  void give_up(const std::string& why);

 protected:
  struct Cut {
    int shards = 1;
    ShardGranularity granularity = ShardGranularity::kFlat;
    int64_t persistence_threshold = 0;
    int64_t unit_numel = 0;  // consecutive blocks form a unit until it holds this many elements
  };
  virtual Cut cut() const = 0;
  // The defaults: full parameters and full gradients on every rank.
  virtual std::unique_ptr<ParameterStore> make_parameters();
  virtual std::unique_ptr<GradientStore> make_gradients();

  // Before attach(): shards are cut over `shards`, and gradients summed over `replicas` as well;
  // together they span the data axis. Without it shards() is the data axis.
  void set_hybrid(Communicator& shards, Communicator& replicas);

  const ParallelConfig& config() const { return config_; }
  Communicator& data() const { return data_; }
  Communicator& shards() const { return *shards_; }
  const std::vector<ParameterUnit>& units() const { return units_; }
  StoreOptions store_options(at::ScalarType dtype) const;

 private:
  struct ModelInMaking;
  void add_block(const ModelSpec& model, size_t index, const BuildContext& context,
                 ModelInMaking& making);
  void add_unit(const UnitMembers& members);
  void tie(const ModelInMaking& making);
  void make_wire();
  void prepare_sums(const ModelSpec& model);
  void count_parameters();

  at::Tensor forward_block(MicroBatchRun& run, size_t block, const at::Tensor& hidden);
  void forward_loss(MicroBatchRun& run, size_t block, const at::Tensor& hidden);
  at::Tensor forward_scores(const MicroBatchRun& run, const at::Tensor& hidden);
  void make_room();
  void check_packed_rows(const MicroBatch& micro_batch) const;
  // ended: this rank's data have, after so many steps or batches.
  void exchange_counts(std::optional<int64_t> ended = {});
  std::vector<int64_t> data_ends(std::optional<int64_t> ended) const;
  void check_agreement();
  void check_data_ends(std::span<const double> ends);
  // Of sharding_rejoin.cpp: every call that is collective enters first.
  void enter();
  void begin_call(StepOrder::Call call);
  std::array<int64_t, 4> bytes_sent_by_axis() const;
  void rejoin();
  void drop_call();
  at::Tensor value_of(const Buffer& buffer);
  // Running statistics become those of the rank that is named for them.
  void adopt_statistics();
  at::Tensor loss_gradient();
  void acquire_block(size_t block);
  void prefetch_after(size_t block, size_t end, int direction);
  void release_block(size_t block);
  void complete_all_units();
  void gradient_reduced(size_t unit);
  void finish_sums();
  std::vector<at::Tensor> owned_gradients(size_t unit) const;
  // Ranks of the data axis that own the same shards; null: this one alone.
  Communicator* equal_shards() const;
  void add_unit_state(size_t unit, std::vector<StateTensor>& state);
  void add_buffer_state(size_t block, std::vector<StateTensor>& state);
  void visit(bool gradients, const ParameterVisitor& visitor);

  ParallelConfig config_;
  Communicator& data_;
  Communicator* world_;
  int sharers_ = 1, sharer_ = 0;  // ranks of one data coordinate, and this one's place
  Communicator* shards_;
  Communicator* replicas_ = nullptr;
  const DeviceMesh* mesh_ = nullptr;
  UnitOptimizerFactory placement_;
  bool has_loss_ = true;
  std::vector<std::unique_ptr<Block>> blocks_;
  int64_t tokens_before_ = 0;  // of the first step's largest micro-batch
  bool room_made_ = false;
  std::vector<std::string> block_names_;
  std::vector<Communicator*> block_sharers_;  // see BlockBuilder
  // Of tied parameters whose owner is on another stage, "block.parameter": the owner's name.
  std::map<std::string, std::string> owner_elsewhere_;
  std::vector<std::vector<size_t>> units_of_block_, trained_units_of_block_;
  std::vector<ParameterUnit> units_;
  std::unique_ptr<GradientWire> wire_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<GradientStore> gradients_;
  std::unique_ptr<UnitOptimizer> optimizer_;
  int64_t parameter_count_ = 0;
  uint64_t seed_ = 0;
  at::Tensor loss_scale_, gradient_scale_, learning_rate_;

  // Gradients that the holders of a value sum once a step. Small ones travel together.
  struct LateSum {
    Communicator* ranks = nullptr;
    std::vector<at::Tensor> alone, together;
    at::Tensor staging;
  };
  std::vector<LateSum> late_sums_;      // in the same order on all ranks
  std::vector<bool> sums_late_;         // by unit: some of it is in late_sums_
  std::vector<at::Tensor> norm_terms_;  // owned gradients that this rank counts
  bool norm_is_shared_ = false;         // other ranks count other gradients

  StepOrder order_;

  // of the step or evaluation under way
  std::array<int64_t, 4> sent_at_begin_{};
  std::vector<MicroBatch> micro_batches_;
  bool with_gradients_ = false, with_scores_ = false;
  at::Tensor steps_begun_;  // and ended: int64 scalar on the host, from which seeds follow
  at::Tensor counts_, loss_gradient_, sums_;  // counts_: see exchange_counts()
  Work counts_work_;
  std::optional<c10::Stream> beside_;
  std::optional<LateValues> agreement_;
  std::vector<Reduction> reductions_;  // under way, and so are works_
  std::vector<Work> works_;
};

}  // namespace tessera
