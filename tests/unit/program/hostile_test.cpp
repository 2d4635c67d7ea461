// SPDX-License-Identifier: MIT
// Programs that are broken, or made to do harm, are refused with file, node and operator.
#include <functional>
#include <string>
#include <vector>

#include "lib/program/graph_reader.h"
#include "lib/program/interpreter.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

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

std::string refusal(const std::string& text) {
  return require_error(
      ErrorCode::kDataLoss,
      [&] {
        const auto graph = std::make_shared<Graph>(read_graph(Json::parse(text, {}, "bad.json")));
        Interpreter(graph).run({at::ones({2, 3})}, at::kCPU);
      },
      text);
}

OneNode sized(const std::string& target, const std::string& inputs) {
  return {.target = "torch.ops.aten." + target, .inputs = inputs};
}

struct Hostile {
  const char* what;
  OneNode file;
  const char* reason;
};

std::vector<Hostile> operators_refused() {
  std::vector<Hostile> files;
  for (const char* target :
       {"torch.ops.aten.as_strided.default", "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.resize_.default", "torch.ops.aten._unsafe_index.Tensor",
        "torch.ops.aten._resize_output_.default", "torch.ops.aten.from_file.default",
        "torch.ops.aten._local_scalar_dense.default", "torch.ops.prims.device_put.default",
        "torch.ops.aten.empty_strided.default", "torch.ops.aten._reshape_alias.default",
        "torch.ops.higher_order.cond", "torch.ops.higher_order.flex_attention",
        "torch.ops.transformers.grouped_mm_fallback", "os.system", "_operator.getitem",
        "builtins.eval", "torch.ops.aten.relu", "", "torch.ops.aten.add"}) {
    files.push_back({target, {.target = target}, "is not supported"});
  }
  return files;
}

std::vector<Hostile> sizes_refused() {
  const std::string big = R"({"name":"size","arg":{"as_ints":[4611686018427387904,4]},"kind":1})";
  return {
      {"zeros", sized("zeros.default", "[" + big + "]"), "elements"},
      {"full", sized("full.default", "[" + big + R"(,{"name":"fill_value","arg":{"as_int":1}}])"),
       "elements"},
      {"a negative extent",
       sized("ones.default", R"([{"name":"size","arg":{"as_ints":[-5,-7]},"kind":1}])"), "extent"},
      {"arange",
       sized("arange.default", R"([{"name":"end","arg":{"as_int":9223372036854775807}}])"),
       "elements"},
      {"arange by tiny steps",
       sized("arange.start_step",
             R"([{"name":"start","arg":{"as_float":0.0}},{"name":"end",)"
             R"("arg":{"as_float":1.0}},{"name":"step","arg":{"as_float":1e-300}}])"),
       "elements"},
      {"eye", sized("eye.default", R"([{"name":"n","arg":{"as_int":1099511627776}}])"), "elements"},
      {"repeat",
       sized("repeat.default", R"([{"name":"self","arg":{"as_tensor":{"name":"x"}}},)"
                               R"({"name":"repeats","arg":{"as_ints":[1073741824,1073741824]}}])"),
       "elements"},
      {"pad",
       sized("constant_pad_nd.default", R"([{"name":"self","arg":{"as_tensor":{"name":"x"}}},)"
                                        R"({"name":"pad","arg":{"as_ints":[0,68719476736]}}])"),
       "elements"},
  };
}

std::vector<Hostile> forms_refused() {
  const std::string x = R"({"name":"self","arg":{"as_tensor":{"name":"x"}}})";
  return {
      {"a value before it is made",
       {.inputs = R"([{"name":"self","arg":{"as_tensor":{"name":"y"}}}])"},
       "before it is made"},
      {"a value made twice", {.outputs = R"([{"as_tensor":{"name":"x"}}])"}, "made twice"},
      {"an argument that is missing", {.inputs = "[]"}, "is missing"},
      {"an argument that is unknown",
       {.inputs = "[" + x + R"(,{"name":"other","arg":{"as_int":1}}])"},
       "unknown or given twice"},
      {"an argument given twice", {.inputs = "[" + x + "," + x + "]"}, "unknown or given twice"},
      {"a string for a tensor", {.inputs = R"([{"name":"self","arg":{"as_string":"x"}}])"}, "not"},
      {"an object",
       {.inputs = R"([{"name":"self","arg":{"as_custom_obj":{"name":"x"}}}])"},
       "as_custom_obj"},
      {"two kinds at once",
       {.inputs = R"([{"name":"self","arg":{"as_int":1,"as_none":true}}])"},
       "one kind of value"},
      {"a list for a result", {.outputs = R"([{"as_tensors":[{"name":"y"}]}])"}, "no list"},
      {"more results than the operator has",
       {.outputs = R"([{"as_tensor":{"name":"y"}},{"as_tensor":{"name":"z"}}])"},
       "results"},
      {"a number for a result",
       {.outputs = R"([{"as_sym_int":{"as_name":"y"}}])",
        .result = R"({"as_tensor":{"name":"x"}})"},
       "tensor"},
  };
}

}  // namespace

TEST_CASE("operators that are not known to be safe are refused by name") {
  for (const Hostile& hostile : operators_refused()) {
    INFO(hostile.what);
    const std::string message = refusal(hostile.file.text());
    CHECK_THAT(message, contains("bad.json"));
    CHECK_THAT(message, contains("node n1"));
    CHECK_THAT(message, contains(hostile.reason));
    CHECK_THAT(message, contains(hostile.what));
  }
}

TEST_CASE("factories of more elements than any model has are refused") {
  for (const Hostile& hostile : sizes_refused()) {
    INFO(hostile.what);
    const std::string message = refusal(hostile.file.text());
    CHECK_THAT(message, contains("bad.json: node n1 (aten."));
    CHECK_THAT(message, contains(hostile.reason));
  }
}

TEST_CASE("nodes that do not fit are refused with file, node and operator") {
  for (const Hostile& hostile : forms_refused()) {
    INFO(hostile.what);
    const std::string message = refusal(hostile.file.text());
    CHECK_THAT(message, contains("bad.json"));
    CHECK_THAT(message, contains("n1"));
    CHECK_THAT(message, contains("aten.relu.default"));
    CHECK_THAT(message, contains(hostile.reason));
  }
}

TEST_CASE("files of another format are refused") {
  CHECK_THAT(refusal(OneNode{.schema = R"({"major":9,"minor":0})"}.text()), contains("version"));
  CHECK_THAT(refusal(OneNode{.opset = R"({"aten":11})"}.text()), contains("version 11"));
  CHECK_THAT(refusal(OneNode{.opset = R"({"aten":10,"mine":1})"}.text()), contains("mine"));
  CHECK_THAT(refusal(OneNode{.opset = "{}"}.text()), contains("aten"));
  CHECK_THAT(refusal(OneNode{.spec = R"({"token":{"arg":{"name":"x"}}})"}.text()),
             contains("token"));
  CHECK_THAT(refusal(OneNode{.spec = ""}.text()), contains("describes 0 inputs"));
  CHECK_THAT(refusal(OneNode{.result_spec =
                                 R"({"buffer_mutation":{"arg":{"name":"y"},"buffer_name":"b"}})"}
                         .text()),
             contains("buffer_mutation"));
  CHECK_THAT(refusal(OneNode{.result = R"({"as_int":1})"}.text()), contains("expected a value"));
  CHECK_THAT(refusal("[]"), contains("bad.json"));
  const std::string cut = OneNode{}.text();
  CHECK_THAT(refusal(cut.substr(0, cut.size() / 2)), contains("bad.json"));
}
