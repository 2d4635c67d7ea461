// SPDX-License-Identifier: MIT
#pragma once
// Allowed differences between a strategy's numbers and the oracle's. Each figure follows from the
// number of roundings of a value; none is loosened for a case.
//
// The check is step by step: the oracle adopts the strategy's checked parameters, and for the
// update its gradients. So errors do not accumulate over steps, and neither the model nor Adam
// amplifies them.
//
// u(dtype) is half a unit in the last place relative to the value: 2^-24, 2^-8, 2^-11.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "lib/testing/fuzz_case.h"

namespace tessera::testing {

struct Digits {
  double unit_roundoff;
  double least_positive;  // rounding error of values that underflow
};

inline Digits digits_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return {0x1p-8, 0x1p-133};
    case at::kHalf:
      return {0x1p-11, 0x1p-24};
    default:
      return {0x1p-24, 0x1p-149};
  }
}

inline double unit_roundoff(at::ScalarType dtype) { return digits_of(dtype).unit_roundoff; }
inline double least_positive(at::ScalarType dtype) { return digits_of(dtype).least_positive; }

// [Note: exact cases]
// Here the oracle runs the same operations in the same dtype on the same micro-batches (no tensor
// axis; the blocks, or a forward with same_terms). So every term of the gradient has the same bits,
// and only sums differ. S is the sum of the terms' absolute values; a partial sum is at most S.
//   in the gradient's dtype: one rounding per micro-batch and use, one when the reduced sum is
//   stored, and one more for each further sum over replicas or tied ends
//   in the reduce dtype: the cast to it and the rounded sum over ranks, or every addition of two
//   ranks' values where the transport rounds it; as many again for each further sum
//   in fp32: one rounding per rank inside every reduction
// With several calls per step, all but those per micro-batch occur once per call. The factor that
// then turns the sum into a mean is rounded, and so is the product.
// (1 + u)^n - 1 <= 1.01 n u for these n.
struct SumOfTerms {
  at::ScalarType gradient, wire;
  int64_t micro_batches, uses, ranks;
  int further_sums;   // over replicas of hybrid shards, and over ranks with tied ends
  int64_t additions;  // consecutive rounded additions in one reduction: 1, or all of them
  int64_t calls = 1;  // forward_backward() calls per step

  int64_t sums() const { return calls * (1 + further_sums); }
  int64_t of_factor() const { return calls > 1 ? 3 : 0; }
  int64_t on_wire() const { return sums() * (1 + additions); }

  double relative() const {
    const double in_gradient = static_cast<double>(micro_batches * uses + sums());
    const double in_fp32 = static_cast<double>(ranks * sums() + of_factor());
    return 1.01 * (in_gradient * unit_roundoff(gradient) +
                   static_cast<double>(on_wire()) * unit_roundoff(wire) + in_fp32 * 0x1p-24);
  }
  // Noise of parts that cancel in a reduction, relative to their size.
  double wire_noise() const {
    return wire == at::kFloat ? 0 : static_cast<double>(on_wire()) * unit_roundoff(wire);
  }
  // Remaining roundings where only the reduce dtype is narrow, in units of 2^-24.
  double relative_in_fp32() const {
    return static_cast<double>(micro_batches * uses + sums() + ranks * sums() + of_factor());
  }
  // Underflow: as many roundings, each at most half of the smallest number.
  double absolute() const {
    return static_cast<double>(micro_batches * uses + sums() + on_wire()) *
           static_cast<double>(ranks) * (least_positive(gradient) + least_positive(wire));
  }
};

// [Note: the wire's roundings]
// A reduce dtype narrower than the gradient's rounds at known places: each rank's sum once and the
// sum over ranks once. That is once per step, or once per micro-batch where gradients are sharded.
// Half a unit in the last place, h, is known at each place. The error is uniform in [-h, h], with
// variance h^2 / 3. If the terms have 16 bits themselves and lose one, it is a tie, 0 or h, with
// variance h^2 / 2, the assumed value. So the squared norm of the whole error is the sum of h^2 /
// 2. Equal terms, such as ranks with the same few tokens, have equal errors; k of them have k times
// the variance of k others.
// The deviation is sqrt(4/5) of one term's for each effectively independent element. Allowed are
// kRmsDeviations of them, and kRmsSlack for values that are not random. A partial sum that is
// rounded at every micro-batch would add half as much again and more.
constexpr double kRmsDeviations = 6;
constexpr double kRmsSlack = 1.2;

