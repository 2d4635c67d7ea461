// SPDX-License-Identifier: MIT
// Operators of a program that would reach outside of their tensors, or end the process.
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/program/graph_facts.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/one_node.hpp"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

TEST_CASE("operators that would end the process, or read memory of others, are refused") {
  const std::string one_list = R"([{"as_tensors":[{"name":"y"}]}])";
  const auto list_of = [&](OneNode file) {
    file.outputs = one_list;
    return file;
  };
  const std::string pieces = R"({"name":"chunks","arg":{"as_int":1099511627776}})";
  std::vector<Hostile> files = {
      {"chunk", list_of(on_x("chunk.default", pieces)), "pieces"},
      {"unsafe_chunk", list_of(on_x("unsafe_chunk.default", pieces)), "pieces"},
      {"tensor_split",
       list_of(on_x("tensor_split.sections", R"({"name":"sections","arg":{"as_int":99999999}})")),
       "pieces"},
      {"split",
       list_of(sized("split.Tensor", R"([{"name":"self","arg":{"as_tensor":{"name":"wide"}}},)"
                                     R"({"name":"split_size","arg":{"as_int":1}}])")),
       "pieces"},
      {"unbind",
       list_of(sized("unbind.int", R"([{"name":"self","arg":{"as_tensor":{"name":"wide"}}}])")),
       "pieces"},
      {"a list that is shorter",
       list_of(on_x("chunk.default", R"({"name":"chunks",)"
                                     R"("arg":{"as_int":2}})")),
       "it made 2 tensors"},
      {"a dimension that is not there",
       list_of(on_x("unbind.int", R"({"name":"dim","arg":{"as_int":7}})")), "dimension"},
  };
  const std::string widen =
      R"({"name":"w","target":"torch.ops.aten.arange.default","inputs":[{"name":"end",)"
      R"("arg":{"as_int":70000}}],"outputs":[{"as_tensor":{"name":"wide"}}],"metadata":{}},)";
  for (const Hostile& hostile : files) {
    INFO(hostile.what);
    std::string text = hostile.file.text();
    text.insert(text.find(R"({"name":"n1")"), widen);
    const std::string message = refusal_of_any(text);
    CHECK_THAT(message, contains("bad.json: node n1 (aten."));
    CHECK_THAT(message, contains(hostile.reason));
  }
}

TEST_CASE("the least integer divided by -1 is refused") {
  const auto graph = std::make_shared<Graph>(read_graph(
      Json::parse(OneNode{.target = "torch.ops.aten.div.Tensor_mode",
                          .inputs = R"([{"name":"self","arg":{"as_tensor":{"name":"x"}}},)"
                                    R"({"name":"other","arg":{"as_int":-1}},)"
                                    R"({"name":"rounding_mode","arg":{"as_string":"trunc"}}])"}
                      .text(),
                  {}, "bad.json")));
  const Interpreter interpreter(graph);
  for (const at::ScalarType dtype : {at::kLong, at::kInt, at::kShort, at::kChar}) {
    INFO(dtype);
    const at::Tensor x = at::full({3}, 7, dtype);
    CHECK(at::equal(interpreter.run({x}, at::kCPU)[0], -x));
    x[1] = dtype == at::kLong ? std::numeric_limits<int64_t>::min()
                              : -(int64_t{1} << (8 * x.element_size() - 1));
    const std::string message = require_error(
        ErrorCode::kInvalidArgument, [&] { interpreter.run({x}, at::kCPU); }, "an overflow");
    CHECK_THAT(message, contains("node n1 (aten.div.Tensor_mode): the least integer"));
  }
}

TEST_CASE("groups whose ends leave their tensor are refused") {
  const std::string two = R"([{"as_tensor":{"name":"x"}},{"as_tensor":{"name":"w"}},)"
                          R"({"as_tensor":{"name":"ends"}}])";
  const auto input = [](const std::string& name) {
    return R"({"user_input":{"arg":{"as_tensor":{"name":")" + name + R"("}}}})";
  };
  const auto argument = [](const std::string& name, const std::string& value) {
    return R"({"name":")" + name + R"(","arg":{"as_tensor":{"name":")" + value + R"("}}})";
  };
  for (const auto& [target, names] :
       {std::pair<std::string, std::vector<std::string>>{"torch.ops.aten._grouped_mm.default",
                                                         {"self", "mat2", "offs"}},
        {"torch.ops.transformers.grouped_mm_fallback.default", {"input", "weight", "offs"}}}) {
    const std::string text =
        OneNode{.target = target,
                .inputs = "[" + argument(names[0], "x") + "," + argument(names[1], "w") + "," +
                          argument(names[2], "ends") + "]",
                .spec = input("x") + "," + input("w") + "," + input("ends"),
                .values = "{}",
                .graph_inputs = two}
            .text();
    const Interpreter interpreter(
        std::make_shared<Graph>(read_graph(Json::parse(text, {}, "bad.json"))));
    const at::Tensor x = at::ones({4, 8}), w = at::ones({3, 8, 8});
    const auto product = [&](const std::vector<int>& ends) {
      return interpreter.run({x, w, at::tensor(ends, at::kInt)}, at::kCPU)[0];
    };
    CHECK(at::equal(product({2, 2, 4}), at::full({4, 8}, 8.0)));
    for (const std::vector<int>& ends : std::vector<std::vector<int>>{
             {2, 3, 5}, {2, 3, 1 << 30}, {-1, 3, 4}, {3, 2, 4}, {0, 0, -100}, {5, 5, 5}}) {
      INFO(target << " " << at::tensor(ends, at::kInt));
      const std::string message = require_error(
          ErrorCode::kInvalidArgument, [&] { product(ends); }, "groups outside of the rows");
      CHECK_THAT(message, contains("bad.json: node n1"));
    }
  }
}

