// SPDX-License-Identifier: MIT
#include "lib/run/grown_embedding.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lib/core/hash.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr double kShareOfCovariance = 1e-9;
// A new row is the mean plus a sum of this many random rows' differences from it, with normal
// factors. The sum has the covariance of all rows.
constexpr int64_t kDrawn = 1024;

class GrownEmbedding final : public TensorSource {
 public:
  GrownEmbedding(std::unique_ptr<const TensorSource> base, int64_t old_rows, int64_t rows,
                 uint64_t seed)
      : base_(std::move(base)), old_rows_(old_rows), rows_(rows), seed_(seed) {}

  bool has(const std::string& name) const override { return base_->has(name); }

  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
    if (shape.size() == 2 && shape[0] == rows_) {
      try {
        return grown(name, base_->read(name, {old_rows_, shape[1]}));
      } catch (const Error& error) {  // another matrix may have as many rows
        if (error.code() != ErrorCode::kDataLoss) throw;
      }
    }
    return base_->read(name, shape);
  }

 private:
  // Sums in a fixed order, so that the bits do not depend on the number of threads.
  at::Tensor grown(const std::string& name, const at::Tensor& old) const {
    const auto generator = at::detail::createCPUGenerator(xxh3_64(name.data(), name.size(), seed_));
    const int64_t added = rows_ - old_rows_, width = old.size(1);
    const at::Tensor chosen = at::randint(old_rows_, {added, kDrawn}, generator, at::kLong);
    const at::Tensor factors = at::randn({added, kDrawn}, generator, at::kDouble);
    const std::vector<double> mean = mean_of(old);
    const double scale = std::sqrt(kShareOfCovariance / static_cast<double>(kDrawn));
    at::Tensor rows = at::empty({added, width}, at::kFloat);
    for (int64_t i = 0; i < added; ++i) {
      const at::Tensor some = old.index_select(0, chosen[i]).to(at::kFloat).contiguous();
      const float* value = some.const_data_ptr<float>();
      const double* factor = factors[i].const_data_ptr<double>();
      std::vector<double> row = mean;
      for (int64_t k = 0; k < kDrawn; ++k) {
        for (size_t c = 0; c < row.size(); ++c) row[c] += scale * factor[k] * (*value++ - mean[c]);
      }
      std::ranges::copy(row, rows[i].mutable_data_ptr<float>());
    }
    return at::cat({old, rows.to(old.scalar_type())});
  }

  static std::vector<double> mean_of(const at::Tensor& table) {
    std::vector<double> mean(static_cast<size_t>(table.size(1)), 0.0);
    for (const at::Tensor& part : table.split(kDrawn)) {
      const at::Tensor values = part.to(at::kFloat).contiguous();
      const float* value = values.const_data_ptr<float>();
      for (int64_t row = 0; row < part.size(0); ++row) {
        for (double& sum : mean) sum += *value++;
      }
    }
    for (double& sum : mean) sum /= static_cast<double>(table.size(0));
    return mean;
  }

  const std::unique_ptr<const TensorSource> base_;
  const int64_t old_rows_, rows_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<const TensorSource> with_grown_embedding(std::unique_ptr<const TensorSource> base,
                                                         int64_t old_rows, int64_t rows,
                                                         uint64_t seed) {
  return std::make_unique<GrownEmbedding>(std::move(base), old_rows, rows, seed);
}

}  // namespace tessera::programs
