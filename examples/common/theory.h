#pragma once
// What a strategy should hold and send per rank: the formulas of docs/strategies.md.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::programs {

struct TheoryInput {
  std::string strategy;
  int64_t ranks = 1, accumulation = 1;
  // Elements of every parameter, block by block; tied ones once, at their owner.
  std::vector<std::vector<int64_t>> block_parameters;
  std::string parameter_dtype = "fp32", gradient_dtype = "fp32", reduce_dtype = "fp32";
  int64_t persistence_threshold = 100'000;
  bool reduce_at_boundary = false;
};

struct Theory {
  double parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  double comm_bytes_per_step = 0;  // sent by one rank in the ring model
};

// P parameters of p bytes, gradients of g bytes, reduced in r bytes, N ranks, A micro-batches a
// step:
//   single, ddp   parameters pP     gradients gP     optimizer sP      sent 2rP (N-1)/N (ddp) zero1
//   pP                gP               sP/N              (rP + pP) (N-1)/N zero2         pP gP/N
//   sP/N              (A rP + pP) (N-1)/N, A = 1 with reduce_at_boundary zero3         p (S +
//   (P-S)/N)   gP/N             sP/N              (A rP + pG + pS) (N-1)/N
// S: parameters of tensors below the persistence threshold, kept in full. G: parameters gathered in
// the 2A passes of a step. Blocks of one size share two buffers, so a pass finds the last two of
// the pass before still gathered: k > 2 blocks of b parameters add b (k + (2A-1)(k-2)), fewer add b
// each. s: 8 bytes of moments, in 16-bit training 12 with the fp32 master weights.
Theory theory_of(const TheoryInput& input);

}  // namespace tessera::programs
