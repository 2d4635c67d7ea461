#pragma once
// One rank's training run, from the agreement of the ranks to the exported model.
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/metrics/resource_sampler.h"
#include "lib/metrics/watches.h"
#include "lib/run/prepare.h"
#include "lib/run/rank_times.h"
#include "lib/run/run_checkpoints.h"
#include "lib/run/run_memory.h"
#include "lib/settings/flags.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/comm/launch.h"
#include "tessera/data/batch_stream.h"
#include "tessera/metrics/recorder.h"
#include "tessera/train/stop_signal.h"
#include "tessera/train/trainer.h"

namespace tessera::programs {

// Made on every rank of a job. Nothing is written before all ranks have agreed on arguments and
// data and hold their part of the model.
class TrainingRun {
 public:
  TrainingRun(const Prepared& prepared, const FlagSet& flags, const std::vector<std::string>& argv,
              Communicator& world, const LaunchInfo& launch, ControlChannel& control,
              const StopSignals* signals = nullptr);
  ~TrainingRun();

  // Collective. Returns the exit code: 0, or 130 when Ctrl-C ended it and all is written. Throws
  // Error; running out of memory becomes Error(kResourceExhausted) with advice.
  int execute();

 private:
  void agree();
  void plan();
  void build();
  void go_on();  // from a checkpoint, where one is asked for
  // When all of this data has been seen as often as asked for, or --max_steps.
  int64_t last_step() const;
  void describe();
  void open_output();
  void start_sampler();
  void gather_resources(metrics::RunEndInfo& info);
  void train();
  void train_until(int64_t step);
  void evaluate();
  using Predictions = std::function<void(const std::string& directory)>;  // writes them
  Predictions score(metrics::EvalRecord& record);  // beyond the loss; empty: there are none
  bool is_best() const;                            // the latest evaluation
  void save();
  void note_best();
  bool between_steps();  // whether to go on
  void record(const std::vector<SavedCheckpoint>& saved);
  void stop();  // for a signal, after the save
  std::string how_it_stopped(const char* by) const;
  void on_step(const StepReport& report);
  void tell_work(const StepReport& step);
  // work_s: of each rank; may be empty.
  void report_step(metrics::StepRecord record, const std::vector<double>& work_s);
  void note_straggler(const std::vector<double>& work_s, int64_t step);
  void end_training();
  std::string export_final();  // returns the hash of all parameters
  void finish(int exit_code, const std::optional<std::string>& hash);
  void record_failure(const std::exception& error);

  bool reports() const { return world_.rank() == 0; }
  double epoch() const;
  metrics::RunStartRecord start_record() const;
  LossScalerConfig loss_scaler() const;
  TrainerOptions trainer_options() const;
  std::vector<int64_t> largest_over_ranks(const std::vector<int64_t>& values);

  const Prepared& prepared_;
  const TrainOptions& options_;
  const FlagSet& flags_;
  const std::vector<std::string>& argv_;
  Communicator& world_;
  const LaunchInfo& launch_;
  ControlChannel& control_;
  const StopSignals* signals_;  // null: they end the process

  std::unique_ptr<DeviceMesh> mesh_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<DataLoader> train_loader_;
  std::unique_ptr<BatchStream> batches_;               // of a copy of it, ahead of the training
  std::unique_ptr<metrics::Recorder> recorder_;        // rank 0
  metrics::ResourceSummary resources_;                 // of this node, where rank 0 is on another
  int64_t pinned_peak_ = 0;                            // of this process
  std::unique_ptr<metrics::ResourceSampler> sampler_;  // the first rank of each node
  std::exception_ptr sampling_failure_;                // its samples could not be written
  std::unique_ptr<CheckpointWriter> writer_;           // null: no checkpoints are written
  StopAgreement agreement_;
  std::optional<RankTimes> rank_times_;      // several ranks
  std::optional<metrics::StepRecord> held_;  // until it is known what the ranks worked
  metrics::StragglerWatch straggler_watch_;
  bool stopping_ = false;     // all ranks know of a signal to one of them
  bool interrupted_ = false;  // which was Ctrl-C
  std::optional<Resumed> resumed_;
  std::optional<RunState::Best> best_, evaluated_;  // so far; the latest, with its step
  int64_t total_steps_ = 0, steps_ = 0;
  int64_t steps_here_ = 0;  // issued by this process
  int64_t data_begun_ = 0;  // step before the first on this data
  struct Issued {
    int64_t sent_before = 0;  // bytes
    double row_length = 0;    // see mean_row_length()
  };
  std::deque<Issued> issued_;  // steps that are not reported yet
  bool planned_ = false;       // see check_memory()
  std::unique_ptr<RunMemory> run_memory_;
  // Largest over ranks: parameters, gradients, optimizer, buffers, host, pinned.
  std::vector<int64_t> memory_;
  double peak_flops_ = 0;  // of one device; 0: unknown
};

}  // namespace tessera::programs
