// SPDX-License-Identifier: MIT
#pragma once
// The LibTorch and standard headers nearly every file needs; compiled once. What a header leaves to
// instantiate is instantiated in every file all the same: autograd's, which few need, would take
// each file 1.3 s longer.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
