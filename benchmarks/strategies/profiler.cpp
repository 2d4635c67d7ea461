// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace tessera::bench {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr size_t kNone = static_cast<size_t>(-1);

double seconds(const ProfiledEvent& event) {
  return static_cast<double>(event.end_ns - event.begin_ns) / 1e9;
}

// Length of the intervals' union.
double covered_s(std::vector<std::pair<uint64_t, uint64_t>> intervals) {
  std::ranges::sort(intervals);
  uint64_t sum = 0, end = 0;
  for (const auto& [first, last] : intervals) {
    const uint64_t begin = std::max(first, end);
    if (last > begin) sum += last - begin;
    end = std::max(end, last);
  }
  return static_cast<double>(sum) / 1e9;
}

// Operators in thread order, each after its caller.
struct Operators {
  std::vector<ProfiledEvent> events;
  std::vector<size_t> callers;  // kNone: none
  std::vector<double> own_s;    // without callees
  std::vector<size_t> ranges;   // innermost tessera range around it, or itself
  std::vector<std::optional<NamedWork>> named;

  explicit Operators(std::vector<ProfiledEvent> all);
};

Operators::Operators(std::vector<ProfiledEvent> all) : events(std::move(all)) {
  std::ranges::sort(events, {}, [](const ProfiledEvent& event) {
    return std::tuple(event.thread, event.begin_ns, ~event.end_ns, event.id);
  });
  std::vector<size_t> open;
  for (size_t i = 0; i < events.size(); ++i) {
    const ProfiledEvent& event = events[i];
    while (!open.empty() && (events[open.back()].thread != event.thread ||
                             events[open.back()].end_ns <= event.begin_ns)) {
      open.pop_back();
    }
    const size_t caller = open.empty() ? kNone : open.back();
    callers.push_back(caller);
    own_s.push_back(seconds(event));
    named.push_back(parse_range_name(event.name));
    ranges.push_back(named.back() ? i : caller == kNone ? kNone : ranges[caller]);
    if (caller != kNone) own_s[caller] -= seconds(event);
    open.push_back(i);
  }
}

bool is_product(const std::string& name) {
  constexpr std::array kProducts{"aten::mm",  "aten::addmm",   "aten::addmm_",
                                 "aten::bmm", "aten::baddbmm", "aten::baddbmm_"};
  return std::ranges::count(kProducts, name) > 0;
}

// Auxiliary operators of tessera's ranges; if a range has other operators, those do the work.
bool moves_nothing(const std::string& name) {
  constexpr std::array kNames{"aten::empty", "aten::full", "aten::fill_", "aten::item",
                              "aten::_local_scalar_dense"};
  return std::ranges::count(kNames, name) > 0;
}

// Attributes a range's work to its one multiplying operator, if any. Traffic is not divided over
// several other operators.
void give_work(const Operators& all, std::vector<KernelCall>& calls) {
  std::map<size_t, std::vector<size_t>> products;
  for (size_t i = 0; i < calls.size(); ++i) {
    const size_t range = all.ranges[i];
    if (all.named[i] && all.named[i]->own_code) {
      calls[i].work = all.named[i]->work;
    } else if (range != kNone && all.named[range]->own_code && !moves_nothing(calls[i].name)) {
      calls[range].work = {};
    }
    if (range != kNone && is_product(calls[i].name)) products[range].push_back(i);
  }
  for (const auto& [range, inside] : products) {
    if (inside.size() == 1) calls[inside.front()].work.flops = all.named[range]->work.flops;
  }
}

Calls operators(const Operators& all) {
  Calls result;
  std::vector<std::pair<uint64_t, uint64_t>> outermost;
  for (size_t i = 0; i < all.events.size(); ++i) {
    const ProfiledEvent& event = all.events[i];
    if (all.callers[i] == kNone) outermost.emplace_back(event.begin_ns, event.end_ns);
    KernelCall call{.name = event.name, .seconds = std::max(0.0, all.own_s[i])};
    if (all.ranges[i] != kNone) call.operation = all.named[all.ranges[i]]->operation;
    if (all.named[i]) call.name = "tessera::" + call.operation;
    call.work.flops = event.flops;
    result.calls.push_back(std::move(call));
  }
  give_work(all, result.calls);
  result.covered_s = covered_s(std::move(outermost));
  return result;
}

