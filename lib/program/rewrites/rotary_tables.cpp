// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/rotary_tables.h"

#include <ATen/ATen.h>

namespace tessera::program {

at::Tensor half_table(const at::Tensor& table, bool paired) {
  const int64_t r = table.size(-1);
  const at::Tensor rows = table.reshape({-1, r});
  const at::Tensor half = paired ? rows.slice(1, 0, r, 2) : rows.narrow(1, 0, r / 2);
  return half.to(table.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}

ops::RotaryTables rotary_tables_of(const at::Tensor& cos, const at::Tensor& sin, bool halved,
                                   bool paired) {
  if (halved) return {cos, sin};
  return {half_table(cos, paired), half_table(sin, paired)};
}

}  // namespace tessera::program
