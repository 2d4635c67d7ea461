// SPDX-License-Identifier: MIT
#include "lib/generation/window_losses.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t kChunkRows = 512;  // rows of scores converted to fp32 at a time

// The windows of one micro-batch; empty ones are padding.
struct Batch {
  MicroBatch micro_batch;
  at::Tensor targets;  // int64 [n], for head_positions
  at::Tensor windows;  // int64 [n], the window of each
};

Batch make_batch(std::span<const TokenWindow> windows, std::span<const int64_t> ids, int64_t rows,
                 int64_t width, at::Device device) {
  const at::Tensor inputs = at::zeros({rows, width}, at::kLong);
  std::vector<int64_t> positions, targets, numbers;
  for (size_t row = 0; row < windows.size(); ++row) {
    const TokenWindow& window = windows[row];
    const auto first = static_cast<int64_t>(row) * width;
    std::ranges::copy(ids.subspan(window.begin, window.length),
                      inputs.mutable_data_ptr<int64_t>() + first);
    for (size_t at = window.first_target; at < window.length; ++at) {
      positions.push_back(first + static_cast<int64_t>(at) - 1);
      targets.push_back(ids[window.begin + at]);
      numbers.push_back(static_cast<int64_t>(row));
    }
  }
  if (positions.empty()) {  // the head needs one position; it counts for no window
    positions = targets = {0};
    numbers = {rows};
  }
  const auto moved = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).to(device);
  };
  Batch batch{.targets = moved(targets), .windows = moved(numbers)};
  batch.micro_batch.input_ids = inputs.to(device);
  batch.micro_batch.head_positions = moved(positions);
  batch.micro_batch.sample_count = static_cast<int64_t>(windows.size());
  batch.micro_batch.token_count = rows * width;
  batch.micro_batch.target_count = static_cast<int64_t>(targets.size());
  return batch;
}

// fp64 [rows]: sum of each window's losses. scores [n, vocabulary].
at::Tensor loss_sums(const at::Tensor& scores, const Batch& batch, int64_t rows) {
  const at::Tensor sums = at::zeros({rows + 1}, scores.options().dtype(at::kDouble));
  for (int64_t first = 0; first < scores.size(0); first += kChunkRows) {
    const int64_t count = std::min(kChunkRows, scores.size(0) - first);
    const auto chunk = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    const at::Tensor loss = at::nll_loss(chunk(scores).to(at::kFloat).log_softmax(1),
                                         chunk(batch.targets), {}, at::Reduction::None);
    sums.index_add_(0, chunk(batch.windows), loss.to(at::kDouble));
  }
  return sums.narrow(0, 0, rows);
}

}  // namespace

std::vector<double> window_losses(Strategy& strategy, const DeviceMesh& mesh,
                                  std::span<const int64_t> ids,
                                  std::span<const TokenWindow> windows, int64_t batch_size) {
  if (windows.empty()) return {};
  const at::NoGradGuard no_grad;
  Communicator& data = mesh.axis(Axis::kData);
  const auto rows = static_cast<size_t>(batch_size);
  const auto together = static_cast<size_t>(mesh.extent(Axis::kPipeline));
  const auto ranks = static_cast<size_t>(data.size());
  const size_t per_pass = rows * together * ranks;
  const size_t passes = (windows.size() + per_pass - 1) / per_pass;
  const auto taken = [&](size_t first, size_t count) {
    const size_t begin = std::min(first, windows.size());
    return windows.subspan(begin, std::min(count, windows.size() - begin));
  };
  std::vector<at::Tensor> sums;
  for (size_t pass = 0; pass < passes; ++pass) {
    const auto of_pass = taken(pass * per_pass, per_pass);
    const auto longest = std::ranges::max(of_pass, {}, &TokenWindow::length).length;
    std::vector<Batch> batches;
    std::vector<MicroBatch> micro_batches;
    for (size_t i = 0; i < together; ++i) {
      const size_t number = (pass * ranks + static_cast<size_t>(data.rank())) * together + i;
      batches.push_back(make_batch(taken(number * rows, rows), ids, batch_size,
                                   static_cast<int64_t>(longest), data.device()));
      micro_batches.push_back(batches.back().micro_batch);
    }
    const auto losses = strategy.predict(micro_batches, [&](const at::Tensor& scores, size_t i) {
      return loss_sums(scores, batches[i], batch_size);
    });
    sums.insert(sums.end(), losses.begin(), losses.end());
  }
  const at::Tensor mine = at::stack(sums);  // [passes * together, rows]
  const at::Tensor all = at::empty({data.size(), mine.size(0), mine.size(1)}, mine.options());
  data.all_gather(all, mine).wait();
  const at::Tensor known = all.cpu();
  std::vector<double> result;
  for (size_t i = 0; i < windows.size(); ++i) {
    const size_t number = i / rows, group = number / together;
    const auto* of_rank = known[static_cast<int64_t>(group % ranks)].const_data_ptr<double>();
    const size_t batch = group / ranks * together + number % together;
    result.push_back(of_rank[batch * rows + i % rows]);
  }
  return result;
}

}  // namespace tessera
