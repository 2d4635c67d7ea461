// SPDX-License-Identifier: MIT
#pragma once
// Interface of a training task: model, data and scores. The rest of a run is independent of files
// and architectures.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/run/run_state.h"
#include "lib/run/step_source.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/strategy.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/metrics/event.h"
#include "tessera/model/model_spec.h"
#include "tessera/train/trainer.h"

namespace tessera {
struct TrainingTask;
}

namespace tessera::programs {

class RunMemory;
class RunPlanner;
struct Prepared;

class RunTask {
 public:
  using Predictions = std::function<void(const std::string& directory)>;  // writes the predictions

  virtual ~RunTask() = default;

  const TrainOptions& options() const { return options_; }
  virtual Program program() const = 0;
  // Notices for the user, one line each.
  virtual std::vector<std::string> notices() const { return {}; }

  virtual const ModelSpec& model() const = 0;
  virtual const TensorSource* weights() const = 0;   // null: drawn at random
  virtual const AdapterConfig* adapter() const = 0;  // null: all parameters are trained
  // Base weights of the adapters; "": unknown.
  virtual std::string base() const { return ""; }
  virtual OptimizerFactory optimizer() const;  // from the options
  virtual ParallelConfig parallel_config() const = 0;
  // Experts of a layer whose tokens the model counts behind both losses of its routers; 0: none.
  virtual int64_t counted_experts() const { return 0; }
  virtual std::string model_config() const = 0;  // config.json; "null" without one
  // JSON of stored_names() where the model is an exported program; "": it is none.
  virtual std::string stored_names() const { return ""; }
  // Adds the exported model's files beside the weights.
  virtual void add_files(HuggingFaceWriter& writer) const = 0;

  virtual int64_t training_rows() const = 0;
  virtual int64_t validation_rows() const = 0;
  // data: communicator of the ranks that share the rows.
  virtual std::unique_ptr<StepSource> steps(const Communicator& data,
                                            Strategy::Pass pass) const = 0;
  virtual std::string data_hash() const = 0;  // hash of the training data
  // Values that must agree on all ranks beside the flags, causes first. Their names always agree.
  virtual DataIdentity inputs() const = 0;
  virtual DataIdentity data_identity(int64_t global_batch_size) const = 0;
  // Inputs of the evaluation that a resumed run should keep; differences do not prevent training.
  virtual DataIdentity evaluation_identity() const { return {}; }
  // Date in the rows' chat template; "": none.
  virtual std::string template_date() const { return ""; }
  // Adds data and effective settings to the record.
  virtual void describe(metrics::RunStartRecord& record, const Communicator& data) const = 0;
  virtual std::vector<metrics::DataRecord> data_files() const { return {}; }

  virtual const RunPlanner* planner() const { return nullptr; }  // null: memory is not planned

  // Adds scores beyond the loss to an evaluation's record. Empty result: no predictions.
  virtual Predictions score(metrics::EvalRecord& record, const EvalReport& report,
                            Strategy& strategy, const DeviceMesh& mesh,
                            RunMemory& memory) const = 0;

 protected:
  explicit RunTask(const TrainOptions& options) : options_(options) {}

 private:
  const TrainOptions options_;
};

// The fine-tuning programs' task: a language model on token rows.
std::unique_ptr<RunTask> language_task(Prepared prepared);
// A user's own model and rows. Throws Error(kInvalidArgument) for a task without model or rows.
// Also for rows that leave some ranks empty in an epoch's last step, if the loss cannot ignore
// them.
std::unique_ptr<RunTask> own_task(const TrainOptions& options, TrainingTask task);

}  // namespace tessera::programs
