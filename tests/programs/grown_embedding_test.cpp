// SPDX-License-Identifier: MIT
#include "lib/run/grown_embedding.h"

#include <ATen/ATen.h>

#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

// A table, and a matrix with as many rows as the resized table.
class TwoTensors final : public TensorSource {
 public:
  TwoTensors(at::Tensor table, at::Tensor matrix)
      : table_(std::move(table)), matrix_(std::move(matrix)) {}
  bool has(const std::string&) const override { return true; }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
    const at::Tensor& found = name == "table" ? table_ : matrix_;
    check(found.sizes() == shape, ErrorCode::kDataLoss, name, " has another shape");
    return found;
  }

 private:
  at::Tensor table_, matrix_;
};

}  // namespace

TEST_CASE("new rows of an embedding have the mean of the others and 1e-9 of their covariance") {
  at::manual_seed(3);
  const at::Tensor mix = at::randn({6, 6});
  const at::Tensor table = at::randn({500, 6}).matmul(mix) + at::randn({1, 6});
  const at::Tensor matrix = at::randn({4500, 3});
  const auto grown = [&](uint64_t seed, at::ScalarType dtype = at::kFloat) {
    return with_grown_embedding(std::make_unique<TwoTensors>(table.to(dtype), matrix), 500, 4500,
                                seed);
  };
  const at::Tensor all = grown(1)->read("table", {4500, 6});
  CHECK(all.slice(0, 0, 500).equal(table));
  const at::Tensor added = all.slice(0, 500).to(at::kDouble);
  const at::Tensor mean = table.to(at::kDouble).mean(0);
  const auto covariance = [](const at::Tensor& rows) {
    const at::Tensor apart = rows - rows.mean(0);
    return apart.t().matmul(apart) / static_cast<double>(rows.size(0));
  };
  const at::Tensor wanted = 1e-9 * covariance(table.to(at::kDouble));
  // fp32 rounding is below the standard deviations, about 1e-4 of the values.
  const at::Tensor spread = covariance(added);
  CHECK((spread - wanted).abs().max().item<double>() < 0.1 * wanted.abs().max().item<double>());
  CHECK(((added.mean(0) - mean).abs() / wanted.diagonal().sqrt()).max().item<double>() < 0.1);

  CHECK(grown(1)->read("table", {4500, 6}).equal(all));
  CHECK_FALSE(grown(2)->read("table", {4500, 6}).equal(all));
  CHECK(grown(1, at::kBFloat16)->read("table", {4500, 6}).scalar_type() == at::kBFloat16);
  CHECK(grown(1)->read("matrix", {4500, 3}).equal(matrix));
  CHECK(error_of(ErrorCode::kDataLoss, [&] {
          grown(1)->read("matrix", {4500, 4});
        }) == "matrix has another shape");
}
