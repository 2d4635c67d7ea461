// SPDX-License-Identifier: MIT
#include "lib/run/step_source.h"

#include <optional>
#include <utility>

#include "tessera/data/batch_stream.h"

namespace tessera::programs {
namespace {

class LoadedSteps final : public StepSource {
 public:
  LoadedSteps(TokenTable rows, const DataLoaderOptions& options, at::Device device)
      : loader_(std::move(rows), options), device_(device) {}

  int64_t global_batch_size() const override { return loader_.global_batch_size(); }
  int64_t steps_per_epoch() const override { return loader_.steps_per_epoch(); }
  DataLoaderState state() const override { return ahead_ ? ahead_->state() : loader_.state(); }
  void restore(const DataLoaderState& state) override { loader_.restore(state); }
  std::vector<MicroBatch> next() override {
    if (!ahead_) ahead_.emplace(loader_, device_);
    return ahead_->next();
  }

 private:
  DataLoader loader_;
  const at::Device device_;
  std::optional<BatchStream> ahead_;  // reads a copy of the loader
};

}  // namespace

std::unique_ptr<StepSource> loaded_steps(TokenTable rows, const DataLoaderOptions& options,
                                         at::Device device) {
  return std::make_unique<LoadedSteps>(std::move(rows), options, device);
}

}  // namespace tessera::programs
