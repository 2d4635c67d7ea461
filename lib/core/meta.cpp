// SPDX-License-Identifier: MIT
#include "lib/core/meta.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <string_view>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// Active scopes of a thread. They cannot be passed as arguments: LibTorch's single meta allocator
// and any operation may ask for them.
struct Scopes {
  at::DeviceType stands_for = at::kCPU;
  bool on_host = false;
  MetaMemory* memory = nullptr;

  static Scopes& here() {
    static thread_local Scopes scopes;
    return scopes;
  }
};

struct Told {
  MetaMemory* memory;
  MetaAllocation allocation;
};

void release(void* context) {
  const std::unique_ptr<Told> told(static_cast<Told*>(context));
  if (told->memory == Scopes::here().memory) told->memory->released(told->allocation);
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const at::Device device(at::kMeta);
    const Scopes& here = Scopes::here();
    if (here.memory == nullptr) return {nullptr, device};
    auto told = std::make_unique<Told>(
        Told{here.memory, {.bytes = static_cast<int64_t>(bytes), .on_host = here.on_host}});
    here.memory->allocated(told->allocation);
    return {nullptr, told.release(), &release, device};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
};

void install() {
  static MetaAllocator allocator;
  static const bool installed = [] {
    c10::SetAllocator(at::kMeta, &allocator, /*priority=*/1);
    return true;
  }();
  check(installed, ErrorCode::kInternal, "meta tensors are not counted");
}

}  // namespace

std::string meta_refusal(std::string message) {
  constexpr std::string_view kAdvice = ", but there was no fake impl",
                             kItem = "_local_scalar_dense";
  message = message.substr(0, message.find(kAdvice));
  const size_t item = message.find(kItem);
  if (item != std::string::npos) message.insert(item + kItem.size(), ", which item() calls");
  while (!message.empty() && (message.back() == '.' || std::isspace(message.back()) != 0)) {
    message.pop_back();
  }
  return message;
}

MetaStandsFor::MetaStandsFor(at::DeviceType type)
    : previous_(std::exchange(Scopes::here().stands_for, type)) {}
MetaStandsFor::~MetaStandsFor() { Scopes::here().stands_for = previous_; }

bool is_gpu(at::Device device) {
  return device.is_cuda() || (device.is_meta() && Scopes::here().stands_for == at::kCUDA);
}

bool runs_on_gpu(const at::Tensor& x) { return is_gpu(x.device()); }

MetaOnHost::MetaOnHost() : previous_(std::exchange(Scopes::here().on_host, true)) {}
MetaOnHost::~MetaOnHost() { Scopes::here().on_host = previous_; }

MetaMemory::MetaMemory() {
  install();
  previous_ = std::exchange(Scopes::here().memory, this);
}
MetaMemory::~MetaMemory() { Scopes::here().memory = previous_; }

bool observes_meta() { return Scopes::here().memory != nullptr; }

void MetaMemoryCounter::allocated(MetaAllocation& allocation) {
  allocation.bytes = (allocation.bytes + rounding_ - 1) / rounding_ * rounding_;
  live_ += allocation.bytes;
  peak_ = std::max(peak_, live_);
}

}  // namespace tessera
