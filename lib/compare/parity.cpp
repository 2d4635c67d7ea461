// SPDX-License-Identifier: MIT
#include "lib/compare/parity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <vector>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

// Infinite if either is not finite, so that NaN never passes.
double relative(double value, double reference) {
  if (!std::isfinite(value) || !std::isfinite(reference)) return INFINITY;
  if (value == reference) return 0;
  return std::abs(value - reference) / std::max(std::abs(reference), 1e-30);
}

double worst(const std::vector<double>& values, const std::vector<double>& references) {
  if (values.size() != references.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    largest = std::max(largest, relative(values[i], references[i]));
  }
  return largest;
}

// Difference of a block, or of a module outside of blocks.
struct Difference {
  double squares = 0, reference_squares = 0;
  double largest_squares = -1;
  std::string largest;  // tensor with the largest difference

  // Stays infinite once a NaN or infinity occurs on either side.
  void add(const std::string& name, const at::Tensor& value, const at::Tensor& reference) {
    double own = (value - reference).square().sum().item<double>();
    if (!std::isfinite(own)) own = INFINITY;
    squares += own;
    reference_squares += reference.square().sum().item<double>();
    if (own > largest_squares) {
      largest_squares = own;
      largest = name;
    }
  }
  double relative() const {
    if (!std::isfinite(squares)) return INFINITY;
    return squares == 0 ? 0 : std::sqrt(squares) / std::max(std::sqrt(reference_squares), 1e-30);
  }
};

// "transformer.h.3" for that block, "transformer.ln_f" for weight and bias.
std::string block_or_module(const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos;) {
    const size_t next = name.find('.', dot + 1);
    const std::string part = name.substr(dot + 1, next - dot - 1);
    if (part.find_first_not_of("0123456789") == std::string::npos) return name.substr(0, next);
    dot = next;
  }
  return name.substr(0, name.rfind('.'));
}

// BLOOM stores queries, keys and values by head, GPT-2 one after the other.
at::Tensor without_key_bias(const std::string& name, const at::Tensor& value, int64_t heads) {
  if (name.ends_with("attn.c_attn.bias")) return value.view({3, -1}).index({at::tensor({0, 2})});
  if (heads == 0 || !name.ends_with("query_key_value.bias")) return value;
  return value.view({heads, 3, -1}).index({at::indexing::Slice(), at::tensor({0, 2})});
}

void compare_parameters(const RunResult& run, const RunResult& reference, Parity& parity) {
  if (!run.text("peer").empty()) return;  // peers write no model
  const bool ours_is_there = std::filesystem::exists(run.directory + "/final");
  const bool theirs_is_there = std::filesystem::exists(reference.directory + "/final");
  if (!ours_is_there && !theirs_is_there) return;  // --save_final false
  const HuggingFaceDirectory ours(run.directory + "/final"), theirs(reference.directory + "/final");
  const Json config = Json::parse_file(reference.directory + "/final/config.json");
  const int64_t heads = config.get("n_head", 0);
  if (ours.names() != theirs.names()) parity.mismatch = "final/ holds other tensors";
  std::map<std::string, Difference> differences;
  for (const SafetensorsFile& file : theirs.files()) {
    for (const SafetensorsEntry& entry : file.header().entries) {
      if (!parity.mismatch.empty()) return;
      const at::Tensor a = ours.read(entry.name, entry.shape), b = file.read(entry.name);
      const at::Tensor left = without_key_bias(entry.name, a, heads).to(at::kDouble);
      const at::Tensor right = without_key_bias(entry.name, b, heads).to(at::kDouble);
      differences[block_or_module(entry.name)].add(entry.name, left, right);
    }
  }
  for (const auto& [name, difference] : differences) {
    if (difference.relative() <= parity.parameters && !parity.worst_parameter.empty()) continue;
    parity.parameters = difference.relative();
    parity.worst_parameter = difference.largest;
  }
}

}  // namespace

double default_tolerance(const std::string& dtype) { return dtype == "fp32" ? 1e-5 : 2e-2; }

Parity compare_runs(const RunResult& run, const RunResult& reference, double tolerance) {
  Parity parity;
  for (const auto& [key, what] : {std::pair{"model", "another model"},
                                  {"dataset_sha256", "other data"},
                                  {"parameter_dtype", "another dtype"}}) {
    if (run.text(key) != reference.text(key)) parity.mismatch = what;
  }
  if (run.number("global_batch_size") != reference.number("global_batch_size")) {
    parity.mismatch = "another global batch";
  }
  if (run.losses.size() != reference.losses.size()) {
    parity.mismatch =
        concat(run.losses.size(), " steps, the reference has ", reference.losses.size());
  }
  if (run.losses.empty()) parity.mismatch = "no step was recorded";
  if (!parity.mismatch.empty()) return parity;
  parity.loss = worst(run.losses, reference.losses);
  parity.grad_norm = worst(run.grad_norms, reference.grad_norms);
  compare_parameters(run, reference, parity);
  parity.pass = parity.mismatch.empty() && parity.loss <= tolerance &&
                parity.grad_norm <= tolerance && parity.parameters <= tolerance;
  return parity;
}

}  // namespace tessera::programs
