// SPDX-License-Identifier: MIT
#pragma once
// Names of the schedules: Hugging Face's and DeepSpeed's.
#include "lib/core/field.h"
#include "tessera/optim/lr_schedule.h"

namespace tessera {

template <>
inline constexpr auto kNames<LrScheduleKind> = std::to_array<Named<LrScheduleKind>>({
    {"linear", LrScheduleKind::kLinear},
    {"cosine", LrScheduleKind::kCosine},
    {"cosine_with_restarts", LrScheduleKind::kCosineWithRestarts},
    {"polynomial", LrScheduleKind::kPolynomial},
    {"constant", LrScheduleKind::kConstant},
    {"constant_with_warmup", LrScheduleKind::kConstantWithWarmup},
    {"inverse_sqrt", LrScheduleKind::kInverseSqrt},
    {"reduce_lr_on_plateau", LrScheduleKind::kReduceOnPlateau},
    {"cosine_with_min_lr", LrScheduleKind::kCosineWithMinLr},
    {"cosine_warmup_with_min_lr", LrScheduleKind::kCosineWarmupWithMinLr},
    {"warmup_stable_decay", LrScheduleKind::kWarmupStableDecay},
    {"WarmupLR", LrScheduleKind::kWarmupLr},
    {"WarmupDecayLR", LrScheduleKind::kWarmupDecayLr},
    {"WarmupCosineLR", LrScheduleKind::kWarmupCosineLr},
});

}  // namespace tessera