bool moves_memory(const std::string& name) {
  return name.starts_with("Memcpy") || name.starts_with("Memset");
}

// Attributes each range's work to one of its kernels.
void give_work(const Operators& all, const std::map<size_t, std::vector<size_t>>& of_range,
               std::vector<KernelCall>& calls) {
  for (const auto& [range, kernels] : of_range) {
    const OperationWork& work = all.named[range]->work;
    const auto longest =
        std::ranges::max_element(kernels, {}, [&](size_t kernel) { return calls[kernel].seconds; });
    calls[*longest].work.flops = work.flops;
    if (kernels.size() == 1) calls[*longest].work.bytes = work.bytes;
  }
}

Calls kernels(const Operators& all, const std::vector<ProfiledEvent>& of_gpu) {
  std::map<uint64_t, size_t> by_id;
  for (size_t i = 0; i < all.events.size(); ++i) by_id.emplace(all.events[i].id, i);
  Calls result;
  std::map<size_t, std::vector<size_t>> of_range;
  std::vector<std::pair<uint64_t, uint64_t>> intervals;
  for (const ProfiledEvent& event : of_gpu) {
    intervals.emplace_back(event.begin_ns, event.end_ns);
    KernelCall call{.name = short_name(event.name), .seconds = seconds(event)};
    const auto issuer = event.issuer == 0 ? by_id.end() : by_id.find(event.issuer);
    const size_t range = issuer == by_id.end() ? kNone : all.ranges[issuer->second];
    if (range != kNone) {
      call.operation = all.named[range]->operation;
      if (!moves_memory(event.name)) of_range[range].push_back(result.calls.size());
    }
    result.calls.push_back(std::move(call));
  }
  give_work(all, of_range, result.calls);
  result.covered_s = covered_s(std::move(intervals));
  return result;
}

ProfilerConfig configuration() {
  return ProfilerConfig(ProfilerState::KINETO, /*report_input_shapes=*/true,
                        /*profile_memory=*/false, /*with_stack=*/false, /*with_flops=*/true);
}

}  // namespace

Calls calls_of(std::vector<ProfiledEvent> events, bool on_gpu) {
  const auto rest =
      std::ranges::stable_partition(events, [](const auto& event) { return !event.on_gpu; });
  const std::vector<ProfiledEvent> of_gpu(rest.begin(), rest.end());
  events.erase(rest.begin(), rest.end());
  const Operators all(std::move(events));
  return on_gpu ? kernels(all, of_gpu) : operators(all);
}

Profiler::Profiler(at::Device device) {
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) {
    activities.insert(ActivityType::CUDA);
  } else {
    constexpr const char* kNothing = "5";  // else a LibTorch for GPUs logs that there are none
    setenv("KINETO_LOG_LEVEL", kNothing, /*overwrite=*/0);
  }
  kineto::prepareProfiler(configuration(), activities);
  kineto::enableProfiler(configuration(), activities);
}

Profiler::~Profiler() {
  if (running_) kineto::disableProfiler();
}

std::vector<ProfiledEvent> Profiler::stop() {
  running_ = false;
  const auto result = kineto::disableProfiler();
  // Kineto's activity numbers: operators, and GPU annotations of ranges.
  constexpr uint8_t kOperator = 0, kRangeOnGpu = 2;
  std::vector<ProfiledEvent> events;
  for (const kineto::KinetoEvent& event : result->events()) {
    const bool on_gpu = event.deviceType() == c10::DeviceType::CUDA;
    if (on_gpu ? event.activityType() == kRangeOnGpu : event.activityType() != kOperator) continue;
    const std::string name = event.name();
    events.push_back({.name = name,
                      .on_gpu = on_gpu,
                      .begin_ns = event.startNs(),
                      .end_ns = std::max(event.startNs(), event.endNs()),
                      .thread = event.startThreadId(),
                      .id = on_gpu ? 0 : event.correlationId(),
                      .issuer = on_gpu ? event.linkedCorrelationId() : 0,
                      .flops = is_product(name) ? static_cast<double>(event.flops()) : 0});
  }
  return events;
}

}  // namespace tessera::bench
