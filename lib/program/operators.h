// SPDX-License-Identifier: MIT
#pragma once
// The operators that an exported program may use. Programs come from strangers: what is not listed
// is refused, as are operators that make tensors of memory that others own (as_strided, set_,
// resize_), that skip checks (_unsafe_index, and others of that kind) or that read files.
#include <string_view>

namespace tessera::program {

struct OperatorTraits {
  bool draws = false;       // may draw random numbers; whether it does, its arguments say
  bool sized = false;       // the extents of its output are given as numbers
  bool batch_norm = false;  // writes running statistics, which its schema does not say
  bool maybe_same = false;  // may return its input, which its schema does not say
  bool pieces = false;      // makes a list whose length a number or an extent says
  bool grouped = false;     // a product of groups of rows, whose ends are not checked on a GPU
  bool divides = false;     // may divide integers, which ends the process where it overflows
};

// Null: the program may not use it. target: "aten.add.Tensor".
const OperatorTraits* find_operator(std::string_view target);

// Functions of sizes, which run on the host: "_operator.mul", "math.ceil", "sym_max".
bool is_size_function(std::string_view target);

// Checks that have no effect on numbers, and hold another device or layout to be wrong.
bool is_dropped(std::string_view target);

}  // namespace tessera::program
