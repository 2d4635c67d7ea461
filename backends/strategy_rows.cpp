// SPDX-License-Identifier: MIT
#include "backends/strategy_rows.h"

#include <array>

#include "lib/core/joined.h"
#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/backends/fsdp/fsdp.h"
#include "tessera/backends/zero/zero.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

template <typename S>
std::unique_ptr<ShardingStrategy> make(const ParallelConfig& config, const ShardingSetup& setup) {
  return std::make_unique<S>(config, setup);
}

constexpr const char* kKeepsParameters =
    "it keeps whole parameters on the device; use zero3 or fsdp, or offload only the optimizer";

constexpr std::array<StrategyRow, 6> kRows = {{
    {.kind = StrategyKind::kSingle,
     .make = make<Ddp>,
     .rules = Ddp::rules,
     .several_data_ranks = "it runs on one rank; use ddp, zero1, zero2, zero3 or fsdp",
     .offload_parameters = kKeepsParameters},
    {.kind = StrategyKind::kDdp,
     .make = make<Ddp>,
     .rules = Ddp::rules,
     .offload_optimizer = "every rank would step the whole model on its host; use zero1",
     .offload_parameters = kKeepsParameters},
    {.kind = StrategyKind::kZero1,
     .make = make<ZeroStage1>,
     .rules = ZeroStage1::rules,
     .offload_parameters = kKeepsParameters},
    {.kind = StrategyKind::kZero2,
     .make = make<ZeroStage2>,
     .rules = ZeroStage2::rules,
     .offload_parameters = kKeepsParameters},
    {.kind = StrategyKind::kZero3, .make = make<ZeroStage3>, .rules = ZeroStage3::rules},
    {.kind = StrategyKind::kFsdp, .make = make<Fsdp>, .rules = Fsdp::rules},
}};

}  // namespace

std::span<const StrategyRow> strategy_rows() { return kRows; }

const StrategyRow& strategy_row(const std::string& name) {
  for (const StrategyRow& row : kRows) {
    if (is(name, row.kind)) return row;
  }
  fail(ErrorCode::kInvalidArgument, "strategy \"", name, "\" is unknown; use one of ",
       joined(strategy_names()));
}

std::vector<std::string> strategy_names() { return all_names<StrategyKind>(); }

}  // namespace tessera
