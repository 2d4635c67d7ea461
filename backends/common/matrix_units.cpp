// SPDX-License-Identifier: MIT
#include "backends/common/matrix_units.h"

#include <ATen/ATen.h>

#include <utility>

#include "lib/core/meta.h"
#include "lib/optim/matrix_updates.h"
#include "tessera/core/device.h"

namespace tessera {

MatrixUnits::MatrixUnits(Parts parts) : parts_(std::move(parts)) {
  const UnitOptimizerContext& all = parts_.context;
  const auto placed = [&](const std::vector<ParameterUnit>& units, int64_t expected,
                          double state_bytes, bool splits_masters) {
    return parts_.placement({units, all.shard_rank, all.parameter_dtype, all.device, expected,
                             state_bytes, splits_masters,
                             state_bytes > 0 ? all.small_state_bytes : 0});
  };
  elements_ = placed(units_of_elements_, 0, all.state_bytes, all.splits_masters);
  matrices_ = placed(units_of_matrices_, all.expected_numel, 0, /*splits_masters=*/false);
}

void MatrixUnits::adopt(size_t unit, const at::Tensor& full_fp32) {
  const ParameterUnit& adopted = parts_.context.units[unit];
  show(adopted, !adopted.matrices, units_of_elements_);
  show(adopted, adopted.matrices, units_of_matrices_);
  elements_->adopt(unit, full_fp32);
  matrices_->adopt(unit, full_fp32);
}

void MatrixUnits::prepare(ParameterStore& parameters, GradientStore& gradients,
                          const OptimizerFactory&) {
  gradients_ = &gradients;
  const OffloadConfig& offload = parts_.config.offload;
  exchange_ = std::make_unique<MatrixExchange>(
      MatrixExchange::Parts{.units = parts_.context.units,
                            .ranks = parts_.ranks,
                            .optimizer = *parts_.optimizer.optimizer,
                            .device = parts_.context.device,
                            .gradient = parts_.config.precision.gradient_dtype(),
                            .bucket_bytes = parts_.config.bucket_bytes,
                            .overlap = parts_.config.overlap,
                            .state_on_host = offload.what != Offload::kNone,
                            .pin_memory = offload.pin_memory});
  updates_ = std::make_unique<MatrixUpdates>(*exchange_);
  elements_->prepare(parameters, gradients, parts_.optimizer.others);
  matrices_->prepare(parameters, *updates_, apply_updates(parts_.optimizer.optimizer));
}

void MatrixUnits::gradient_ready(size_t unit) {
  if (!parts_.context.units[unit].matrices) elements_->gradient_ready(unit);
}

void MatrixUnits::step(const StepScalars& scalars) {
  elements_->step(scalars);
  // The last step's updates are used before new ones replace them.
  for (size_t unit = 0; unit < units_of_matrices_.size(); ++unit) {
    if (!units_of_matrices_[unit].frozen) matrices_->complete(unit);
  }
  exchange_->run(
      scalars, [this](size_t unit, size_t segment) { return gradients_->owned(unit, segment); },
      [this](size_t unit, size_t segment) { return matrices_->master(unit, segment).whole; });
  for (size_t unit = 0; unit < units_of_matrices_.size(); ++unit) {
    if (!units_of_matrices_[unit].frozen) matrices_->gradient_ready(unit);
  }
  matrices_->step({scalars.learning_rate, {}, scalars.skip});
}

std::vector<MatrixState> MatrixUnits::matrix_states() const {
  // Copies to the host have arrived.
  if (parts_.config.offload.what != Offload::kNone) synchronize_device(parts_.context.device);
  return exchange_->states();
}

void MatrixUnits::restored() {
  elements_->restored();
  exchange_->step_count().copy_(elements_->step_count());
}

void MatrixUnits::add_memory(StrategyMemory& memory) const {
  elements_->add_memory(memory);
  matrices_->add_memory(memory);
  memory.buffer_bytes += exchange_->buffer_bytes();
  const OffloadConfig& offload = parts_.config.offload;
  if (offload.what == Offload::kNone) {
    memory.optimizer_bytes += exchange_->state_bytes();
    return;
  }
  memory.host_bytes += exchange_->state_bytes();
  if (offload.pin_memory && is_gpu(parts_.context.device)) {
    memory.pinned_bytes += exchange_->state_bytes();
  }
}

// Bytes of both optimizers; speeds of the matrices', which hold most of a model. Excludes the
// exchange's own copies of state.
OffloadReport MatrixUnits::report() {
  const OffloadReport elements = elements_->report();
  OffloadReport report = matrices_->report();
  report.bytes_to_device += elements.bytes_to_device;
  report.bytes_to_host += elements.bytes_to_host;
  return report;
}

}  // namespace tessera
