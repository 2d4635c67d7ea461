// SPDX-License-Identifier: MIT
#pragma once
// Programs of one node, as files that break something.
#include <memory>
#include <string>

#include "lib/program/graph_reader.h"
#include "lib/program/interpreter.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera::test {

using program::Graph;
using program::Interpreter;
using program::read_graph;

// A program of one node: target(inputs) -> outputs.
struct OneNode {
  std::string target = "torch.ops.aten.relu.default";
  std::string inputs = R"([{"name":"self","arg":{"as_tensor":{"name":"x"}},"kind":1}])";
  std::string outputs = R"([{"as_tensor":{"name":"y"}}])";
  std::string result = R"({"as_tensor":{"name":"y"}})";
  std::string more = "";  // nodes behind it
  std::string spec = R"({"user_input":{"arg":{"as_tensor":{"name":"x"}}}})";
  std::string schema = R"({"major":8,"minor":17})", opset = R"({"aten":10})";
  std::string values = R"({"x":{"dtype":7,"sizes":[{"as_int":2},{"as_int":3}]}})";
  std::string graph_inputs = R"([{"as_tensor":{"name":"x"}}])";
  std::string result_spec = R"({"user_output":{"arg":{"as_tensor":{"name":"y"}}}})";

  std::string text() const {
    return R"({"schema_version":)" + schema + R"(,"opset_version":)" + opset +
           R"(,"graph_module":{"graph":{"inputs":)" + graph_inputs + R"(,"outputs":[)" + result +
           R"(],"nodes":[{"name":"n1","target":")" + target + R"(","inputs":)" + inputs +
           R"(,"outputs":)" + outputs + R"(,"metadata":{}})" + more + R"(],"tensor_values":)" +
           values + R"(,"sym_int_values":{}},"signature":{"input_specs":[)" + spec +
           R"(],"output_specs":[)" + result_spec + R"(]}}})";
  }
};

inline std::string refusal(const std::string& text) {
  return require_error(
      ErrorCode::kDataLoss,
      [&] {
        const auto graph = std::make_shared<Graph>(read_graph(Json::parse(text, {}, "bad.json")));
        Interpreter(graph).run({at::ones({2, 3})}, at::kCPU);
      },
      text);
}

inline std::string refusal_of_any(const std::string& text) {
  try {
    const auto graph = std::make_shared<Graph>(read_graph(Json::parse(text, {}, "bad.json")));
    Interpreter(graph).run({at::ones({2, 3})}, at::kCPU);
  } catch (const Error& error) {
    return error.what();
  }
  FAIL("nothing was refused: " << text);
  return "";
}

inline OneNode sized(const std::string& target, const std::string& inputs) {
  return {.target = "torch.ops.aten." + target, .inputs = inputs};
}

struct Hostile {
  const char* what;
  OneNode file;
  const char* reason;
};

// An operator of the tensor x [2, 3] and one more argument.
inline OneNode on_x(const std::string& target, const std::string& argument) {
  return sized(target, R"([{"name":"self","arg":{"as_tensor":{"name":"x"}}},)" + argument + "]");
}

}  // namespace tessera::test
