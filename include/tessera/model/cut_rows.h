// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Rows that the ranks of a context axis share: what a block needs to know of the other ranks'
/// tokens.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/core/micro_batch.h"

namespace tessera {

class Communicator;

/// Attention to rows on a context axis. kHeads: every rank gets whole rows of its share of the
/// heads, exchanged by all_to_all (Jacobs et al. 2023). kKeys: every rank gets the keys and values
/// of whole rows by all_gather. kAuto: kHeads where the key heads divide among the ranks, but kKeys
/// where a GPU's kernels form no scores and less is sent: ranks * key heads < heads + key heads.
enum class ContextAttention { kAuto, kHeads, kKeys };

/// A rank's part of a micro-batch's rows. Rows are padded to 2 N equal pieces on N ranks; rank r
/// has pieces r and 2 N - 1 - r, so that causal attention is equal work on all ranks. The
/// MicroBatch of a block holds these tokens alone: input_ids and labels [batch, own tokens],
/// without packed and attention_mask; a target keeps its label from before the cut. head_positions
/// are indices into these tokens, all their targets among them. Labels of rows stay [batch]; those
/// of packed rows are ignored where another rank has the row's pooled token.
struct CutRows {
  Communicator* ranks = nullptr;  ///< the context axis, of more than one rank
  ContextAttention attention = ContextAttention::kAuto;
  int64_t sequence = 0;  ///< tokens of a whole row with its padding: own tokens times ranks
  at::Tensor columns;    ///< int64 [own tokens]: their columns in the whole rows
  at::Tensor positions;  ///< int64 [batch, own tokens]: index in the row, or in the packed row
  int64_t position_count = 0;  ///< upper bound of positions, exclusive
  PackedRows packed;           ///< packing of the whole rows; undefined: every sequence is one row
  at::Tensor attention_mask;   ///< bool [batch, sequence], of the whole rows; undefined: none
  int64_t given = 0;           ///< tokens of a whole row without that padding
  int64_t tokens = 0;          ///< tokens of all whole rows, of which the last may be shorter
};

}  // namespace tessera
