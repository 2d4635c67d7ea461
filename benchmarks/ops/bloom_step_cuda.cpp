// SPDX-License-Identifier: MIT
// Training step of a BLOOM preset on one GPU without a strategy or trainer: the baseline for a
// strategy's overhead.
//   bench_bloom_step PRESET BATCH SEQUENCE [STEPS] [TRACE.json]
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lib/ops/update.h"
#include "tessera/models/language_model.h"

namespace tessera {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
const auto kGpu = at::TensorOptions(at::Device(at::kCUDA, 0));

// Parameters and gradients in bf16 as views of one buffer each, master weights and moments in fp32.
class Trainer {
 public:
  explicit Trainer(const ModelSpec& spec) {
    for (const BlockBuilder& builder : spec.blocks) {
      blocks_.push_back(builder.build({.device = kGpu.device(), .seed = 1}));
      for (const Parameter& p : blocks_.back()->parameters()) adopt(spec, builder.name, p);
    }
    finish();
  }

  void step(const MicroBatch& batch, const BlockContext& context) {
    mark("forward");
    std::vector<at::Tensor> inputs(blocks_.size()), outputs(blocks_.size());
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i > 0) inputs[i] = outputs[i - 1].detach().requires_grad_();
      if (i + 1 == blocks_.size()) mark("head forward");
      outputs[i] = blocks_[i]->forward(inputs[i], batch, context);
    }
    loss_ = outputs.back().detach();
    mark("backward");
    at::Tensor gradient = context.loss_gradient.view({1});
    for (size_t i = blocks_.size(); i-- > 0;) {
      torch::autograd::backward({outputs[i]}, {gradient});
      outputs[i].reset();
      if (i > 0) gradient = inputs[i].grad();
      inputs[i].reset();
    }
    mark("norm");
    const at::Tensor norm = ops::square_sum(std::vector<at::Tensor>{gradients_}).sqrt_();
    const at::Tensor scale = (1.0 / (norm + 1e-6)).clamp_max_(1.0);
    count_.add_(1);
    mark("adamw");
    ops::adamw_update(ranges_, {}, {rate_, count_, scale, {}});
    mark("zero gradients");
    gradients_.zero_();
    mark("end");
  }

  double loss() const { return loss_.sum().item<double>(); }
  int64_t parameters() const { return values_.numel(); }

  // Prints the milliseconds of each phase of the last step.
  void print_phases() {
    at::cuda::getCurrentCUDAStream().synchronize();
    for (size_t i = 0; i + 1 < marks_.size(); ++i) {
      std::printf("  %-16s %8.3f ms\n", marks_[i].first,
                  marks_[i].second->elapsed_time(*marks_[i + 1].second));
    }
  }

 private:
  void adopt(const ModelSpec& spec, const std::string& block, const Parameter& p) {
    for (const TiedParameter& tie : spec.tied) {
      if (tie.alias_block == block && tie.alias_parameter == p.name) {
        aliases_.push_back({p.tensor, owners_.at(tie.owner_block + "." + tie.owner_parameter)});
        return;
      }
    }
    owners_[block + "." + p.name] = entries_.size();
    entries_.push_back({p, size_});
    size_ += (p.tensor.numel() + 127) / 128 * 128;
  }

  void finish() {
    values_ = at::zeros({size_}, kGpu.dtype(at::kBFloat16));
    gradients_ = at::zeros({size_}, kGpu.dtype(at::kBFloat16));
    master_ = at::zeros({size_}, kGpu.dtype(at::kFloat));
    exp_avg_ = at::zeros_like(master_), exp_avg_sq_ = at::zeros_like(master_);
    for (auto& [p, offset] : entries_) {
      const int64_t n = p.tensor.numel();
      const auto cut = [&, offset = offset](const at::Tensor& x) { return x.narrow(0, offset, n); };
      cut(master_).copy_(p.tensor.detach().view(-1));
      at::Tensor tensor = p.tensor;
      const auto shape = tensor.sizes().vec();
      tensor.set_data(cut(values_).view(shape));
      tensor.mutable_grad() = cut(gradients_).view(shape);
      const double decay = p.weight_decay ? 0.01 : 0.0;
      if (!ranges_.empty() && ranges_.back().weight_decay == decay) {  // adjacent ranges merge
        const int64_t first = ranges_.back().parameter.storage_offset();
        ranges_.back() = range(first, offset + n - first, decay);
      } else {
        ranges_.push_back(range(offset, n, decay));
      }
    }
    values_.copy_(master_);
    for (auto& [tensor, owner] : aliases_) {
      tensor.set_data(entries_[owner].first.tensor.detach());
      tensor.mutable_grad() = entries_[owner].first.tensor.grad();
    }
  }

  ops::AdamWRange range(int64_t first, int64_t count, double decay) const {
    const auto cut = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    return {cut(master_), cut(gradients_), cut(exp_avg_), cut(exp_avg_sq_), cut(values_), decay};
  }

  void mark(const char* name) {
    if (marks_.empty() || std::string(marks_.back().first) == "end") marks_.clear();
    marks_.emplace_back(name, std::make_unique<at::cuda::CUDAEvent>(cudaEventDefault));
    marks_.back().second->record();
  }

  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::pair<Parameter, int64_t>> entries_;
  std::vector<std::pair<at::Tensor, size_t>> aliases_;
  std::map<std::string, size_t> owners_;
  int64_t size_ = 0;
  at::Tensor values_, gradients_, master_, exp_avg_, exp_avg_sq_, loss_;
  at::Tensor rate_ = at::full({}, 1e-4F, kGpu), count_ = at::zeros({}, kGpu);
  std::vector<ops::AdamWRange> ranges_;
  std::vector<std::pair<const char*, std::unique_ptr<at::cuda::CUDAEvent>>> marks_;
};