// h^2 / 2 by element for rounding x to dtype.
inline at::Tensor rounding_variance(const at::Tensor& x, at::ScalarType dtype) {
  const auto [mantissa, exponent] = at::frexp(x);  // |mantissa| in [1/2, 1)
  const at::Tensor ulp = at::exp2(exponent.to(at::kDouble) - 1)
                             .mul(unit_roundoff(dtype))
                             .clamp_min(least_positive(dtype) / 2);
  return at::where(x.eq(0), 0.0, ulp.square() / 2);
}

// Variance of the sum of the roundings of x [terms, elements]. Equal terms have equal roundings, so
// k of them have k times the variance of k others. Terms count as equal if they differ by much less
// than the dtype's resolution.
inline at::Tensor variance_of_sum(const at::Tensor& x, at::ScalarType dtype) {
  const at::Tensor distance = (x.unsqueeze(0) - x.unsqueeze(1)).abs();
  const at::Tensor equal = distance <= x.abs().unsqueeze(0) * (0.1 * unit_roundoff(dtype));
  return (rounding_variance(x, dtype) * equal.sum(0)).sum(0);
}

// [Note: other cases]
// Another order of products and sums inside blocks (tensor axis, lib/ops against plain operations)
// has no useful worst-case bound: a key's bias has gradient 0 and arbitrary rounding noise. So the
// noise is measured: the plain model in the compute dtype, compared with fp64, gives one sample per
// parameter. Norms of two samples of the same noise differ by less than kNoise. For too few
// elements, kFloor roundings of the terms are allowed.
// Where one rounding is amplified far above all others (a norm over an almost constant row), there
// is one effective element however large the parameter. A single sample is then small by chance in
// 1 of 12. There kSamples are taken. The further ones move every weight by up to a unit in its last
// place, which is one more rounding. The root of the sum of k squares is below 1/8 of one of the
// terms in 1 of 10^4 for k = 4 and of 6 * 10^7 for k = 8.
// Where the plain model's 16-bit gradients overflow but a strategy's fp32 ones do not, noise is
// measured at the loss scale over a power of two, which rounds alike.
constexpr size_t kSamples = 8;
constexpr double kNoise = 8;
constexpr double kFloor = 16;
// A value that moves to the next code of 8 bits does so in few samples, and moves by up to 12 % of
// itself; these are roundings of a sum with some such terms.
constexpr double kFp8Roundoff = 0x1p-11;
// A gradient that is 0 because two terms cancel inside a kernel (queries with one visible key) has
// those terms' noise. They are as large as the surrounding gradients, so roundings of the whole are
// allowed. So too for parts that tensor ranks reduce in a narrow dtype: an element of a part counts
// as large as the gradients' elements on average.
constexpr double kWholeFloor = 4;
// Where all of it cancels (every query sees one key), only adapters' gradients remain for
// comparison, and keys and values lie between them and the cancelling terms.
constexpr double kCancelledFloor = 128;
constexpr double kCancelled = 1e-9;  // remainder of such a gradient in fp64, relative to the whole

// Losses in exact cases: an fp64 sum over micro-batches rounded to fp32, and its sum over a
// pipeline or data axis rounded again.
constexpr double kLossRoundings = 4;

// The reported norm against that of the exposed gradients: fp32 sums over shards and axes, a square
// root, the loss scale.
inline double norm_tolerance(int ranks) { return (ranks + 8) * 0x1p-24; }

// The clip factor is derived from the fp32 norm: an addition, a division, and the roundings of the
// norm and the constants.
constexpr double kClipRoundings = 5;

// Returned scores are rounded to the parameters' dtype; the loss may use unrounded ones.
constexpr double kScoreRoundings = 16;

// Means and variances over rows of activations, which have roundings of their own.
constexpr double kStatisticRoundings = 256;

// [Note: update]
// From gradient to update, fp32 AdamW rounds at most 16 times relative to the moment (all terms
// taken positive) and twice for scaling by the clip factor. Decay and subtraction round twice
// relative to the parameter. Squares of gradients below 2^-63 underflow in the second moment; their
// root is off by at most 2^-74, with epsilon far above.
constexpr double kUpdateRoundings = 20;
constexpr double kParameterRoundings = 3;

}  // namespace tessera::testing
