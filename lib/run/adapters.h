#pragma once
// The adapters of a run: from flags, or from a directory.
#include <memory>

#include "lib/settings/options.h"
#include "tessera/backends/strategy.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/checkpoint/state.h"

namespace tessera::programs {

struct RunAdapters {
  AdapterConfig config;                         // as it is written
  std::unique_ptr<AdapterDirectory> directory;  // with --adapter: the base's weights and its own
};

// The same for tessera-generate: the adapters of the directory, and nothing without one.
std::unique_ptr<AdapterDirectory> add_saved_adapters(ModelSpec& model, const std::string& directory,
                                                     const TensorSource* base,
                                                     const std::string& task_type);

// Adds adapters to the model where the options ask for them; null: they do not. config: what is
// known of the base. base: its weights; they outlive what is returned.
std::unique_ptr<RunAdapters> add_adapters(ModelSpec& model, const LoraOptions& options,
                                          const TensorSource* base, AdapterConfig config);

// What a checkpoint of the run holds: with adapters not what the base has.
std::vector<StateTensor> state_of_run(Strategy& strategy, const TrainOptions& options);

}  // namespace tessera::programs
