// SPDX-License-Identifier: MIT
#include "lib/run/run_planner.h"

#include <utility>

#include "lib/run/layout.h"
#include "lib/run/offload_share.h"
#include "lib/run/recomputation.h"

namespace tessera::programs {
namespace {

class LanguagePlanner final : public RunPlanner {
 public:
  explicit LanguagePlanner(const Prepared& run) : run_(run) {}

  std::vector<StageRecomputation> choose_recomputation(
      const ParallelConfig& config, at::Device device, int64_t ranks,
      const AvailableMemory& available) const override {
    std::vector<StageRecomputation> stages =
        programs::choose_recomputation(run_, config, device, ranks, available);
    require_fitting(run_, stages, ranks, !device.is_cpu());
    return stages;
  }
  int64_t choose_device_bytes(const ParallelConfig& config, at::Device device, int64_t ranks,
                              const AvailableMemory& available) const override {
    return programs::choose_device_bytes(run_, config, device, ranks, available);
  }
  std::optional<CheckedLayout> check_memory(at::Device device, int64_t ranks, int64_t ranks_on_host,
                                            const AvailableMemory& available,
                                            const std::vector<int64_t>& recomputed) const override {
    auto need = programs::check_memory(run_, device, ranks, ranks_on_host, available, recomputed);
    if (!need) return std::nullopt;
    PlannedLayout layout = planned_layout(run_, run_.options, static_cast<int>(ranks));
    layout.parallel.recomputed_blocks = recomputed;
    return CheckedLayout{std::move(layout), std::move(*need)};
  }
  std::string memory_need(int64_t ranks, bool on_gpu,
                          const std::vector<int64_t>& recomputed) const override {
    return programs::memory_need(run_, ranks, on_gpu, recomputed);
  }
  std::string memory_advice(int64_t ranks, const std::string& reason, bool on_gpu,
                            const std::vector<int64_t>& recomputed) const override {
    return programs::memory_advice(run_, ranks, reason, on_gpu, recomputed);
  }

 private:
  const Prepared& run_;
};

}  // namespace

std::unique_ptr<const RunPlanner> language_planner(const Prepared& run) {
  return std::make_unique<LanguagePlanner>(run);
}

}  // namespace tessera::programs
