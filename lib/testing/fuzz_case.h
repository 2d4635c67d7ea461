// SPDX-License-Identifier: MIT
#pragma once
// A case of the layout fuzzer: a plain struct with everything that determines a run, written as one
// line of text. So a case survives changes of the generator.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::testing {

struct FuzzCase {
  // The model. "toy", "modules" and "chain" consist of `blocks`, joined by dots: a letter, a width,
  // and f for a frozen block or g for one whose first parameter is frozen.
  //   toy      between an embedding and a head. L MLP with a norm, Q vectors only, P no parameters,
  //            D dropout, T a matrix tied to the L before it, U an unused parameter, V parameters
  //            that about half of the micro-batches use, B a constant buffer, C an MLP sharded over
  //            the tensor axis
  //   modules  children of a torch::nn::Sequential before a linear classifier. L linear, R in-place
  //            leaky ReLU, G GELU, N layer norm, D dropout, W one module that uses a weight twice,
  //            A the last layer with weights once more, S batch norm without weights, B with them
  //   chain    parts of chain() that pass two tensors and see a named one. M matrix, T tied to the
  //            M before it, X no parameters
  // Others are families of the caller (FuzzOptions::families).
  std::string model = "toy", blocks = "L6";
  int64_t vocabulary = 11, hidden = 8;
  int64_t layers = 1, heads = 2, key_heads = 1;  // of language models
  int64_t head_dim = 0, window = 0;              // of some language models: see DecoderConfig
  // Language models: dropout of residual branches and embeddings, and of attention probabilities.
  double hidden_dropout = 0, attention_dropout = 0;
  // Language models and programs: LoRA rank (0: no adapters), and targets: the family's default,
  // all linear layers, all with the final norm trained in full, or tensors of all experts: both
  // beside all linear layers, or down_proj alone.
  int64_t lora = 0;
  std::string lora_on = "default";  // default, all, all+norm, tensors, down
  // With experts: factors of the routers' balance loss and z-loss.
  double balance_loss = 0, z_loss = 0;
  bool fused = false;        // language models: layers with a hand-scheduled backward
  std::string tie = "none";  // tied embedding and head: none, first or last (position of the owner)
  std::string frozen = "none";  // frozen ends: none, first, last
  double column_scale = 1;      // toy: scale of every second column of the embedding's output
  bool own_weights = false;     // modules: every data rank passes its own weights
  bool whole_module = false;    // modules, chain: the whole model is one block

  MeshExtents mesh;
  ParallelConfig parallel;

  // The work. skip and evaluate list steps ("02"). Evaluation precedes the step, and always follows
  // the last one.
  int steps = 2, accumulation = 1;
  int calls = 1;  // forward_backward() calls per step, which share its micro-batches
  int64_t rows = 2, length = 3;
  bool ragged = false;              // micro-batches of all sizes up to rows x length
  bool padded = false;              // language models: rows end in masked padding
  bool packed = false;              // language models: sequences hold rows of several lengths
  bool supervised_only = false;     // language models: heads get the supervised positions
  std::string untargeted = "none";  // none, rows, micro_batches, ranks, step
  std::string skip, evaluate;
  double loss_scale = 0;  // 0: not set
  double max_norm = 0;    // 0: no clipping
  // Parameter groups: every third trained parameter in one, the next in another. Each has its own
  // learning rate, and decay or betas; the second has moments in fp32 or 8 bits. decay: the rule's
  // name, matrices or all.
  bool groups = false;
  std::string optimizer = "adamw";  // of oracle_optimizers()
  std::string moments = "fp32";     // of adamw and adam: fp32, bf16, int8
  int64_t min_8bit_size = 4096;     // see AdamWConfig
  std::string decay = "matrices";
  double learning_rate = 1e-2, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  uint64_t seed = 1;
  // Input that must be rejected with Error(kInvalidArgument): none, target_count (left at 0),
  // micro_batches (numbers differ), batch (differs inside a tensor or pipeline group), weights
  // (differ between ranks), layout (a parameter's shape differs between ranks).
  std::string refuse = "none";

  // Before this step (0: never) the run stops. Another strategy resumes from its state in the
  // layout `then`, with the micro-batches of all ranks redistributed.
  int resume = 0;
  struct Layout {
    MeshExtents mesh;
    ParallelConfig parallel;  // except the precision, which stays
  } then;

  int ranks() const { return mesh.ranks(); }
};

// "key=value ..." for non-default fields. The inverse throws Error(kInvalidArgument) with the
// unknown name.
std::string to_line(const FuzzCase& fuzz_case);
FuzzCase parse_case(const std::string& line);

// The case from `resume` on. Throws Error(kInvalidArgument) when its data ranks do not divide the
// micro-batches.
FuzzCase resumed_case(const FuzzCase& fuzz_case);
FuzzCase without_resume(const FuzzCase& fuzz_case);

// All fields with their values as text, for counting.
std::vector<std::pair<std::string, std::string>> fields_of(const FuzzCase& fuzz_case);

}  // namespace tessera::testing
