// SPDX-License-Identifier: MIT
#pragma once
// How far a strategy's numbers may lie from the oracle's. Every figure follows from how many
// roundings a value sees on its way; none is ever loosened for a case.
//
// The check is step by step: the oracle takes over the parameters, and for the update the
// gradients, that the strategy showed and that were found good, so nothing accumulates over steps
// and no error is amplified by the model or by Adam.
//
// u(dtype) is half a unit in the last place relative to the value: 2^-24, 2^-8, 2^-11.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "lib/testing/fuzz_case.h"

namespace tessera::testing {

struct Digits {
  double unit_roundoff;
  double least_positive;  // what rounding adds where a value underflows
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

// [Note: exact cases] Where the oracle runs the very operations in the very dtype on the very
// micro-batches (no tensor axis; the blocks, or a forward with same_terms), every term of the
// gradient has the same bits and only the sums differ. S is the sum of the terms' absolute values;
// a partial sum is at most S.
//   in the gradient's dtype: one rounding a micro-batch and use, one when the wire's sum is stored,
//     and where sums go over replicas or holders as well, one more for each
//   in the wire's dtype: the cast to it and the rounded sum of the ranks, or every addition of two
//     ranks' values where the transport rounds them; as many more for each of replicas and holders
//   in fp32: one rounding a rank inside every reduction
// All but those a micro-batch come once a call where several calls make a step; the factor that
// then makes the sum a mean is rounded, and so is the product.
// (1 + u)^n - 1 <= 1.01 n u for the n here.
struct SumOfTerms {
  at::ScalarType gradient, wire;
  int64_t micro_batches, uses, ranks;
  int further_sums;   // over replicas of hybrid shards, over holders of tied ends
  int64_t additions;  // that round one after the other in a sum on the wire: 1, or all of them
  int64_t calls = 1;  // of forward_backward() a step

  int64_t sums() const { return calls * (1 + further_sums); }
  int64_t of_factor() const { return calls > 1 ? 3 : 0; }
  int64_t on_wire() const { return sums() * (1 + additions); }

