// SPDX-License-Identifier: MIT
#pragma once
// The adapters of a run: from flags, or from a directory.
#include <optional>
#include <string>
#include <vector>

#include "lib/settings/options.h"
#include "tessera/backends/strategy.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/checkpoint/state.h"

namespace tessera::programs {

// Adds the adapters of a directory, with their values. Throws Error(kDataLoss) when they are of
// another model or task. Returns how they are configured.
AdapterConfig add_saved_adapters(ModelSpec& model, const std::string& directory,
                                 const std::string& task_type);

// Adds adapters to the model where the options ask for them; nothing: they do not. base: what is
// known of the base. Returns what is to be written with them.
std::optional<AdapterConfig> add_adapters(ModelSpec& model, const LoraOptions& options,
                                          AdapterConfig base);

// XXH3 of configuration and weights of a directory of adapters; "": there is none.
std::string saved_adapters_hash(const std::string& directory);

// What a checkpoint of the run holds: with adapters not what the base has.
std::vector<StateTensor> state_of_run(Strategy& strategy, const TrainOptions& options);

}  // namespace tessera::programs