void trace(Trainer& trainer, const MicroBatch& batch, const BlockContext& context,
           const char* path) {
  using namespace torch::autograd::profiler;
  const ProfilerConfig configuration(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CUDA};
  prepareProfiler(configuration, activities);
  enableProfiler(configuration, activities);
  for (int i = 0; i < 3; ++i) trainer.step(batch, context);
  at::cuda::getCurrentCUDAStream().synchronize();
  disableProfiler()->save(path);
}

int run(const std::string& preset, int64_t size, int64_t sequence, int steps,
        const char* trace_path) {
  const ModelSpec spec = LanguageModel::preset(preset).make_causal();
  Trainer trainer(spec);
  MicroBatch batch;
  batch.input_ids = at::randint(250'880, {size, sequence}, kGpu.dtype(at::kLong));
  batch.labels = batch.input_ids.roll(-1, 1).contiguous();
  batch.labels.select(1, sequence - 1).fill_(kIgnoredLabel);
  batch.target_count = size * (sequence - 1);
  batch.token_count = size * sequence;
  const BlockContext context{.loss_gradient = at::full({}, 1.0F / float(batch.target_count), kGpu)};
  const auto stream = at::cuda::getCurrentCUDAStream();
  for (int i = 0; i < 3; ++i) {
    trainer.step(batch, context);
    std::printf("step %d loss %.4f\n", i, trainer.loss() / double(batch.target_count));
  }
  allocator::emptyCache();
  allocator::resetPeakStats(0);
  trainer.step(batch, context);
  const auto segments = [] { return allocator::getDeviceStats(0).segment[0].allocated; };
  const auto peak = [] {
    return double(allocator::getDeviceStats(0).allocated_bytes[0].peak) / 1048576.0;
  };
  stream.synchronize();
  const int64_t warm = segments();
  std::vector<float> times;
  for (int i = 0; i < steps; ++i) {
    at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
    start.record();
    trainer.step(batch, context);
    stop.record();
    stop.synchronize();
    times.push_back(start.elapsed_time(stop));
  }
  std::sort(times.begin(), times.end());
  const double ms = times[times.size() / 2], tokens = double(size * sequence) / ms * 1e3;
  std::printf(
      "%s batch %ld x %ld: %.3f ms (min %.3f max %.3f), %.0f tokens/s, %.1f TFLOP/s, peak %.0f "
      "MiB, new segments %ld, loss %.4f\n",
      preset.c_str(), long(size), long(sequence), ms, times.front(), times.back(), tokens,
      tokens * spec.flops_per_token(sequence) / 1e12, peak(), long(segments() - warm),
      trainer.loss() / double(batch.target_count));
  trainer.print_phases();
  if (trace_path) trace(trainer, batch, context, trace_path);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: bench_bloom_step PRESET BATCH SEQUENCE [STEPS] [TRACE.json]\n");
    return 2;
  }
  try {
    return tessera::run(argv[1], std::atol(argv[2]), std::atol(argv[3]),
                        argc > 4 ? std::atoi(argv[4]) : 10, argc > 5 ? argv[5] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_bloom_step: %s\n", error.what());
    return 70;
  }
}
