// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/program/rewrites/rewrite.h"
#include "tessera/ops/functional.h"

namespace tessera::program {
namespace {

// ids, weight, the row without a gradient or -1.
at::Tensor run_embedding(const std::vector<c10::IValue>& arguments, const RunContext&) {
  const at::Tensor& ids = arguments[0].toTensor();
  const at::Tensor found = ops::embedding(ids, arguments[1].toTensor());
  const int64_t padding = arguments[2].toInt();
  if (padding < 0) return found;
  return at::where(ids.ne(padding).unsqueeze(-1), found, found.detach());
}

std::optional<Proposal> propose_embedding(const ProgramView& view, size_t anchor) {
  const Node& node = view.graph().nodes[anchor];
  if (node.target != "aten.embedding.default") return std::nullopt;
  const ValueId weight = value_of(node, "weight"), ids = value_of(node, "indices");
  if (!view.is_parameter(weight)) return Proposal{.reason = "its table is no parameter"};
  const bool plain = ids != kNoValue && view.value(ids).dtype == at::kLong &&
                     !flag_of(node, "scale_grad_by_freq") && !flag_of(node, "sparse");
  if (!plain) return Proposal{.reason = "its gradient has another form"};
  const auto padding = static_cast<int64_t>(number_of(node, "padding_idx").value_or(-1));
  return Proposal{
      .candidates = {
          {result_of(node),
           {{"ids", reference(ids)}, {"weight", reference(weight)}, {"padding", Item(padding)}},
           {.any_extent = true}}}};
}

}  // namespace

Rewrite embedding_rewrite() {
  return {"embedding", {"tessera.embedding", run_embedding}, propose_embedding};
}

}  // namespace tessera::program
