// SPDX-License-Identifier: MIT
#pragma once
// Ownership of autograd nodes: LibTorch uses std::shared_ptr up to 2.11 and c10::intrusive_ptr in
// 2.15.
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace tessera {

using NodePointer = std::decay_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

template <typename N, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    // deleteNode() is Torch's own, found by its argument: frees a long graph without recursion.
    return std::shared_ptr<N>(new N(std::forward<Arguments>(arguments)...),
                              [](N* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace tessera
