// SPDX-License-Identifier: MIT
#include "lib/core/meta.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// The scopes that a thread is in. LibTorch asks the one allocator of meta tensors, and any
// operation may ask what a tensor stands for, so that neither can be handed down to them.
struct Scopes {
  at::DeviceType stands_for = at::kCPU;
  MetaMemoryCounter* counter = nullptr;

  static Scopes& here() {
    static thread_local Scopes scopes;
    return scopes;
  }
};

// A tensor may outlive its counter: then nobody counts its end.
struct Allocation {
  MetaMemoryCounter* of;
  int64_t bytes;
};

void release(void* context) {
  const std::unique_ptr<Allocation> allocation(static_cast<Allocation*>(context));
  if (allocation->of == Scopes::here().counter) allocation->of->release(allocation->bytes);
}

class CountingMeta final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const at::Device device(at::kMeta);
    MetaMemoryCounter* const counter = Scopes::here().counter;
    if (counter == nullptr) return {nullptr, device};
    const int64_t taken = counter->allocate(static_cast<int64_t>(bytes));
    return {nullptr, new Allocation{counter, taken}, &release, device};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
};

void install() {
  static CountingMeta allocator;
  static const bool installed = [] {
    c10::SetAllocator(at::kMeta, &allocator, /*priority=*/1);
    return true;
  }();
  check(installed, ErrorCode::kInternal, "meta tensors are not counted");
}

}  // namespace

MetaStandsFor::MetaStandsFor(at::DeviceType type)
    : previous_(std::exchange(Scopes::here().stands_for, type)) {}
MetaStandsFor::~MetaStandsFor() { Scopes::here().stands_for = previous_; }

bool runs_on_gpu(const at::Tensor& x) {
  return x.is_cuda() || (x.is_meta() && Scopes::here().stands_for == at::kCUDA);
}

MetaMemoryCounter::MetaMemoryCounter(int64_t rounding) : rounding_(rounding) {
  install();
  previous_ = std::exchange(Scopes::here().counter, this);
}
MetaMemoryCounter::~MetaMemoryCounter() { Scopes::here().counter = previous_; }

int64_t MetaMemoryCounter::allocate(int64_t bytes) {
  const int64_t taken = (bytes + rounding_ - 1) / rounding_ * rounding_;
  live_ += taken;
  peak_ = std::max(peak_, live_);
  return taken;
}

}  // namespace tessera
