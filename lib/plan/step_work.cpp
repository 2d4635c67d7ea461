// SPDX-License-Identifier: MIT
#include "lib/plan/step_work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "lib/comm/operation_scope.h"

namespace tessera {
namespace {

using Values = c10::ArrayRef<const c10::IValue>;

StepWork*& counting_here() {
  thread_local StepWork* innermost = nullptr;
  return innermost;
}

double numel_of(const c10::IValue& value) { return static_cast<double>(value.toTensor().numel()); }

// FLOPs of a product of two matrices, or batches of them.
double product(const c10::IValue& a, const c10::IValue& b) {
  return 2 * numel_of(a) * static_cast<double>(b.toTensor().size(-1));
}

// FLOPs of one product of a convolution: forward, or one of two gradients. output: its elements per
// channel; for a transposed convolution the input's.
double convolution(double places, const at::Tensor& weight) {
  return 2 * places * static_cast<double>(weight.numel());
}

double places_of(const at::Tensor& x) {
  return x.size(1) == 0 ? 0 : static_cast<double>(x.numel() / x.size(1));
}

double convolution_forward(const Values& in) {
  const at::Tensor x = in[0].toTensor(), weight = in[1].toTensor();
  if (in[6].toBool()) return convolution(places_of(x), weight);
  const auto stride = in[3].toIntVector(), padding = in[4].toIntVector(),
             dilation = in[5].toIntVector();
  auto places = static_cast<double>(x.size(0));
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const auto at = [&](const std::vector<int64_t>& of) {
      return of[of.size() == 1 ? 0 : static_cast<size_t>(dim - 2)];
    };
    const int64_t reach = at(dilation) * (weight.size(dim) - 1) + 1;
    places *= static_cast<double>((x.size(dim) + 2 * at(padding) - reach) / at(stride) + 1);
  }
  return convolution(places, weight);
}

double convolution_backward(const Values& in) {
  const at::Tensor gradient = in[0].toTensor(), x = in[1].toTensor(), weight = in[2].toTensor();
  const auto mask = in[10].toBoolList();
  const double products = (mask[0] ? 1 : 0) + (mask[1] ? 1 : 0);
  return products * convolution(places_of(in[7].toBool() ? x : gradient), weight);
}

double flops_of(std::string_view name, const Values& in) {
  constexpr std::string_view kPrefix = "aten::";
  if (!name.starts_with(kPrefix)) return 0;
  name.remove_prefix(kPrefix.size());
  if (name == "mm" || name == "bmm") return product(in[0], in[1]);
  if (name == "addmm" || name == "baddbmm") return product(in[1], in[2]);
  if (name == "convolution") return convolution_forward(in);
  if (name == "convolution_backward") return convolution_backward(in);
  return 0;
}

}  // namespace

struct StepWork::Inside final : at::ObserverContext {};

StepWork::StepWork()
    : outer_(std::exchange(counting_here(), this)),
      handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

StepWork::~StepWork() {
  at::removeCallback(handle_);
  counting_here() = outer_;
}

void StepWork::add(const OperationWork& work) {
  if (work.flops == 0 && work.bytes == 0) return;
  const OperationContext& now = operation_context();
  const auto same = [&](const LedgerWork& each) {
    return each.phase == now.phase && each.name == now.label;
  };
  // Usually the latest entry.
  auto found = !work_.empty() && same(work_.back()) ? std::prev(work_.end())
                                                    : std::ranges::find_if(work_, same);
  if (found == work_.end()) {
    work_.push_back({.phase = now.phase, .name = std::string(now.label)});
    found = std::prev(work_.end());
  }
  found->flops += work.flops;
  found->bytes += work.bytes;
}

std::unique_ptr<at::ObserverContext> StepWork::begin(const at::RecordFunction& function) {
  StepWork* counting = counting_here();
  if (counting == nullptr) return nullptr;
  const std::string_view name = function.name();
  if (const auto own = parse_range_name(name)) {
    if (counting->depth_++ == 0) counting->add(own->work);
    return std::make_unique<Inside>();
  }
  if (counting->depth_ == 0) counting->add({.flops = flops_of(name, function.inputs())});
  return nullptr;
}

void StepWork::end(const at::RecordFunction&, at::ObserverContext* context) {
  StepWork* counting = counting_here();
  if (counting != nullptr && dynamic_cast<Inside*>(context) != nullptr) --counting->depth_;
}

}  // namespace tessera