  double relative() const {
    const double in_gradient = static_cast<double>(micro_batches * uses + sums());
    const double in_fp32 = static_cast<double>(ranks * sums() + of_factor());
    return 1.01 * (in_gradient * unit_roundoff(gradient) +
                   static_cast<double>(on_wire()) * unit_roundoff(wire) + in_fp32 * 0x1p-24);
  }
  // Of parts that cancel in a sum on the wire, relative to their size.
  double wire_noise() const {
    return wire == at::kFloat ? 0 : static_cast<double>(on_wire()) * unit_roundoff(wire);
  }
  // In units of 2^-24: what is left where only the wire is narrow.
  double relative_in_fp32() const {
    return static_cast<double>(micro_batches * uses + sums() + ranks * sums() + of_factor());
  }
  // Underflow: the same count of roundings, each at most half of the least number.
  double absolute() const {
    return static_cast<double>(micro_batches * uses + sums() + on_wire()) *
           static_cast<double>(ranks) * (least_positive(gradient) + least_positive(wire));
  }
};

// [Note: the wire's roundings] A wire narrower than the gradient rounds at known places: each
// rank's sum once, the sum of the ranks once; once a step, or once a micro-batch where gradients
// are sharded. Half a unit in the last place h is known at each, the error there is uniform in
// [-h, h], of variance h^2 / 3; where the terms have 16 bits themselves and one is lost it is a
// tie, 0 or h, of variance h^2 / 2, which is taken. So the squared norm of the whole error is the
// sum of h^2 / 2; equal terms, as of ranks with the same few tokens, have equal errors, and k of
// them k times the variance of k others. It has a deviation of sqrt(4/5) of one term's for each
// effectively independent element. kRmsDeviations of them and kRmsSlack, for values that are no
// good dice, are allowed; a partial sum that is rounded with every micro-batch adds half as much
// again and more.
constexpr double kRmsDeviations = 6;
constexpr double kRmsSlack = 1.2;

// By element: h^2 / 2 of rounding x to dtype.
inline at::Tensor rounding_variance(const at::Tensor& x, at::ScalarType dtype) {
  const auto [mantissa, exponent] = at::frexp(x);  // |mantissa| in [1/2, 1)
  const at::Tensor ulp = at::exp2(exponent.to(at::kDouble) - 1)
                             .mul(unit_roundoff(dtype))
                             .clamp_min(least_positive(dtype) / 2);
  return at::where(x.eq(0), 0.0, ulp.square() / 2);
}

// Of the sum of the roundings of x [terms, elements]. Those of equal terms are equal, too: k of
// them have k times the variance of k others. Terms that differ by much less than the dtype shows
// are.
inline at::Tensor variance_of_sum(const at::Tensor& x, at::ScalarType dtype) {
  const at::Tensor distance = (x.unsqueeze(0) - x.unsqueeze(1)).abs();
  const at::Tensor equal = distance <= x.abs().unsqueeze(0) * (0.1 * unit_roundoff(dtype));
  return (rounding_variance(x, dtype) * equal.sum(0)).sum(0);
}

// [Note: other cases] Another order of products and sums inside the blocks (tensor axis,
// operations of lib/ops against plain ones) has no bound worth having from worst cases: a key's
// bias has the gradient 0 and any rounding noise. The noise is measured instead: the same plain
// model in the compute dtype beside fp64 gives one sample of it for each parameter. Norms of two
// samples of the same noise differ by less than kNoise unless there are too few elements to tell:
// kFloor roundings of the terms stand in for those. Where one rounding is amplified above all
// others (a norm over a row that is almost constant) there is one effective element however large
// the parameter, and a single sample is small by chance in 1 of 12. There kSamples are taken, the
// further ones with every weight moved by up to a unit in its last place, which is rounding once
// more; the root of the sum of k squares is below 1/8 of one of the terms in 1 of 10^4 for k = 4
// and of 6 * 10^7 for k = 8. Where the plain model's 16-bit gradients overflow but a strategy's
// fp32 ones do not, noise is measured at the loss scale over a power of two, which rounds alike.
constexpr size_t kSamples = 8;
constexpr double kNoise = 8;
constexpr double kFloor = 16;
// A gradient that is 0 because two terms cancel inside a kernel (queries that see one key) has the
// noise of those terms, which are as large as the gradients around it: roundings of the whole.
// So do the parts of it that tensor ranks add on a narrow wire: an element of a part is taken to be
// as large as the gradients' elements on average.
constexpr double kWholeFloor = 4;
// Where all of it cancels (every query sees one key), keys and values stand between these terms and
// the gradients of adapters, which are the only ones around.
constexpr double kCancelledFloor = 128;
constexpr double kCancelled = 1e-9;  // what is left of such a gradient in fp64, of the whole

// Losses of exact cases: the sum over micro-batches is in fp64, its result rounded to fp32, and
// a pipeline's or a data axis' sum of it once more.
constexpr double kLossRoundings = 4;

// The reported norm beside that of the gradients shown: fp32 sums over shards and axes, a square
// root, the loss scale.
inline double norm_tolerance(int ranks) { return (ranks + 8) * 0x1p-24; }

// The factor follows from the reported norm in fp32: an addition and a division, the norm's own
// rounding, and the constants'.
constexpr double kClipRoundings = 5;

// Scores are rounded to the parameters' dtype when they are handed out, the loss may be of scores
// that were not.
constexpr double kScoreRoundings = 16;

// Means and variances over rows of activations that have their own roundings.
constexpr double kStatisticRoundings = 256;

// [Note: update] AdamW in fp32 rounds at most 16 times on the way from gradient to update, each
// relative to the moment with every term taken positive, twice for the scaling by the clip factor,
// and twice for decay and subtraction relative to the parameter. Squares of gradients below 2^-63
// underflow in the second moment; their root is off by at most 2^-74 for an epsilon far above.
constexpr double kUpdateRoundings = 20;
constexpr double kParameterRoundings = 3;

}  // namespace tessera::testing
