// SPDX-License-Identifier: MIT
#include "lib/program/token_operators.h"

namespace tessera::program {

const std::set<std::string>& elementwise_operators() {
  static const std::set<std::string> names = {"aten.to.dtype",
                                              "aten.to.dtype_layout",
                                              "aten.to.device",
                                              "aten.clone.default",
                                              "aten.neg.default",
                                              "aten.rsqrt.default",
                                              "aten.sqrt.default",
                                              "aten.tanh.default",
                                              "aten.sigmoid.default",
                                              "aten.silu.default",
                                              "aten.gelu.default",
                                              "aten.relu.default",
                                              "aten.exp.default",
                                              "aten.abs.default",
                                              "aten.reciprocal.default",
                                              "aten.square.default",
                                              "aten.pow.Tensor_Scalar",
                                              "aten.contiguous.default",
                                              "aten.clamp.default",
                                              "aten.dropout.default",
                                              "aten.detach.default",
                                              "tessera.gelu_tanh",
                                              "tessera.gelu"};
  return names;
}

const std::set<std::string>& broadcasting_operators() {
  static const std::set<std::string> names = {
      "aten.add.Tensor",      "aten.sub.Tensor",      "aten.mul.Tensor", "aten.div.Tensor",
      "aten.add.Scalar",      "aten.sub.Scalar",      "aten.mul.Scalar", "aten.div.Scalar",
      "aten.maximum.default", "aten.minimum.default", "tessera.swiglu"};
  return names;
}

const std::set<std::string>& reducing_operators() {
  static const std::set<std::string> names = {
      "aten.mean.dim",    "aten.sum.dim_IntList",           "aten.amax.default",
      "aten.softmax.int", "aten.log_softmax.int",           "aten.topk.default",
      "aten.var.dim",     "aten.linalg_vector_norm.default"};
  return names;
}

const std::set<std::string>& last_dimension_operators() {
  static const std::set<std::string> names = {"aten.linear.default", "tessera.linear",
                                              "tessera.rms_norm", "tessera.layer_norm"};
  return names;
}

}  // namespace tessera::program
