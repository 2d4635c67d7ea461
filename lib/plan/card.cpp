// SPDX-License-Identifier: MIT
#include "lib/plan/card.h"

#include "lib/core/units.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;

// Sources. Memory: the driver. Peaks: data sheets, dense. Bandwidths of the H200:
// benchmarks/results/2026-11-21-h200.md; of the others typical nccl-tests results over their links.
// Context: measured on the H200 with LibTorch 2.11 and CUDA 13, mostly kernels; assumed equal
// elsewhere.
std::vector<Card> cards() {
  const auto gpu = [](const char* name, const char* device, double mebibytes, double half,
                      double tf32, double fp32, double memory, double host, double link,
                      double network, double context_mebibytes) {
    return Card{.name = name,
                .device = device,
                .memory_bytes = mebibytes * kMiB,
                .half_flops = half * kTera,
                .tf32_flops = tf32 * kTera,
                .fp32_flops = fp32 * kTera,
                .memory_bytes_per_s = memory * kGiga,
                .host_bytes_per_s = host * kGiga,
                .link_bytes_per_s = link * kGiga,
                .network_bytes_per_s = network * kGiga,
                .context_bytes = context_mebibytes * kMiB};
  };
  std::vector<Card> all{
      gpu("h200", "NVIDIA H200", 143771, 989.4, 494.7, 67, 4245, 50, 330, 45, 3114),
      gpu("h100", "NVIDIA H100 80GB HBM3", 81559, 989.4, 494.7, 67, 3000, 50, 330, 45, 3114),
      gpu("h100-pcie", "NVIDIA H100 PCIe", 81559, 756, 378, 51, 1800, 50, 40, 22, 3114),
      gpu("a100", "NVIDIA A100-SXM4-80GB", 81920, 312, 156, 19.5, 1750, 24, 230, 22, 3114),
      gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", 40960, 312, 156, 19.5, 1350, 24, 230, 22, 3114),
      gpu("l40s", "NVIDIA L40S", 46068, 362, 183, 91.6, 750, 24, 20, 11, 3114),
      gpu("rtx4090", "NVIDIA GeForce RTX 4090", 24564, 165.2, 82.6, 82.6, 900, 24, 12, 3, 3114),
      Card{.name = "cpu",
           .half_flops = 0.05 * kTera,
           .tf32_flops = 0.1 * kTera,
           .fp32_flops = 0.1 * kTera,
           .memory_bytes_per_s = 20 * kGiga,
           .host_bytes_per_s = 20 * kGiga,
           .link_bytes_per_s = 3 * kGiga,
           .network_bytes_per_s = 1 * kGiga},
  };
  all.front().product_flops = 790 * kTera;  // bf16, square matrices of 8,192
  for (Card& card : all) card.has_fp8 = !card.device.empty() && !card.name.starts_with("a100");
  return all;
}

}  // namespace

std::vector<std::string> card_names() {
  std::vector<std::string> names;
  for (const Card& card : cards()) names.push_back(card.name);
  return names;
}

Card card_named(const std::string& name) {
  std::string known;
  for (const Card& card : cards()) {
    if (card.name == name) return card;
    known += (known.empty() ? "" : ", ") + card.name;
  }
  fail(ErrorCode::kInvalidArgument, "card ", name, " is not known; there are ", known);
}

std::optional<Card> card_of_device(const std::string& device) {
  for (const Card& card : cards()) {
    if (!card.device.empty() && card.device == device) return card;
  }
  return std::nullopt;
}

}  // namespace tessera
