#pragma once
// What a finished run left in its output directory.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::programs {

struct RunResult {
  std::string directory;
  std::vector<double> losses, grad_norms;  // one a step
  std::string device, parameter_dtype, gradient_dtype, reduce_dtype;
  int64_t num_parameters = 0, accumulation = 1, global_batch = 0;
  std::string model, dataset_sha256;
  std::optional<double> train_loss_final, tokens_per_second, eval_loss;
  std::optional<int64_t> parameter_bytes, gradient_bytes, optimizer_bytes, buffer_bytes;
  std::optional<int64_t> host_bytes, pinned_bytes;
  std::optional<int64_t> gpu_peak_bytes, cpu_peak_bytes;
  std::optional<int64_t> comm_bytes_per_step;  // median over the steps, sent by rank 0
  int64_t tokens_per_step = 0;                 // median, padding included, of all ranks
};

// Reads metrics.jsonl. Throws Error(kDataLoss) when the run has not written its end.
RunResult read_run(const std::string& directory);

}  // namespace tessera::programs
