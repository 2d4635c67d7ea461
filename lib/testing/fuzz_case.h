// SPDX-License-Identifier: MIT
#pragma once
// One case of the layout fuzzer: everything that decides what is run, as a plain struct that one
// line of text holds, so that a case outlives changes of the generator.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::testing {

struct FuzzCase {
  // The model. "toy", "modules" and "chain" are made of `blocks`, joined by dots: a letter, a
  // width, and f for a frozen block or g for one whose first parameter is frozen.
  //   toy      between an embedding and a head. L MLP with a norm, Q vectors only, P no parameters,
  //            D dropout, T a matrix tied to the L before it, U a parameter nothing uses, V
  //            parameters that about half of the micro-batches use, B a constant buffer, C an MLP
  //            that a tensor axis cuts
  //   modules  children of a torch::nn::Sequential before a linear classifier. L linear, R in-place
  //            leaky ReLU, G GELU, N layer norm, D dropout, W one module that uses a weight twice,
  //            A the last layer with weights once more, S batch norm without weights, B with them
  //   chain    parts of chain() that pass two tensors and see a named one. M matrix, T the M before
  //            it tied, X no parameters
  // Others are families of the caller (FuzzOptions::families).
  std::string model = "toy", blocks = "L6";
  int64_t vocabulary = 11, hidden = 8;
  int64_t layers = 1, heads = 2, key_heads = 1;  // of language models
  int64_t head_dim = 0, window = 0;              // of some of them: see DecoderConfig
  // Of language models: of what residual branches add and of embeddings, and of probabilities.
  double hidden_dropout = 0, attention_dropout = 0;
  // Language models: rank of adapters, 0 for none, and on which layers: the family's own choice,
  // all linear ones, or these with the final norm trained in full.
  int64_t lora = 0;
  std::string lora_on = "default";  // default, all, all+norm
  bool fused = false;               // language models: layers with a hand-scheduled backward
  std::string tie = "none";     // of embedding and head: none, first or last (the owner's place)
  std::string frozen = "none";  // of the ends: none, first, last
  double column_scale = 1;      // toy: of every second column of what the embedding gives
  bool own_weights = false;     // modules: every data rank hands in weights of its own
  bool whole_module = false;    // modules, chain: all of it is one block

  MeshExtents mesh;
  ParallelConfig parallel;

  // The work. skip and evaluate list steps ("02"); evaluation comes before the step, and always at
  // the end.
  int steps = 2, accumulation = 1;
  int calls = 1;  // of forward_backward() a step, over which the micro-batches are dealt out
  int64_t rows = 2, length = 3;
  bool ragged = false;              // micro-batches of all sizes up to rows x length
  bool padded = false;              // language models: rows end in padding that a mask hides
  bool packed = false;              // language models: sequences hold rows of several lengths
  bool supervised_only = false;     // language models: heads are told the supervised positions
  std::string untargeted = "none";  // none, rows, micro_batches, ranks, step
  std::string skip, evaluate;
  double loss_scale = 0;  // 0: none is set
  double max_norm = 0;    // 0: no clipping
  // Parameter groups: every third trained parameter in one and the next in another, with a learning
  // rate, and a decay or betas of their own; moments in fp32 or 8 bits in the second. decay: the
  // rule's name, matrices or all.
  bool groups = false;
  std::string optimizer = "adamw";  // of oracle_optimizers()
  std::string moments = "fp32";     // of adamw and adam: fp32, bf16, int8
  int64_t min_8bit_size = 4096;     // see AdamWConfig
  std::string decay = "matrices";
  double learning_rate = 1e-2, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  uint64_t seed = 1;
  // What must be refused with Error(kInvalidArgument): none, target_count (left at 0),
  // micro_batches (numbers differ), batch (differs inside a tensor or pipeline group), weights
  // (differ between ranks), layout (a parameter's shape differs between ranks).
  std::string refuse = "none";

  // Before this step (not 0) the run stops and another strategy goes on from its state, under the
  // layout `then`, with the micro-batches of all ranks dealt out anew.
  int resume = 0;
  struct Layout {
    MeshExtents mesh;
    ParallelConfig parallel;  // but for the precision, which stays
  } then;

  int ranks() const { return mesh.pipeline * mesh.data * mesh.tensor; }
};

// "key=value ..." of what is not the default; the inverse throws Error(kInvalidArgument) naming
// what it does not know.
std::string to_line(const FuzzCase& fuzz_case);
FuzzCase parse_case(const std::string& line);

// The case as it goes on from `resume`. Throws Error(kInvalidArgument) when its data ranks do not
// divide the micro-batches.
FuzzCase resumed_case(const FuzzCase& fuzz_case);
FuzzCase without_resume(const FuzzCase& fuzz_case);

// Every field with its value as text, for tallies.
std::vector<std::pair<std::string, std::string>> fields_of(const FuzzCase& fuzz_case);

}  // namespace tessera::testing
