// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "lib/ops/reference.h"
#include "tessera/ops/functional.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

at::Tensor labels_of(int64_t rows, int64_t vocabulary) {
  at::Tensor labels = at::randint(vocabulary, {rows}, kOnGpu.dtype(at::kLong));
  labels[0] = -100, labels[rows / 2] = -100;
  labels[rows - 1] = vocabulary - 1;
  return labels;
}

void check_kernel(int64_t rows, int64_t vocabulary, at::ScalarType type) {
  INFO("rows " << rows << " vocabulary " << vocabulary << " type " << at::toString(type));
  const at::Tensor labels = labels_of(rows, vocabulary), scale = at::full({}, 0.125F, kOnGpu);
  const int64_t stride = (vocabulary + 63) / 64 * 64;
  const at::Tensor buffer = at::full({rows, stride}, NAN, kOnGpu.dtype(type));
  const at::Tensor logits = buffer.narrow(1, 0, vocabulary);
  logits.copy_(at::randn({rows, vocabulary}, kOnGpu) * 4);
  const at::Tensor expected = logits.to(at::kDouble),
                   expected_loss = at::empty({rows}, kOnGpu.dtype(at::kDouble));
  ops::reference::cross_entropy_(expected, labels, scale, expected_loss);
  const at::Tensor loss = at::full({rows}, NAN, kOnGpu), before = logits.clone();
  ops::cross_entropy_(logits, labels, {}, loss);
  CHECK(logits.equal(before));
  CHECK(relative_error(loss, expected_loss) < 1e-6);
  ops::cross_entropy_(logits, labels, scale, loss.fill_(NAN));
  CHECK(relative_error(loss, expected_loss) < 1e-6);
  CHECK(relative_error(logits, expected) < (type == at::kBFloat16 ? 3e-3
                                            : type == at::kHalf   ? 1e-3
                                                                  : 1e-6));
  CHECK(logits[0].eq(0).all().item<bool>());
}

double error_on_gpu(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

// Twice on one stream, for kernels that leave state behind; in blocks of rows against the fp64
// reference.
void check_wide_rows(const at::Tensor& labels, int64_t vocabulary, at::ScalarType type) {
  const int64_t rows = labels.size(0), stride = (vocabulary + 63) / 64 * 64;
  INFO("rows " << rows << " vocabulary " << vocabulary << " type " << at::toString(type));
  const at::Tensor scale = at::full({}, 0.125F, kOnGpu);
  const at::Tensor before = (at::randn({rows, vocabulary}, kOnGpu) * 4).to(type);
  std::vector<at::Tensor> logits, loss;
  for (int run = 0; run < 2; ++run) {
    logits.push_back(
        at::full({rows, stride}, NAN, kOnGpu.dtype(type)).narrow(1, 0, vocabulary).copy_(before));
    loss.push_back(at::full({rows}, NAN, kOnGpu));
  }
  for (int run = 0; run < 2; ++run) ops::cross_entropy_(logits[run], labels, scale, loss[run]);
  CHECK(logits[0].equal(logits[1]));
  CHECK(loss[0].equal(loss[1]));
  const at::Tensor ignored = labels.eq(-100);
  CHECK(logits[0].masked_fill(ignored.logical_not().unsqueeze(1), 0).eq(0).all().item<bool>());
  CHECK(loss[0].masked_select(ignored).eq(0).all().item<bool>());
  constexpr int64_t kAtOnce = 256;
  for (int64_t first = 0; first < rows; first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, rows - first);
    if (ignored.narrow(0, first, count).all().item<bool>()) continue;  // zeros, as checked above
    const at::Tensor expected = before.narrow(0, first, count).to(at::kDouble),
                     expected_loss = at::empty({count}, kOnGpu.dtype(at::kDouble));
    ops::reference::cross_entropy_(expected, labels.narrow(0, first, count), scale, expected_loss);
    INFO("rows from " << first);
    CHECK(error_on_gpu(loss[0].narrow(0, first, count), expected_loss) < 1e-6);
    CHECK(error_on_gpu(logits[0].narrow(0, first, count), expected) <
          (type == at::kBFloat16 ? 3e-3 : 1e-3));
  }
}

// Two halves of the columns, as on two tensor-parallel ranks, against the whole.
void check_halves(int64_t rows, int64_t vocabulary, at::ScalarType type) {
  INFO("rows " << rows << " vocabulary " << vocabulary << " type " << at::toString(type));
  const at::Tensor labels = labels_of(rows, vocabulary), scale = at::full({}, 0.125F, kOnGpu);
  const at::Tensor whole = (at::randn({rows, vocabulary}, kOnGpu) * 4).to(type);
  const at::Tensor expected = whole.to(at::kDouble),
                   expected_loss = at::empty({rows}, kOnGpu.dtype(at::kDouble));
  ops::reference::cross_entropy_(expected, labels, scale, expected_loss);
  const int64_t half = vocabulary / 2;
  std::vector<at::Tensor> logits, own_labels, statistics;
  for (int part : {0, 1}) {
    const int64_t stride = (half + 63) / 64 * 64;
    logits.push_back(at::full({rows, stride}, NAN, kOnGpu.dtype(type)).narrow(1, 0, half));
    logits.back().copy_(whole.narrow(1, part * half, half));
    const at::Tensor own = labels - part * half;
    own_labels.push_back(own.masked_fill(own.lt(0).logical_or(own.ge(half)), half)
                             .masked_fill(labels.eq(-100), -100));
    statistics.push_back(at::full({2, rows}, NAN, kOnGpu));
    ops::cross_entropy_statistics(logits.back(), own_labels.back(), statistics.back());
  }
  const at::Tensor all = at::stack(statistics), loss = at::full({rows}, NAN, kOnGpu);
  const at::Tensor untouched = logits[0].clone();
  ops::cross_entropy_gradient_(logits[0], own_labels[0], all, {}, loss);
  CHECK(relative_error(loss, expected_loss) < 1e-6);
  CHECK(logits[0].equal(untouched));
  for (int part : {0, 1}) {
    ops::cross_entropy_gradient_(logits[part], own_labels[part], all, scale, loss.fill_(NAN));
    CHECK(relative_error(loss, expected_loss) < 1e-6);
    CHECK(relative_error(logits[part], expected.narrow(1, part * half, half)) <
          (type == at::kBFloat16 ? 3e-3
           : type == at::kHalf   ? 1e-3
                                 : 2e-6));
    CHECK(logits[part][0].eq(0).all().item<bool>());
  }
}

