// SPDX-License-Identifier: MIT
#include "tests/support/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>
#include <new>
#include <utility>

namespace tessera::testing {
namespace {

struct Counters {
  std::atomic<int64_t> live{0}, peak{0}, allocations{0}, limit{0};
};

// Shared ownership: a tensor may outlive the thread that made it.
const std::shared_ptr<Counters>& my_counters() {
  thread_local const std::shared_ptr<Counters> counters = std::make_shared<Counters>();
  return counters;
}

// Precedes every allocation; LibTorch requires the context to equal the data pointer.
struct Header {
  c10::DataPtr inner;
  std::shared_ptr<Counters> owner;
  int64_t bytes;
};
constexpr size_t kHeaderBytes = 64;  // keeps LibTorch's alignment
static_assert(sizeof(Header) <= kHeaderBytes);

void release(void* data) {
  auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes);
  header->owner->live -= header->bytes;
  const c10::DataPtr inner = std::move(header->inner);  // holds the header's own memory
  header->~Header();
}

class Wrapper : public c10::Allocator {
 public:
  explicit Wrapper(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    const Counters& mine = *my_counters();
    if (mine.limit > 0 && mine.live + static_cast<int64_t>(bytes) > mine.limit) {
      throw std::bad_alloc();
    }
    c10::DataPtr inner = inner_->allocate(bytes + kHeaderBytes);
    char* base = static_cast<char*>(inner.get());
    auto* header = new (base) Header{std::move(inner), my_counters(), static_cast<int64_t>(bytes)};
    Counters& counters = *header->owner;
    const int64_t live = counters.live += header->bytes;
    if (live > counters.peak) counters.peak = live;
    ++counters.allocations;
    void* data = base + kHeaderBytes;
    std::memset(data, 0xFF, bytes);  // NaN
    return {data, data, &release, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  c10::Allocator* inner_;
};

c10::Allocator* const kBefore = c10::GetCPUAllocator();

}  // namespace

CountingAllocator::CountingAllocator() {
  static Wrapper wrapper(kBefore);
  c10::SetCPUAllocator(&wrapper, /*priority=*/255);
}
CountingAllocator::~CountingAllocator() { c10::SetCPUAllocator(kBefore, 255); }
int64_t CountingAllocator::live_bytes() { return my_counters()->live; }
int64_t CountingAllocator::peak_bytes() { return my_counters()->peak; }
int64_t CountingAllocator::allocations() { return my_counters()->allocations; }
void CountingAllocator::limit(int64_t bytes) { my_counters()->limit = bytes; }
void CountingAllocator::reset_peak() { my_counters()->peak = my_counters()->live.load(); }

}  // namespace tessera::testing
