// SPDX-License-Identifier: MIT
#pragma once
// What a run trains: a model, its data and its scores. The rest of a run knows neither files nor
// architectures.
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

namespace tessera::programs {

class RunMemory;
class RunPlanner;

class RunTask {
 public:
  using Predictions = std::function<void(const std::string& directory)>;  // writes them

  virtual ~RunTask() = default;

  const TrainOptions& options() const { return options_; }
  virtual Program program() const = 0;
  // What the user should know, one line each.
  virtual std::vector<std::string> notices() const { return {}; }

  virtual const ModelSpec& model() const = 0;
  virtual const TensorSource* weights() const = 0;   // null: they are drawn
  virtual const AdapterConfig* adapter() const = 0;  // null: every parameter is trained
  // Which weights the adapters belong to; "": nobody says.
  virtual std::string base() const { return ""; }
  virtual OptimizerFactory optimizer() const;  // as the options say
  virtual ParallelConfig parallel_config() const = 0;
  virtual std::string model_config() const = 0;  // its config.json; "null": there is none
  // What belongs into the folder of the exported model, beside the weights.
  virtual void add_files(HuggingFaceWriter& writer) const = 0;

  virtual int64_t training_rows() const = 0;
  virtual int64_t validation_rows() const = 0;
  // data: the ranks that share the rows out.
  virtual std::unique_ptr<StepSource> steps(const Communicator& data,
                                            Strategy::Pass pass) const = 0;
  virtual std::string data_hash() const = 0;  // of the training data
  // Everything that must be the same on all ranks beside the flags; causes first. The names are.
  virtual DataIdentity inputs() const = 0;
  virtual DataIdentity data_identity(int64_t global_batch_size) const = 0;
  // What a resumed run should have as before, although training goes on without it.
  virtual DataIdentity evaluation_identity() const { return {}; }
  // That the rows were made with; "": they depend on none.
  virtual std::string template_date() const { return ""; }
  // Data and settings as they are in use.
  virtual void describe(metrics::RunStartRecord& record, const Communicator& data) const = 0;
  virtual std::vector<metrics::DataRecord> data_files() const { return {}; }

  virtual const RunPlanner* planner() const { return nullptr; }  // null: memory is not planned

  // Adds to the record of an evaluation what goes beyond the loss. Empty: there are no predictions.
  virtual Predictions score(metrics::EvalRecord& record, const EvalReport& report,
                            Strategy& strategy, const DeviceMesh& mesh,
                            RunMemory& memory) const = 0;

 protected:
  explicit RunTask(const TrainOptions& options) : options_(options) {}

 private:
  const TrainOptions options_;
};

}  // namespace tessera::programs
