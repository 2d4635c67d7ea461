// SPDX-License-Identifier: MIT
#pragma once
// Launchers of the CUDA kernels: raw pointers, sizes and a stream. 16-bit data is bf16 or fp16,
// contiguous and 16-byte aligned; row lengths are multiples of 8. No launcher allocates or waits.
// largest, zero before, receives the largest magnitude of what is written; null: not wanted.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "lib/ops/cuda/adamw_table.h"

namespace tessera::ops::cuda {

enum class Type : uint8_t { kFloat, kHalf, kBfloat16 };

// Memory that a kernel zeroes on the side, in pieces of 16 bytes.
struct Cleared {
  void* data = nullptr;
  int64_t pieces = 0;
};

// n <= kMaxNormColumns of lib/ops/norm_groups.h. bias null: RMS norm, which ignores mean.
struct NormForward {
  const void *x, *weight, *bias;
  void* output;
  float *mean, *rstd;  // fp32 [rows]
  int64_t rows;
  int n;
  float epsilon;
  Cleared cleared;
  float* largest = nullptr;
};
void norm_forward(Type type, const NormForward& arguments, cudaStream_t stream);

struct NormBackward {
  const void *gradient, *x, *weight, *bias, *residual;  // residual may be null
  const float *mean, *rstd;
  void *dx, *output;  // output may be null
  // [norm_parts(rows, n), 3 n]: column sums for weight, for bias if any, and of dx if requested
  float* partial;
  bool columns;  // whether to sum dx
  int64_t rows;
  int n;
  Cleared cleared;
  float* largest = nullptr;  // of dx
};
int norm_parts(int64_t rows, int n);
void norm_backward(Type type, const NormBackward& arguments, cudaStream_t stream);

void gelu_forward(Type type, const void* x, void* output, int64_t count, float* largest,
                  cudaStream_t stream);
void gelu_backward(Type type, const void* gradient, const void* x, void* dx, int64_t count,
                   cudaStream_t stream);
// In place on gradient; output may be null; partial [kGeluParts, n]. n: a multiple of 64.
constexpr int kColumnParts = 32, kGeluParts = 48;
void gelu_backward_columns(Type type, void* gradient, const void* x, void* output, float* partial,
                           float* largest, int64_t rows, int n, cudaStream_t stream);
// partial [kColumnParts, n]. n: a multiple of 64.
void column_sums(Type type, const void* x, float* partial, int64_t rows, int n,
                 cudaStream_t stream);

enum class Fp8Format : uint8_t { kE4m3, kE5m2 };
// A matrix [rows, inner], also fp32, of a multiple of 8 elements a stored row. turned: stored
// [inner, rows], inner a multiple of 16.
struct Fp8Cast {
  const void* x;
  int64_t rows, inner;
  bool turned, rowwise;
  const float* largest = nullptr;  // magnitudes: [1], rowwise [rows]
  Fp8Format format = Fp8Format::kE4m3;
  void* codes = nullptr;   // [rows, inner]
  float* scale = nullptr;  // like largest
};
// A matrix [rows, inner], also fp32, inner a multiple of 8, with one scale.
struct Fp8LayoutsCast {
  const void* x;
  int64_t rows, inner;
  const float* largest;
  Fp8Format format;
  void* codes;         // [rows, inner]; null: not wanted
  void* turned;        // [inner, stride], zeros from column `rows` on; null: not wanted
  int64_t stride = 0;  // rows, rounded up to a multiple of 16
  float* scale;        // [1]
};
void fp8_layouts(Type type, const Fp8LayoutsCast& arguments, cudaStream_t stream);
// Codes [rows, inner], inner a multiple of 8.
struct Fp8Turn {
  const void* codes = nullptr;
  int64_t rows, inner;
  void* turned;    // [inner, stride], zeros from column `rows` on
  int64_t stride;  // rows, rounded up to a multiple of 16
};
void fp8_turned(const Fp8Turn& arguments, cudaStream_t stream);
// e4m3 codes to values, numel a multiple of 16.
struct Fp8Decode {
  const void* codes;
  int64_t numel;
  const float* scale;
  void* values;
};
void fp8_decode(Type type, const Fp8Decode& arguments, cudaStream_t stream);
// largest, zeros before, receives the largest magnitudes.
void fp8_largest(Type type, const Fp8Cast& arguments, float* largest, cudaStream_t stream);
void fp8_cast(Type type, const Fp8Cast& arguments, cudaStream_t stream);

// As ops::Dropout: an element is dropped if its 32-bit number is below threshold, else multiplied
// by factor.
struct DropoutDraw {
  uint64_t seed;
  int64_t first;
  uint32_t threshold;
  float factor;
  const int64_t* seed_at;  // device address of the seed; null: use seed
};
// residual may be null. Also for fp32; any alignment and count.
void dropout_add(Type type, const void* x, const void* residual, void* output, int64_t count,
                 const DropoutDraw& draw, cudaStream_t stream);
// output: the gradient after dropout; partial [kColumnParts, n]: its column sums. n: a multiple of
// 64, first: of 8.
void dropout_columns(Type type, const void* gradient, void* output, float* partial, int64_t rows,
                     int n, const DropoutDraw& draw, cudaStream_t stream);

// gate_up [rows, 2 n], output [rows, n]. n: a multiple of 8.
void swiglu_forward(Type type, const void* gate_up, void* output, int64_t rows, int n,
                    float* largest, cudaStream_t stream);
// gate_up_gradient [rows, 2 n]. output [rows, n] may be null or alias gradient.
void swiglu_backward(Type type, const void* gradient, const void* gate_up, void* gate_up_gradient,
                     void* output, int64_t rows, int n, float* largest, cudaStream_t stream);

// gate_up: gates in even columns; vectors: groups of 8 elements of output. See
// lib/ops/clamped_swiglu.h.
void clamped_swiglu(Type type, const void* gate_up, void* output, int64_t vectors,
                    cudaStream_t stream);
void clamped_swiglu_backward(Type type, const void* gradient, const void* gate_up,
                             void* gate_up_gradient, int64_t vectors, cudaStream_t stream);

// Rows of experts, see lib/ops/expert_rows.h. row_count: device address of the number of rows that
// have values; vectors: groups of 8 columns; row_of [tokens, chosen].
void dispatch_rows(const void* x, const int64_t* tokens, const int* row_count, void* rows,
                   int64_t vectors_in_all, int vectors, cudaStream_t stream);
void combine_rows(Type type, const void* rows, const int64_t* row_of, const int* row_count,
                  void* sums, int64_t tokens, int vectors, int chosen, cudaStream_t stream);
struct WeightsOfRows {
  const float* of_slots;
  const int64_t* slots;  // of rows
  const int* row_count;
};
// gate_up [rows, 2 n], output [rows, n]. n: a multiple of 8.
void weighted_swiglu(Type type, const void* gate_up, const WeightsOfRows& weights, void* output,
                     int64_t rows, int n, cudaStream_t stream);
// gradient [rows, n] becomes forward's output. weight_gradient: of slots.
void weighted_swiglu_backward(Type type, void* gradient, const void* gate_up,
                              const WeightsOfRows& weights, void* gate_up_gradient,
                              float* weight_gradient, int64_t rows, int n, cudaStream_t stream);

// In place on x [tokens, heads, d] with token stride token_stride in elements. d: a multiple of 16.
// cos, sin: fp32 [any, d/2]. positions [tokens]; null: t % sequence for token t.
struct Rotation {
  void* x;
  int64_t token_stride, head_stride, tokens, sequence;
  int heads, d;
  const float *cos, *sin;
  const int64_t* positions;
  bool back;
};
void rotary(Type type, const Rotation& arguments, cudaStream_t stream);

// In place on the first `heads` heads of every token, token_stride elements apart. x and rstd save
// what backward reads. d: a multiple of 8.
constexpr int kMaxNormedHead = 256, kHeadNormParts = 264;
struct HeadNorm {
  void* qkv;
  int64_t token_stride, tokens;
  int heads, query_heads, d;
  float epsilon;
  const void *query_weight, *key_weight;  // [d]
  void* x;                                // [tokens, heads, d]
  float* rstd;                            // [tokens, heads]
  // Backward: [kHeadNormParts, 2, d], column sums for the queries' and the keys' weight.
  float* partial;
};
void head_norm(Type type, const HeadNorm& arguments, cudaStream_t stream);
void head_norm_backward(Type type, const HeadNorm& arguments, cudaStream_t stream);

struct ColumnItem {
  const float* partial;
  int64_t stride;
  int parts, n;
  void* gradient;
};
struct ColumnItems {
  static constexpr int kMax = 16;
  ColumnItem items[kMax];
  int count = 0;
};
// gradient[j] += sum over parts of partial[part][j], in order of parts.
void add_column_sums(Type type, const ColumnItems& items, cudaStream_t stream);

// As ops::attention_to_cache. Strides in elements, multiples of 8. d: a multiple of 8 up to
// kMaxCachedHead.
constexpr int kMaxCachedHead = 256;
struct CachedAttention {
  const void *q, *k, *v;
  int64_t q_row, q_head, key_row, key_head;  // strides of q, and of both k and v
  void *keys, *values;                       // [batch, capacity, key_heads, d]
  const int64_t* lengths;
  const float* slopes;  // may be null
  void* output;         // [batch, heads, d]
  int batch, heads, key_heads, d;
  int64_t capacity;
  float scale;
  int64_t window;  // as in ops::SelfAttention
};
void attention_to_cache(Type type, const CachedAttention& arguments, cudaStream_t stream);

// As ops::keep_in_cache, in pieces of 16 bytes: a token's key and value have head_pieces per head.
struct KeptRows {
  const void *k, *v;
  int64_t token, head;     // strides of k and v
  const int32_t* offsets;  // [rows + 1]
  int rows;                // at most `batch` of them are kept
  void *keys, *values;     // [batch, capacity, heads, head_pieces]
  int batch, heads, head_pieces;
  int64_t tokens, capacity;
};
void keep_in_cache(const KeptRows& arguments, cudaStream_t stream);

// Causal attention inside contiguous rows, where attends_by_row() of lib/ops/packed.h holds. qkv
// and dqkv [tokens, (heads + 2 key_heads) d] as in ops::SelfAttention; output, gradient [tokens,
// heads d]. log_sum_exp fp32 [heads, tokens], base 2, of scores with a bias relative to the first
// query of each 64 of a row; backward reads it.
struct RowAttention {
  const void* qkv;
  const int32_t* offsets;  // [rows + 1]; null: all rows have `length` tokens
  int length;
  int rows;
  int64_t tokens;
  int heads, key_heads, d;
  bool by_head;
  float scale;
  const float* slopes;  // [heads], may be null
  void* output = nullptr;
  float* log_sum_exp = nullptr;
  const void* gradient = nullptr;  // backward only
  void* dqkv = nullptr;
};
void row_attention(Type type, const RowAttention& arguments, cudaStream_t stream);
void row_attention_backward(Type type, const RowAttention& arguments, cudaStream_t stream);

struct LogitRows {
  void* logits;
  int64_t stride;  // elements between rows
  const int64_t* labels;
  int64_t rows;
  int vocabulary;
};
// Columns between vocabulary and the next 16-byte multiple may be overwritten. scale may be null.
void cross_entropy(Type type, const LogitRows& rows, const float* scale, float* row_loss,
                   cudaStream_t stream);
// statistics: [2, rows]; of all parts [parts, 2, rows]. Logits stay as they are.
void cross_entropy_statistics(Type type, const LogitRows& rows, float* statistics,
                              cudaStream_t stream);
void cross_entropy_gradient(Type type, const LogitRows& rows, const float* statistics, int parts,
                            const float* scale, float* row_loss, cudaStream_t stream);

// For at most kMostUnsortedRows rows, with ids in any order.
constexpr int kMostUnsortedRows = 4096;
void embedding_backward_unsorted(Type type, const void* gradient, const int64_t* ids,
                                 void* weight_gradient, int rows, int n, cudaStream_t stream);
// sorted_ids ascending; order[i]: the gradient row of sorted_ids[i].
void embedding_backward(Type type, const void* gradient, const int64_t* sorted_ids,
                        const int64_t* order, void* weight_gradient, int64_t rows, int n,
                        cudaStream_t stream);

struct AdamWConstants {
  double beta1, beta2;
  float epsilon;
  bool decoupled;  // weight decay; false: added to the gradient
  const double* step_count;
  const float *learning_rate, *gradient_scale, *skip;  // the last two may be null
};
// A table's entries have either all whole or all split masters, with bf16.
void adamw(Type gradient_type, Type low_type, const AdamWTable& table,
           const AdamWConstants& constants, cudaStream_t stream);
// As adamw(), with moments in bf16, or in codes of lib/ops/moment_map.h.
void adamw_bf16_moments(Type gradient_type, Type low_type, const AdamWMomentsTable& table,
                        const AdamWConstants& constants, cudaStream_t stream);
void adamw_8bit_moments(Type gradient_type, Type low_type, const AdamWMomentsTable& table,
                        const AdamWConstants& constants, cudaStream_t stream);

struct SquareSumTable {
  static constexpr int kMax = 64;
  const void* data[kMax];
  int64_t count_of[kMax];
  int first_chunk[kMax + 1];
  int count = 0;
};
constexpr int kSquareSumChunk = 16384;
constexpr int kSquareSumParts = 528;
// Writes kSquareSumParts partial sums.
void square_sum(Type type, const SquareSumTable& table, double* partial, cudaStream_t stream);
// *result = sum of `count` partial sums in a fixed order.
void add_partials(const double* partial, int count, float* result, cudaStream_t stream);
// As ops::clipping. results [4] in the order of its members.
void clipping(const float* squared_norm, const float* loss_scale, float max_norm, float* results,
              cudaStream_t stream);

}  // namespace tessera::ops::cuda
