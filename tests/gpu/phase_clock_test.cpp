// SPDX-License-Identifier: MIT
#include "tessera/core/phase_clock.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "lib/core/clock.h"
#include "tessera/core/device.h"
#include "tests/gpu/gpu.h"

using namespace tessera;

namespace {

const at::Device kGpu(at::kCUDA, 0);

struct Products {
  at::Tensor a = at::randn({4096, 4096}, at::TensorOptions(at::kFloat).device(kGpu));
  at::Tensor out = at::empty_like(a);
  void operator()(int times) {
    for (int i = 0; i < times; ++i) at::mm_out(out, a, a);
  }
  double seconds(int times) {
    StreamTimer timer;
    (*this)(times);
    timer.start(current_stream(kGpu));
    (*this)(times);
    timer.stop(current_stream(kGpu));
    return timer.seconds();
  }
};

// Its backward runs in a phase of its own.
struct Waits : torch::autograd::Function<Waits> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    static Products work;
    const PhaseScope phase(Phase::kCommunication);
    work(10);
    return gradients;
  }
};

}  // namespace

TEST_CASE("the phases of a GPU are what it works in them, whatever runs beside") {
  TESSERA_NEEDS_GPUS(1);
  Products work, other;
  const double ten_s = work.seconds(10);
  PhaseClock clock(kGpu);
  for (int step = 1; step <= 4; ++step) {
    clock.begin_step();
    work(5);
    {
      const PhaseScope forward(Phase::kForward);
      work(10);
      const PhaseScope wait(Phase::kCommunication);
      work(20);
    }
    {
      const StreamScope scope(side_stream(kGpu));
      const PhaseScope beside(Phase::kOptimizer);
    }
    if (const auto times = clock.read()) {
      CHECK(times->forward_s == Approx(ten_s).epsilon(0.15));
      CHECK(times->communication_s == Approx(2 * ten_s).epsilon(0.15));
      CHECK(times->optimizer_s == 0);
      CHECK(times->step_s == Approx(3.5 * ten_s).epsilon(0.15));
      CHECK(times->since_last_end_s.has_value() == (step > 2));
      CHECK(times->since_last_end_s.value_or(times->step_s) == Approx(3.5 * ten_s).epsilon(0.15));
    } else {
      CHECK(step == 1);
    }
    clock.end_step();
  }
}

TEST_CASE("phases of a backward pass count, which runs on another thread") {
  TESSERA_NEEDS_GPUS(1);
  Products work;
  const double ten_s = work.seconds(10);
  PhaseClock clock(kGpu);
  const at::Tensor x = at::ones({4}, at::TensorOptions(at::kFloat).device(kGpu)).requires_grad_();
  Waits::apply(x).sum().backward();
  clock.begin_step();
  {
    const PhaseScope backward(Phase::kBackward);
    Waits::apply(x).sum().backward();
    work(10);
  }
  clock.end_step();
  const PhaseTimes times = clock.read().value();
  CHECK(times.communication_s == Approx(ten_s).epsilon(0.15));
  CHECK(times.backward_s == Approx(ten_s).epsilon(0.15));
}

TEST_CASE("copies count in the step in which they end, on whatever stream") {
  TESSERA_NEEDS_GPUS(1);
  Products work;
  PhaseClock clock(kGpu);
  const int64_t numel = 64 << 20;
  const at::Tensor host = at::ones({numel}, at::TensorOptions(at::kFloat).pinned_memory(true));
  const at::Tensor device = at::empty({numel}, host.options().pinned_memory(false).device(kGpu));
  const c10::Stream stream = side_stream(kGpu);
  StreamTimer timer;
  const auto copy = [&] {
    const StreamScope scope(stream);
    const CopyScope copies(stream);
    timer.start(stream);
    at::Tensor(device).copy_(host, /*non_blocking=*/true);
    timer.stop(stream);
  };
  copy();  // before the first step
  synchronize_device(kGpu);
  const auto step_s = [&](bool copies, int work_times) {
    clock.begin_step();
    if (copies) copy();
    work(work_times);
    clock.end_step();
    return clock.read().value().copies_s.value();
  };
  CHECK(step_s(true, 100) == Approx(timer.seconds()).epsilon(0.1));
  CHECK(step_s(false, 1) == 0);
  CHECK(step_s(true, 0) == 0);  // the clock continues
  CHECK(step_s(false, 100) == Approx(timer.seconds()).epsilon(0.1));
}

TEST_CASE("a border between phases costs a GPU next to nothing") {
  TESSERA_NEEDS_GPUS(1);
  constexpr int kBorders = 200, kSteps = 20;
  Products work;
  const at::Tensor small = at::zeros({1024}, work.a.options());
  const auto step_s = [&](bool with_clock, double& host_s) {
    PhaseClock clock(kGpu);
    StreamTimer timer;
    synchronize_device(kGpu);
    timer.start(current_stream(kGpu));
    const double begin = now_s();
    for (int step = 0; step < kSteps; ++step) {
      if (with_clock) clock.begin_step();
      work(2);
      for (int i = 0; i < kBorders / 2; ++i) {
        const PhaseScope forward(Phase::kForward);
        at::Tensor(small).add_(1);
        at::Tensor(small).add_(1);
      }
      if (with_clock) {
        clock.read();
        clock.end_step();
      }
    }
    host_s = (now_s() - begin) / kSteps;
    timer.stop(current_stream(kGpu));
    return timer.seconds() / kSteps;
  };
  double host_with = 0, host_without = 0;
  step_s(true, host_with);
  const double without = step_s(false, host_without), with = step_s(true, host_with);
  const double per_border = (with - without) / kBorders;
  WARN("a border costs the device " << per_border * 1e6 << " us, the host with its reading "
                                    << (host_with - host_without) / kBorders * 1e6 << " us");
  CHECK(per_border < 5e-6);
}