void check_head(int64_t rows, int64_t n, int64_t vocabulary, at::ScalarType type, int64_t chunk) {
  INFO("rows " << rows << " n " << n << " vocabulary " << vocabulary << " type "
               << at::toString(type) << " chunk " << chunk);
  const at::Tensor hidden = leaf(at::randn({rows, n}, kOnGpu).to(type));
  const at::Tensor weight =
      leaf((at::randn({vocabulary, n}, kOnGpu) / std::sqrt(double(n))).to(type));
  const at::Tensor labels = labels_of(rows, vocabulary), scale = at::full({}, 1.0F / 16, kOnGpu);
  weight.mutable_grad() = at::zeros_like(weight);
  const at::Tensor loss = ops::linear_cross_entropy(hidden, weight, labels, scale, chunk);
  torch::autograd::backward({loss}, {scale});
  const at::Tensor h = leaf(hidden.to(at::kDouble)), w = leaf(weight.to(at::kDouble));
  const at::Tensor expected =
      at::cross_entropy_loss(at::matmul(h, w.t()), labels, {}, at::Reduction::Sum, -100);
  torch::autograd::backward({expected / 16});
  const double tolerance = type == at::kBFloat16 ? 1e-2
                           : type == at::kHalf   ? 2e-3
                                                 : 2e-3;  // fp32 may be TF32
  CHECK(relative_error(loss, expected) < tolerance / 10);
  CHECK(relative_error(hidden.grad(), h.grad()) < tolerance);
  CHECK(relative_error(weight.grad(), w.grad()) < tolerance);
}

}  // namespace

TEST_CASE("the cross-entropy kernel on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(41);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const int64_t vocabulary : {17, 1000, 50257, 250880}) check_kernel(37, vocabulary, type);
  }
}

TEST_CASE("wide rows of 16 bits on the GPU, of any number") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(44);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t vocabulary : {50257, 128256, 250877, 250880}) {
      for (const int64_t rows : {1, 37, 300, 2048}) {
        const at::Tensor labels = at::randint(vocabulary, {rows}, kOnGpu.dtype(at::kLong));
        labels[0] = vocabulary - 1, labels[rows / 2] = 0;
        check_wide_rows(labels, vocabulary, type);
      }
    }
  }
}

TEST_CASE("wide rows of which many are ignored on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(45);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t vocabulary : {50257, 250880}) {
      const at::Tensor labels = at::randint(vocabulary, {300}, kOnGpu.dtype(at::kLong));
      const at::Tensor half = at::rand({300}, kOnGpu).lt(0.5), all = at::ones_like(half);
      const at::Tensor first = at::arange(300, kOnGpu).lt(150);
      for (const at::Tensor& ignored : {half, first, first.logical_not(), all}) {
        check_wide_rows(labels.masked_fill(ignored, -100), vocabulary, type);
      }
    }
  }
}

TEST_CASE("labels outside the vocabulary touch no other wide row on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(46);
  const int64_t rows = 100, vocabulary = 250880;
  const at::Tensor logits = at::randn({rows, vocabulary}, kOnGpu).to(at::kBFloat16),
                   labels = at::randint(vocabulary, {rows}, kOnGpu.dtype(at::kLong)),
                   loss = at::zeros({rows}, kOnGpu);
  const at::Tensor outside = at::rand({rows}, kOnGpu).lt(0.2);
  labels.masked_fill_(outside, vocabulary);
  labels[7] = -1, labels[8] = int64_t{1} << 40;
  outside[7] = true, outside[8] = true;
  ops::cross_entropy_(logits, labels, at::ones({}, kOnGpu), loss);
  CHECK(loss.isnan().equal(outside));
  CHECK(logits.isnan().equal(outside.unsqueeze(1).expand_as(logits)));
}

TEST_CASE("the kernels of a vocabulary cut over ranks") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(43);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const int64_t vocabulary : {34, 1000, 50258, 250880}) check_halves(37, vocabulary, type);
  }
}

TEST_CASE("a label outside the vocabulary gives NaN on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  const at::Tensor logits = at::randn({2, 64}, kOnGpu).to(at::kBFloat16),
                   loss = at::zeros({2}, kOnGpu);
  ops::cross_entropy_(logits, at::tensor(std::vector<int64_t>{64, 3}).to(at::kCUDA),
                      at::ones({}, kOnGpu), loss);
  CHECK(std::isnan(loss[0].item<float>()));
  CHECK(std::isfinite(loss[1].item<float>()));
}

TEST_CASE("the chunked head on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(42);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    check_head(77, 128, 50257, type, 32);
    check_head(50, 64, 1000, type, 1024);
  }
  check_head(260, 1024, 250880, at::kBFloat16, 128);
}
