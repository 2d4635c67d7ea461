// SPDX-License-Identifier: MIT
#include "lib/program/token_proof.h"

#include <string>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "tests/support/test.hpp"

namespace tessera::program {
namespace {

using Shape = std::vector<Extent>;

const Extent kBatch{.expression = "s0"}, kSequence{.expression = "s1"},
    kTokens{.expression = "s0*s1"};
Extent number(int64_t n) { return {.number = n}; }

// Operators one behind the other, from hidden numbers [batch, sequence, 8].
class Chain {
 public:
  Chain() {
    graph_.inputs.push_back({InputKind::kHidden, "hidden", add({kBatch, kSequence, number(8)})});
  }

  Chain& call(const std::string& target, const Shape& result,
              std::vector<NamedArgument> arguments = {}) {
    arguments.insert(arguments.begin(), {"self", reference(last_)});
    Node node{.name = target, .target = target, .arguments = std::move(arguments)};
    node.outputs = {{{add(result)}}};
    graph_.nodes.push_back(std::move(node));
    return *this;
  }
  Chain& view(const Shape& result) { return call("aten.view.default", result); }
  Chain& sum(int64_t dim, const Shape& result) {
    return call("aten.sum.dim_IntList", result, {{"dim", std::vector<Item>{dim}}});
  }

  std::string why_not() {
    graph_.outputs = {last_};
    return why_not_packed(graph_);
  }

 private:
  ValueId add(const Shape& sizes) {
    last_ = static_cast<ValueId>(graph_.values.size());
    graph_.values.push_back({.name = concat("v", last_), .sizes = sizes});
    return last_;
  }

  Graph graph_;
  ValueId last_ = kNoValue;
};

const Shape kHidden{kBatch, kSequence, number(8)}, kRows{kTokens, number(8)};

}  // namespace

TEST_CASE("tokens stay apart where batch and sequence are joined and split again") {
  CHECK(Chain().view(kRows).view(kHidden).why_not() == "");
  CHECK(Chain()
            .view({kBatch, kSequence, number(2), number(4)})
            .view({kTokens, number(2), number(4)})
            .view(kRows)
            .view(kHidden)
            .why_not() == "");
  CHECK(Chain().view(kRows).call("aten.silu.default", kRows).view(kHidden).why_not() == "");
  CHECK(Chain().view(kRows).sum(1, {kTokens}).view({kBatch, kSequence}).why_not() == "");
}

TEST_CASE("tokens may meet where joined dimensions are split or reduced otherwise") {
  const Shape wide{Extent{.expression = "s0*s1//2"}, number(16)};
  CHECK(Chain().view(wide).view(kHidden).why_not() == "aten.view.default (aten.view.default)");
  const Shape turned{kSequence, kBatch, number(8)};
  CHECK(Chain().view(kRows).view(turned).why_not() == "aten.view.default (aten.view.default)");
  CHECK(Chain().view(kRows).view(wide).why_not() == "aten.view.default (aten.view.default)");
  CHECK(Chain().view(kRows).sum(0, {number(8)}).why_not() ==
        "aten.sum.dim_IntList (aten.sum.dim_IntList)");
  CHECK(Chain()
            .view(kRows)
            .call("aten.transpose.int", {number(8), kTokens},
                  {{"dim0", Item(int64_t{0})}, {"dim1", Item(int64_t{1})}})
            .why_not() == "aten.transpose.int (aten.transpose.int)");
  // The next piece would read them as [batch, sequence].
  CHECK(Chain().view(kRows).why_not() == "its result v1");
}

}  // namespace tessera::program
