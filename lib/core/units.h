// SPDX-License-Identifier: MIT
#pragma once
namespace tessera {

constexpr double kMiB = 1 << 20;

}  // namespace tessera