TEST_CASE("indices that leave their table are refused with node and operator") {
  const std::string x = R"({"name":"self","arg":{"as_tensor":{"name":"x"}}})";
  const std::string dim = R"({"name":"dim","arg":{"as_int":0}})";
  const std::string index = R"({"name":"index","arg":{"as_tensor":{"name":"i"}}})";
  const auto input = [](const std::string& name) {
    return R"({"user_input":{"arg":{"as_tensor":{"name":")" + name + R"("}}}})";
  };
  struct Indexing {
    std::string target, inputs;
  };
  for (const Indexing& operation : std::vector<Indexing>{
           {"index_select.default", x + "," + dim + "," + index},
           {"gather.default", x + "," + dim + "," + index},
           {"take.default", x + "," + index},
           {"index.Tensor", x + R"(,{"name":"indices","arg":{"as_tensors":[{"name":"i"}]}})"},
           {"embedding.default", R"({"name":"weight","arg":{"as_tensor":{"name":"x"}}},)"
                                 R"({"name":"indices","arg":{"as_tensor":{"name":"i"}}})"},
           {"scatter.value",
            x + "," + dim + "," + index + R"(,{"name":"value","arg":{"as_int":1}})"},
           {"index_add.default", x + "," + dim + "," + index +
                                     R"(,{"name":"source","arg":{"as_tensor":{"name":"x"}}})"}}) {
    const std::string text =
        OneNode{.target = "torch.ops.aten." + operation.target,
                .inputs = "[" + operation.inputs + "]",
                .spec = input("x") + "," + input("i"),
                .values = "{}",
                .graph_inputs = R"([{"as_tensor":{"name":"x"}},{"as_tensor":{"name":"i"}}])"}
            .text();
    const Interpreter interpreter(
        std::make_shared<Graph>(read_graph(Json::parse(text, {}, "bad.json"))));
    const at::Tensor table = at::ones({2, 3});
    for (const int64_t wrong : {int64_t{1} << 40, -(int64_t{1} << 40), int64_t{6}, int64_t{-7}}) {
      INFO(operation.target << " " << wrong);
      at::Tensor i = at::full({2}, wrong, at::kLong);
      if (operation.target == "gather.default" || operation.target == "scatter.value") {
        i = i.view({1, 2});
      }
      const std::string message = require_error(
          ErrorCode::kInvalidArgument,
          [&] {
            interpreter.run({table, i}, at::kCPU);
          },
          "an index");
      CHECK_THAT(message, contains("bad.json: node n1 (aten." + operation.target));
    }
  }
}

TEST_CASE("a weight that unsafe_chunk() gives in parts is not written to") {
  const std::string text =
      OneNode{.target = "torch.ops.aten.unsafe_chunk.default",
              .inputs = R"([{"name":"self","arg":{"as_tensor":{"name":"x"}}},)"
                        R"({"name":"chunks","arg":{"as_int":1}}])",
              .outputs = R"([{"as_tensors":[{"name":"c"}]}])",
              .more = R"(,{"name":"n2","target":"torch.ops.aten.relu_.default","inputs":[{"name":)"
                      R"("self","arg":{"as_tensor":{"name":"c"}}}],"outputs":[{"as_tensor":)"
                      R"({"name":"y"}}],"metadata":{}})",
              .spec = R"({"parameter":{"arg":{"name":"x"},"parameter_name":"w"}})"}
          .text();
  const Graph graph = read_graph(Json::parse(text, {}, "bad.json"));
  const std::string message = require_error(
      ErrorCode::kDataLoss, [&] { const GraphFacts facts(graph); }, "a write to a weight");
  CHECK_THAT(message, contains("node n2 (aten.relu_.default): writes to the parameter"));
}
