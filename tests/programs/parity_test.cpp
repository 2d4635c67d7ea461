// SPDX-License-Identifier: MIT
// Verdict of tessera-compare: only runs whose every number was compared and agrees pass.
#include "lib/compare/parity.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tessera/checkpoint/huggingface.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

// A finished run of one step with these final parameters.
RunResult run_with(const TempDir& folder, const std::string& name, const Tensors& tensors) {
  RunResult run;
  run.directory = folder.path(name);
  std::filesystem::create_directory(run.directory);
  HuggingFaceWriter writer(run.directory + "/final");
  for (const auto& [key, value] : tensors) writer.add(key, value);
  writer.add_text("config.json", "{\"n_head\": 2}");
  writer.commit();
  run.losses = {2.5};
  run.grad_norms = {0.5};
  run.texts["parameter_dtype"] = "fp32";
  return run;
}

Tensors three(double first, double last = 1) {
  return {{"a.weight", at::full({4}, first)},
          {"b.weight", at::ones({2, 2})},
          {"c.weight", at::full({3}, last)}};
}

}  // namespace

TEST_CASE("a difference that is no number fails whatever the tensors after it say") {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const TempDir folder;
  const RunResult reference = run_with(folder, "reference", three(1));
  int number = 0;
  auto compare = [&](const Tensors& tensors) {
    return compare_runs(run_with(folder, std::to_string(number++), tensors), reference, 1e-5);
  };
  CHECK(compare(three(1)).pass);
  CHECK(compare(three(1 + 5e-6)).pass);
  for (double first : {nan, infinity, -infinity, 1.1}) {
    const Parity parity = compare(three(first));
    CHECK_FALSE(parity.pass);
    CHECK(parity.parameters > 1e-5);
    CHECK(parity.worst_parameter == "a.weight");
  }
  CHECK(compare(three(1, nan)).worst_parameter == "c.weight");
  // Two runs that diverged equally prove nothing.
  CHECK_FALSE(compare_runs(run_with(folder, "left", three(nan)),
                           run_with(folder, "right", three(nan)), 1e-5)
                  .pass);
}

TEST_CASE("parameters differ by blocks: one noisy element of a young bias is not another result") {
  const TempDir folder;
  const auto block = [](double element, double bias) {
    at::Tensor noisy = at::full({64}, bias);
    noisy[3] += element;
    return Tensors{{"h.1.dense.bias", noisy},
                   {"h.1.dense.weight", at::full({64, 64}, 0.02)},
                   {"h.11.dense.bias", at::full({64}, 4e-3)},
                   {"h.11.dense.weight", at::full({64, 64}, 0.02)},
                   {"ln_f.bias", at::full({64}, 1e-3)},
                   {"ln_f.weight", at::ones({64})}};
  };
  const RunResult reference = run_with(folder, "reference", block(0, 4e-3));
  const Parity noise = compare_runs(run_with(folder, "noise", block(1e-6, 4e-3)), reference, 1e-5);
  CHECK(noise.pass);
  CHECK(noise.parameters == Approx(1e-6 / std::sqrt(64 * 64 * 4e-4 + 64 * 1.6e-5)).epsilon(0.01));
  CHECK(noise.worst_parameter == "h.1.dense.bias");
  // A bias that is off by a thousandth fails.
  const Parity wrong = compare_runs(run_with(folder, "wrong", block(0, 4.004e-3)), reference, 1e-5);
  CHECK_FALSE(wrong.pass);
  CHECK(wrong.worst_parameter == "h.1.dense.bias");
}

TEST_CASE("a tensor, a step or a number that only one run has fails") {
  const TempDir folder;
  const RunResult reference = run_with(folder, "reference", three(1));
  Tensors fewer = three(1), more = three(1);
  fewer.pop_back();
  more.emplace_back("d.weight", at::ones({2}));
  for (const auto& [name, tensors] : {std::pair{"fewer", fewer}, {"more", more}}) {
    const Parity parity = compare_runs(run_with(folder, name, tensors), reference, 1e-5);
    CHECK_FALSE(parity.pass);
    CHECK(parity.mismatch == "final/ holds other tensors");
  }
  RunResult run = run_with(folder, "run", three(1));
  run.grad_norms = {std::nan("")};
  CHECK_FALSE(compare_runs(run, reference, 1e-5).pass);
  run.grad_norms.clear();
  CHECK_FALSE(compare_runs(run, reference, 1e-5).pass);
  run.grad_norms = {0.5};
  run.losses.push_back(2.4);
  CHECK_FALSE(compare_runs(run, reference, 1e-5).pass);
}
