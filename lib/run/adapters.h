// SPDX-License-Identifier: MIT
#pragma once
// LoRA adapters of a run, from flags or from a directory.
#include <optional>
#include <string>
#include <vector>

#include "lib/settings/options.h"
#include "tessera/backends/strategy.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/checkpoint/state.h"

namespace tessera::programs {

// Adds the adapters of a directory with their values, and returns their configuration. Throws
// Error(kDataLoss) when they belong to another model or task.
AdapterConfig add_saved_adapters(ModelSpec& model, const std::string& directory,
                                 const std::string& task_type);

// Adds adapters if the options ask for them; empty otherwise. base: the known fields of the base
// model. Returns the configuration to be written with them.
std::optional<AdapterConfig> add_adapters(ModelSpec& model, const LoraOptions& options,
                                          AdapterConfig base);

// JSON text: "block.parameter" of what the model trains, and its stored name.
std::string trained_names(const ModelSpec& model);

// XXH3 of an adapter directory's configuration and weights; "" without adapters.
std::string saved_adapters_hash(const std::string& directory);

// Tensors of the run's checkpoints; with adapters, without the base's weights.
std::vector<StateTensor> state_of_run(Strategy& strategy, const TrainOptions& options);

}  // namespace tessera::programs
