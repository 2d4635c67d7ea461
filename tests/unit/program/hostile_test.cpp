// SPDX-License-Identifier: MIT
// Programs that are broken, or made to do harm, are refused with file, node and operator.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/program/graph_facts.h"
#include "lib/program/graph_reader.h"
#include "lib/program/interpreter.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/one_node.hpp"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

std::vector<Hostile> operators_refused() {
  std::vector<Hostile> files;
  for (const char* target : {"torch.ops.aten.as_strided.default",
                             "torch.ops.aten.set_.source_Storage",
                             "torch.ops.aten.resize_.default",
                             "torch.ops.aten._unsafe_index.Tensor",
                             "torch.ops.aten._resize_output_.default",
                             "torch.ops.aten.from_file.default",
                             "torch.ops.aten._local_scalar_dense.default",
                             "torch.ops.prims.device_put.default",
                             "torch.ops.aten.empty_strided.default",
                             "torch.ops.aten._reshape_alias.default",
                             "torch.ops.higher_order.cond",
                             "torch.ops.higher_order.flex_attention",
                             "torch.ops.transformers.grouped_mm_fallback",
                             "os.system",
                             "_operator.getitem",
                             "builtins.eval",
                             "torch.ops.aten.relu",
                             "",
                             "torch.ops.aten.add",
                             "torch.ops.aten.add.Nonsense",
                             "torch.ops.aten.relu.default.default",
                             "torch.ops.mylib.relu.default",
                             "torch.ops.aten.native_group_norm.default"}) {
    files.push_back({target, {.target = target}, "is not supported"});
  }
  return files;
}

// zeros([rows * factor]), where rows is the extent of x.
OneNode by_symbols(const std::string& factor) {
  const auto symbol = [](const std::string& name) {
    return R"({"as_sym_int":{"as_name":")" + name + R"("}})";
  };
  OneNode file = on_x("sym_size.int", R"({"name":"dim","arg":{"as_int":0}})");
  file.outputs = "[" + symbol("rows") + "]";
  file.more = R"(,{"name":"m","target":"_operator.mul","inputs":[{"name":"","arg":)" +
              symbol("rows") + R"(},{"name":"","arg":{"as_int":)" + factor + R"(}}],"outputs":[)" +
              symbol("n") +
              R"(],"metadata":{}},)"
              R"({"name":"n1","target":"torch.ops.aten.zeros.default","inputs":[{"name":"size",)"
              R"("arg":{"as_sym_ints":[{"as_name":"n"}]}}],"outputs":[{"as_tensor":{"name":"y"}}],)"
              R"("metadata":{}})";
  return file;
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
      {"expand", on_x("expand.default", R"({"name":"size","arg":{"as_ints":[1099511627776,2,3]}})"),
       "elements"},
      {"classes that the values decide",
       on_x("one_hot.default", R"({"name":"num_classes","arg":{"as_int":-1}})"), "classes"},
      {"extents of the inputs", by_symbols("17179869184"), "elements"},
  };
}

std::string many_extents() {
  std::string extents = R"({"as_int":1})";
  for (int i = 0; i < 16; ++i) extents += R"(,{"as_int":1})";
  return extents;
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
      {"values that wait for each other",
       {.inputs = R"([{"name":"self","arg":{"as_tensor":{"name":"z"}}}])",
        .more = R"(,{"name":"n2","target":"torch.ops.aten.relu.default","inputs":[{"name":"self",)"
                R"("arg":{"as_tensor":{"name":"y"}}}],"outputs":[{"as_tensor":{"name":"z"}}]})"},
       "before it is made"},
      {"a value without a name", {.outputs = R"([{"as_tensor":{"name":""}}])"}, "without a name"},
      {"a negative extent of a result",
       {.values = R"({"x":{"dtype":7,"sizes":[]},"y":{"dtype":7,"sizes":[{"as_int":-1}]}})"},
       "-1"},
      {"a dtype that nobody knows",
       {.values = R"({"x":{"dtype":7,"sizes":[]},"y":{"dtype":99,"sizes":[]}})"},
       "dtype"},
      {"more dimensions than tensors have",
       {.values =
            R"({"x":{"dtype":7,"sizes":[]},"y":{"dtype":7,"sizes":[)" + many_extents() + "]}}"},
       "dimensions"},
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

TEST_CASE("a size beyond 64 bits is refused with the node that computes it") {
  CHECK_THAT(refusal(by_symbols("9223372036854775807").text()),
             contains("bad.json: node m (_operator.mul): the integer does not fit 64 bits"));
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

TEST_CASE("regions in each other are counted") {
  const std::string begin =
      R"({"name":"n1","target":"torch.ops.higher_order.wrap_with_set_grad_enabled","inputs":[)"
      R"({"name":"","arg":{"as_bool":true}},{"name":"","arg":{"as_graph":{"name":"g","graph":)"
      R"({"inputs":[{"as_tensor":{"name":"x"}}],"outputs":[{"as_tensor":{"name":"y"}}],"nodes":[)";
  const std::string end =
      R"(],"tensor_values":{},"sym_int_values":{}}}}},{"name":"","arg":{"as_tensor":{"name":"x"}}}],)"
      R"("outputs":[{"as_tensor":{"name":"y"}}],"metadata":{}})";
  const std::string whole = OneNode{}.text();
  const size_t at = whole.find(R"({"name":"n1")"), behind = whole.find(R"(],"tensor_values")");
  const auto nested = [&](int regions) {
    std::string node = whole.substr(at, behind - at);
    for (int i = 0; i < regions; ++i) node = begin + node + end;
    return whole.substr(0, at) + node + whole.substr(behind);
  };
  CHECK(read_graph(Json::parse(nested(3), {.max_depth = 400}, "deep.json")).nodes.size() == 1);
  const std::string message = require_error(
      ErrorCode::kDataLoss,
      [&] { read_graph(Json::parse(nested(20), {.max_depth = 400}, "bad.json")); }, "20 regions");
  CHECK_THAT(message, contains("regions in each other"));
  CHECK_THAT(message, contains("n1"));
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
  CHECK_THAT(refusal(OneNode{.outputs = "[]"}.text()), contains("before it is made"));
  CHECK_THAT(refusal("[]"), contains("bad.json"));
  const std::string cut = OneNode{}.text();
  CHECK_THAT(refusal(cut.substr(0, cut.size() / 2)), contains("bad.json"));
}
